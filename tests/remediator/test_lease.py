"""Two replicas on one PostgreSQL: one carries an attempt, and the other one takes it up only when its lease is over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from remediator.attempt import Attempt
from remediator.database import LeaseLost
from remediator.ledger import Ledger, StoredAttempt
from remediator.logbook import LOOKED_SECONDS, PROMPT_SECONDS
from remediator.model import Decision, Hold, Outcome, Reason, Step, Storm, Verb
from remediator.runner import Runner
from tests.remediator.fakes import START, World, view

Make = Callable[..., World]


@pytest.fixture
def replicas(make_on_postgresql: Make) -> tuple[World, World]:
    """Two remediators with clocks, exporters and connections of their own, and one server to restart."""
    first, second = make_on_postgresql(), make_on_postgresql()
    second.drivers["a"] = first.drivers["a"]
    object.__setattr__(second.config.backends["a"], "driver", first.driver)
    for world in (first, second):
        world.exporters.says["a"] = lambda: view("stuck" if first.driver.identity == "life-1" else "busy")
    return first, second


def at_once(*tasks: Callable[[], Any]) -> list[Any]:
    """What each returns when all begin at the same moment."""
    gate = threading.Barrier(len(tasks))
    found: list[Any] = [None] * len(tasks)

    def run(number: int) -> None:
        gate.wait()
        found[number] = tasks[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def carry(world: World, claimed: StoredAttempt) -> None:
    Attempt(world.parts, world.config.backends["a"], claimed).begin()


def resume(world: World) -> None:
    """What a replica does in each round, in this thread."""
    for stored in world.parts.journal.ledger.left():
        Attempt(world.parts, world.config.backends[stored.backend], stored).resume()


def outcome(world: World) -> tuple[str | None, str | None]:
    attempt = world.attempts()[0]
    return attempt["outcome"], attempt["reason"]


def test_fifty_claims_at_once(replicas: tuple[World, World]) -> None:
    """Two replicas decide the same request at the same moment, fifty times: always exactly one attempt."""
    for _ in range(50):
        replicas[0].alert()
        tasks = []
        for world in replicas:
            (request,) = world.waiting()
            ledger = world.parts.journal.ledger
            tasks.append(lambda ledger=ledger, request=request: ledger.claim(request, "g", "command", "", START))
        won = [(n, attempt) for n, attempt in enumerate(at_once(*tasks)) if attempt is not None]
        assert len(won) == 1
        number, attempt = won[0]
        replicas[number].parts.journal.ledger.finish(attempt.id, Outcome.FAILED, "exit_status", "", START)
    assert len(replicas[0].attempts()) == 50


def test_fifty_claims_of_a_group_at_once(make_on_postgresql: Make) -> None:
    """Two replicas, each with another backend of one group: one attempt, and the other request still waits."""
    groups = {"a": "g", "b": "g"}
    worlds = make_on_postgresql(groups), make_on_postgresql(groups)
    worlds[0].alert("a", "b")
    for _ in range(50):
        tasks = []
        for world, name in zip(worlds, "ab", strict=True):
            request = next(r for r in world.waiting() if r.backend == name)
            ledger = world.parts.journal.ledger
            tasks.append(lambda ledger=ledger, request=request: ledger.claim(request, "g", "command", "", START))
        won = [(n, attempt) for n, attempt in enumerate(at_once(*tasks)) if attempt is not None]
        assert len(won) == 1
        assert len(worlds[0].waiting()) == 1
        ledger = worlds[won[0][0]].parts.journal.ledger
        ledger.finish(won[0][1].id, Outcome.WITHDRAWN, "held", "", START, still_wanted=True)


def test_a_lease_keeps_the_others_away(replicas: tuple[World, World]) -> None:
    """While it lasts nobody else takes the attempt up, writes to it, or ends it."""
    first, second = replicas
    claimed = first.claimed()
    other = second.parts.journal.ledger
    assert other.left() == []
    assert other.take(claimed.id) is None
    for write in (
        lambda: other.step(claimed.id, Step.IDENTITY_NOTED, START),
        lambda: other.call(claimed.id, 1, START, START + 60),
        lambda: other.finish(claimed.id, Outcome.FAILED, "exit_status", "", START),
        lambda: other.renew(claimed.id, 60.0),
    ):
        with pytest.raises(LeaseLost):
            write()
    Runner(second.parts).resume()
    assert first.steps() == ["claimed"]
    assert outcome(first) == (None, None)


def test_the_clock_is_the_databases(replicas: tuple[World, World]) -> None:
    """A replica whose clock is days ahead takes nothing, and the holder's own clock does not end its lease."""
    first, second = replicas
    claimed = first.claimed()
    second.clock.offset += 10 * 86400.0
    first.clock.pass_by(10 * 86400.0)
    assert second.parts.journal.ledger.take(claimed.id) is None
    first.parts.journal.ledger.step(claimed.id, Step.IDENTITY_NOTED, START)
    left = first.sql("SELECT lease_expires_at - extract(epoch FROM now()) FROM attempts")
    assert 50 < float(left) <= 60


def test_a_lease_that_is_over_is_taken_by_one(replicas: tuple[World, World]) -> None:
    """Many hands reach for it at the same moment; who held it is none of them."""
    first, second = replicas
    claimed = first.claimed()
    for _ in range(20):
        first.sql("UPDATE attempts SET lease_expires_at = 0, holder = 'somebody'")
        taken = at_once(*[lambda world=world: world.parts.journal.ledger.take(claimed.id) for world in (first, second)])
        assert len([found for found in taken if found is not None]) == 1
    with pytest.raises(LeaseLost):
        (second if taken[0] else first).parts.journal.ledger.step(claimed.id, Step.IDENTITY_NOTED, START)


def test_a_holder_takes_up_what_its_thread_left(replicas: tuple[World, World]) -> None:
    """After an error in its thread a replica need not wait for its own lease."""
    first, _ = replicas
    first.claimed()
    resume(first)
    assert outcome(first) == ("withdrawn", "interrupted")


def test_a_lease_is_renewed_while_recovery_is_waited_for(replicas: tuple[World, World]) -> None:
    """Twenty minutes of loading weights are journalled in no step."""
    first, second = replicas
    first.exporters.says["a"] = lambda: view("stuck") if first.driver.calls == 0 else view("starting", age_seconds=1e3)
    times: list[float] = []

    def other_looks() -> None:
        assert second.parts.journal.ledger.left() == []
        times.append(float(first.sql("SELECT lease_expires_at FROM attempts")))
        first.clock.at(100.0, other_looks)

    claimed = first.claimed()
    first.clock.at(100.0, other_looks)
    carry(first, claimed)
    assert outcome(first) == ("failed", "not_recovered")
    assert len(times) > 8
    assert times == sorted(set(times))


def test_a_paused_replica_stops_at_its_next_step(replicas: tuple[World, World]) -> None:
    """It stood still while it gathered evidence; the other one has ended the attempt: no call."""
    first, second = replicas
    claimed = first.claimed()
    reads = iter([lambda: None, lambda: (first.expire(), resume(second))])

    def slow_exporter() -> Any:
        next(reads)()
        return view("stuck")

    first.exporters.says["a"] = slow_exporter
    carry(first, claimed)
    assert first.driver.calls == 0
    assert outcome(first) == ("withdrawn", "interrupted")
    assert first.steps() == ["claimed", "identity_noted", "evidence_saved", "withdrawn"]


def test_a_replica_that_is_paused_during_its_call(replicas: tuple[World, World]) -> None:
    """The other one sees the new life of the server and waits for its recovery; nothing is called twice."""
    first, second = replicas

    def restart() -> None:
        first.driver.identity = "life-2"
        first.expire()
        resume(second)

    first.driver.on_restart = restart
    carry(first, first.claimed())
    assert first.driver.calls == 1
    assert outcome(first) == ("recovered", "proven")
    assert "returned" not in first.steps()


def test_the_other_one_waits_out_the_drivers_deadline(replicas: tuple[World, World]) -> None:
    """The holder died in its call: nothing is called before the call's deadline, and then the identity decides."""
    first, second = replicas
    claimed = first.claimed()
    ledger, now = first.parts.journal.ledger, first.clock.time()
    ledger.call(claimed.id, 1, now, now + 60)
    left = first.sql("SELECT lease_expires_at - extract(epoch FROM now()) FROM attempts")
    assert float(left) > 60.0
    first.expire()
    called_at: list[float] = []

    def restart() -> None:
        called_at.append(second.clock.now)
        second.driver.identity = "life-2"

    second.driver.on_restart = restart
    resume(second)
    assert called_at == [60.0]
    assert outcome(second) == ("recovered", "proven")


@pytest.mark.parametrize("which", ["monotonic", "wall", "wall set back"])
def test_paused_between_the_journal_and_the_call(make_on_either: Make, which: str) -> None:
    """The call is journalled and was not made: not made now either, looked at anew after its deadline."""
    world = make_on_either()
    world.recovers()
    original = Ledger.call

    def paused(self: Ledger, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        if which == "monotonic":
            world.clock.now += PROMPT_SECONDS + 1
        world.clock.offset += {"monotonic": 0.0, "wall": 3600.0, "wall set back": -3600.0}[which]

    claimed = world.claimed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "call", paused)
        carry(world, claimed)
    assert (world.driver.calls, outcome(world)) == (0, (None, None))
    assert world.steps()[-1] == "called"
    count = world.parts.metrics.registry.get_sample_value
    assert count("stallwatch_remediation_attempts_total", {"backend": "a", "driver": "command"}) == 0
    resume(world)
    assert world.driver.calls == 1
    assert outcome(world) == ("recovered", "proven")


def test_paused_before_the_journal(make_on_either: Make) -> None:
    """The identity was read too long ago: no call is even journalled, and the request waits again."""
    world = make_on_either()
    original = Ledger.step

    def paused(self: Ledger, attempt_id: int, step: Step, *arguments: Any, **named: Any) -> None:
        original(self, attempt_id, step, *arguments, **named)
        if step is Step.CONFIRMED:
            world.clock.now += LOOKED_SECONDS + 1

    claimed = world.claimed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "step", paused)
        carry(world, claimed)
    assert world.steps()[-1] == "confirmed"
    resume(world)
    assert (world.driver.calls, outcome(world)) == (0, ("withdrawn", "interrupted"))
    assert len(world.waiting()) == 1


def test_a_replica_that_ends_lets_go(replicas: tuple[World, World]) -> None:
    """SIGTERM while recovery is waited for: the other one sees it through at once."""
    first, second = replicas
    first.exporters.says["a"] = lambda: view("stuck") if first.driver.calls == 0 else view("starting", age_seconds=1e3)
    first.clock.at(60.0, first.parts.stop.set)
    carry(first, first.claimed())
    assert outcome(first) == (None, None)
    resume(second)
    assert outcome(second) == ("recovered", "proven")
    assert first.driver.calls == 1


class TestDeciding:
    """Both replicas decide all requests."""

    def decide(self, world: World, verb: Verb, reason: Reason, now: float = START, **named: Any) -> bool:
        (request,) = world.parts.journal.inbox.open()
        return world.parts.journal.inbox.decided(request, Decision(verb, reason), now, **named)

    def said(self, world: World) -> list[str]:
        return [row["reason"] for row in reversed(world.parts.journal.reader.recent_decisions(100))]

    def test_what_one_said_the_other_does_not_repeat(self, replicas: tuple[World, World]) -> None:
        """They see the same, at the same moment, fifty times."""
        replicas[0].alert()
        for number in range(50):
            reason = (Reason.COOLDOWN, Reason.STORM)[number % 2]
            assert sorted(at_once(*[partial(self.decide, world, Verb.WAIT, reason) for world in replicas])) == [
                False,
                True,
            ]
        assert self.said(replicas[0]) == ["cooldown", "storm"] * 25

    def test_two_that_disagree(self, replicas: tuple[World, World]) -> None:
        """One of them cannot reach the exporter: each says so once, and again after ten minutes."""
        first, second = replicas
        first.alert()
        for number in range(61):
            self.decide(first, Verb.WAIT, Reason.NOT_CONFIRMED, START + 10 * number)
            self.decide(second, Verb.WAIT, Reason.EVIDENCE_UNAVAILABLE, START + 10 * number)
        assert self.said(first) == ["not_confirmed", "evidence_unavailable"] * 2

    def test_one_that_changes_its_mind(self, make_on_either: Make) -> None:
        """Its own last word counts, not any word before."""
        world = make_on_either()
        world.alert()
        reasons = [Reason.COOLDOWN, Reason.STORM, Reason.STORM, Reason.COOLDOWN]
        assert [self.decide(world, Verb.WAIT, reason) for reason in reasons] == [True, True, False, True]

    def test_a_request_ends_once(self, replicas: tuple[World, World]) -> None:
        """Both refuse it at the same moment."""
        for _ in range(20):
            replicas[0].alert()
            tasks = []
            for world in replicas:
                (request,) = world.waiting()
                said = Decision(Verb.REFUSE, Reason.HELD)
                inbox = world.parts.journal.inbox
                tasks.append(lambda inbox=inbox, request=request, said=said: inbox.decided(request, said, START))
            assert sorted(at_once(*tasks)) == [False, True]

    def test_a_late_word_does_not_touch_a_claimed_request(self, replicas: tuple[World, World]) -> None:
        """One acts; the other had decided to wait from what it saw before."""
        first, second = replicas
        first.claimed()
        assert not self.decide(second, Verb.WAIT, Reason.NOT_CONFIRMED)
        assert not self.decide(second, Verb.REFUSE, Reason.HELD)
        assert self.decide(first, Verb.ACT, Reason.ACT)
        assert self.said(first) == ["act"]

    def test_the_first_identity_is_kept(self, replicas: tuple[World, World]) -> None:
        """Whoever looks later is told which one that was."""
        first, second = replicas
        first.alert()
        (request,) = first.waiting()
        assert first.parts.journal.inbox.note_identity(request.id, "life-1") == "life-1"
        assert second.parts.journal.inbox.note_identity(request.id, "life-2") == "life-1"

    def test_a_delivery_to_both_is_one_request(self, replicas: tuple[World, World]) -> None:
        """Alertmanager tells both at the same moment, in another order: a request each, every alert counted."""
        for _ in range(10):
            orders = (("a", "b", "c"), ("c", "b", "a"))
            at_once(*[lambda w=w, o=o: w.alert(*o) for w, o in zip(replicas, orders, strict=True)])
        assert [(r.backend, r.alerts) for r in sorted(replicas[0].waiting(), key=lambda r: r.backend)] == [
            ("a", 20),
            ("b", 20),
            ("c", 20),
        ]


class TestStaleDecisions:
    """A replica was paused between its decision and its claim: what has come since makes the decision void."""

    def claim(self, world: World, newest: int | None = None) -> StoredAttempt | None:
        (request,) = world.waiting()
        now = world.clock.time()
        return world.parts.journal.ledger.claim(request, "g", "command", "", now, newest_seen=newest)

    def test_a_hold(self, make_on_either: Make) -> None:
        """A person was faster; what has ended by itself does not count."""
        world = make_on_either()
        world.alert()
        now = world.clock.time()
        world.parts.journal.holds.hold(Hold("a", "ada", "weights", now, None))
        assert self.claim(world) is None
        world.parts.journal.holds.hold(Hold("a", "ada", "weights", now, now))
        assert self.claim(world) is not None

    def test_a_latched_budget(self, make_on_either: Make) -> None:
        """Until a person resets it."""
        world = make_on_either()
        world.alert()
        (request,) = world.waiting()
        said = Decision(Verb.REFUSE, Reason.BUDGET_EXHAUSTED)
        world.parts.journal.inbox.decided(request, said, START, latch=True)
        world.alert()
        assert self.claim(world) is None
        world.parts.journal.holds.reset_budget("a", "ada", "mended", START + 1)
        assert self.claim(world) is not None

    def test_a_latch_from_before_a_reset(self, make_on_either: Make) -> None:
        """A person has reset the budget since the refusal was decided: it stays reset."""
        world = make_on_either()
        world.alert()
        (request,) = world.waiting()
        world.parts.journal.holds.reset_budget("a", "ada", "mended", START + 1)
        said = Decision(Verb.REFUSE, Reason.BUDGET_EXHAUSTED)
        world.parts.journal.inbox.decided(request, said, START, latch=True)
        assert world.parts.journal.reader.history(START + 2).latched == frozenset()

    def test_a_storm(self, make_on_either: Make) -> None:
        """Unless a person has lifted it."""
        world = make_on_either()
        world.alert()
        world.parts.journal.holds.keep_storm(Storm(START, START), START)
        assert self.claim(world) is None
        world.parts.journal.holds.override_storm("ada", "known", START)
        assert self.claim(world) is not None

    def test_another_attempt_in_the_group(self, make_on_either: Make) -> None:
        """It began and ended since: the group settles, and the cooldown counts."""
        world = make_on_either({"a": "g", "b": "g", "c": "other"})
        seen = world.parts.journal.reader.history(START).newest_attempt
        ledger = world.parts.journal.ledger
        for name in ("c", "b"):
            attempt = world.claimed(name)
            ledger.finish(attempt.id, Outcome.RECOVERED, "proven", "", world.clock.time())
        world.alert()
        assert self.claim(world, seen) is None
        assert self.claim(world, seen + 1) is None
        assert self.claim(world, world.parts.journal.reader.history(START).newest_attempt) is not None


class TestHoldsAndStorms:
    """What persons and both loops change at the same moment."""

    def test_two_persons_hold_at_once(self, replicas: tuple[World, World]) -> None:
        """Fifty times: one hold stands, none is an error."""
        for number in range(50):
            kept = [Hold("a", who, str(number), START, None) for who in ("ada", "bob")]
            at_once(*[partial(w.parts.journal.holds.hold, hold) for w, hold in zip(replicas, kept, strict=True)])
            assert replicas[0].sql("SELECT count(*) FROM holds WHERE ended_at IS NULL") == 1
        assert replicas[0].sql("SELECT count(*) FROM holds") == 100

    def test_two_resets_at_once(self, replicas: tuple[World, World]) -> None:
        """The first row of a budget is written by one of them."""
        for number in range(20):
            name = f"b{number}"
            at_once(*[lambda w=w, n=name: w.parts.journal.holds.reset_budget(n, "ada", "x", START) for w in replicas])
        assert replicas[0].sql("SELECT count(*) FROM budgets") == 20

    def test_one_storm(self, replicas: tuple[World, World]) -> None:
        """Both see it begin at the same moment, fifty times."""
        for number in range(50):
            now = START + 1000.0 * number
            at_once(*[lambda w=w, now=now: w.parts.journal.holds.keep_storm(Storm(now, now), now) for w in replicas])
            assert replicas[0].sql("SELECT count(*) FROM storms WHERE ended_at IS NULL") == 1
            replicas[0].parts.journal.holds.keep_storm(None, now)

    def test_a_storm_that_goes_on_is_not_ended_by_who_looked_before(self, make_on_either: Make) -> None:
        """The other replica has seen it over the limit since; an older look does not take that back either."""
        holds = make_on_either().parts.journal.holds
        holds.keep_storm(Storm(START, START), START)
        seen = holds.storm()
        holds.keep_storm(Storm(START, START + 50), START + 50)
        holds.keep_storm(None, START + 600, seen)
        holds.keep_storm(Storm(START, START + 20), START + 20)
        assert holds.storm() == Storm(START, START + 50)
        holds.keep_storm(None, START + 700, holds.storm())
        assert holds.storm() is None
