"""One attempt: what ends how, and that a crash anywhere leads to one restart at most."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from remediator.attempt import Attempt
from remediator.drivers import DriverFailed
from remediator.ledger import Ledger
from remediator.model import Hold, Outcome, Step, View
from tests.remediator.fakes import START, World, view

Make = Callable[..., World]
STEPS = ["claimed", "identity_noted", "evidence_saved", "confirmed", "called", "returned", "identity_changed"]


def begin(world: World) -> None:
    """Claim and carry to the end."""
    claimed = world.claimed()
    Attempt(world.parts, world.config.backends["a"], claimed).begin()


def resume(world: World) -> None:
    """What the next start does with what was left open."""
    for stored in world.parts.journal.ledger.unfinished():
        Attempt(world.parts, world.config.backends[stored.backend], stored).resume()


def outcome(world: World) -> tuple[str | None, str | None]:
    attempt = world.attempts()[0]
    return attempt["outcome"], attempt["reason"]


def failures(world: World, reason: str) -> float | None:
    name = "stallwatch_remediation_attempts_failed_total"
    labels = {"backend": "a", "driver": "command", "reason": reason}
    return world.parts.metrics.registry.get_sample_value(name, labels)


def test_recovered(make: Make) -> None:
    """Every step is journalled in its order, and the request is over."""
    world = make()
    world.recovers()
    begin(world)
    assert [*STEPS, "recovered"] == world.steps()
    assert outcome(world) == ("recovered", "proven")
    assert world.driver.calls == 1
    attempt = world.attempts()[0]
    assert (attempt["identity_before"], attempt["identity_after"]) == ("life-1", "life-2")
    assert attempt["sentence"] == "a is stuck."
    assert not world.parts.journal.inbox.open()
    count = world.parts.metrics.registry.get_sample_value
    assert count("stallwatch_remediation_attempts_total", {"backend": "a", "driver": "command"}) == 1
    assert count("stallwatch_remediation_action_duration_seconds_sum", {"driver": "command"}) == 3.0


def test_evidence_is_saved_before_the_call(make: Make) -> None:
    """The exporter's document and the command's output are there to be read afterwards."""
    world = make(evidence_command=(sys.executable, "-c", "print('stack of rank 0')"))
    world.recovers()
    begin(world)
    found = world.parts.journal.reader.evidence(1)
    assert found is not None
    assert found["exporter"]["name"] == "a"
    assert found["output"] == "stack of rank 0\n"


def test_an_evidence_command_that_fails_does_not_stop_the_restart(make: Make) -> None:
    """It would have helped a person, but it proves nothing."""
    world = make(evidence_command=("/no/such/program",))
    world.recovers()
    begin(world)
    found = world.parts.journal.reader.evidence(1)
    assert found is not None
    assert found["output"] == "the program /no/such/program does not exist"
    assert outcome(world) == ("recovered", "proven")


def test_the_driver_fails(make: Make) -> None:
    """A start limit was hit: failed, with the driver's own words, and the request is over."""
    world = make()
    world.driver.on_restart = world.driver.fail
    begin(world)
    assert outcome(world) == ("failed", "exit_status")
    assert "start request repeated too quickly" in world.attempts()[0]["detail"]
    assert failures(world, "exit_status") == 1
    assert not world.parts.journal.inbox.open()


def test_the_driver_hangs(make: Make) -> None:
    """It was killed at its deadline and the server is the same: failed, and not tried again."""
    world = make()
    world.driver.on_restart = world.driver.hang
    begin(world)
    assert outcome(world) == ("failed", "deadline")
    assert world.driver.calls == 1


def test_the_driver_fails_but_the_server_was_restarted(make: Make) -> None:
    """What counts is the server: it is waited for."""
    world = make()
    world.recovers()

    def restart_then_fail() -> None:
        world.driver.identity = "life-2"
        world.driver.hang()

    world.driver.on_restart = restart_then_fail
    begin(world)
    assert outcome(world) == ("recovered", "proven")


def test_a_driver_that_breaks_is_a_failure(make: Make) -> None:
    """A programming error in a driver must not leave an attempt without an end."""
    world = make()

    def explode() -> None:
        raise RuntimeError("oops")

    world.driver.on_restart = explode
    begin(world)
    assert outcome(world) == ("failed", "error")


def test_the_driver_says_yes_and_does_nothing(make: Make) -> None:
    """The identity is the same two minutes later: failed, whatever the exporter says."""
    world = make()
    world.driver.on_restart = world.driver.lie
    world.exporters.says["a"] = lambda: view("stuck" if world.driver.calls == 0 else "busy")
    begin(world)
    assert outcome(world) == ("failed", "identity_unchanged")
    assert world.driver.calls == 1
    assert 120 <= world.clock.now < 125


def test_a_restart_that_takes_effect_later(make: Make) -> None:
    """The driver returns before the new process is there."""
    world = make()
    world.recovers()

    def soon() -> None:
        world.clock.at(60.0, lambda: setattr(world.driver, "identity", "life-2"))

    world.driver.on_restart = soon
    begin(world)
    assert outcome(world) == ("recovered", "proven")


def test_the_server_does_not_come_back(make: Make) -> None:
    """After the start-up grace of the exporter's limits it has failed."""
    world = make()
    world.exporters.says["a"] = lambda: view() if world.driver.calls == 0 else view("starting", **NOTHING_YET)
    begin(world)
    assert outcome(world) == ("failed", "not_recovered")
    assert world.attempts()[0]["detail"] == "not well after 1200 s: a is starting."
    assert failures(world, "not_recovered") == 1


NOTHING_YET: dict[str, Any] = {"last_progress_age_seconds": None}
"""A new process has neither worked nor answered."""


def test_no_identity_after_the_restart(make: Make) -> None:
    """The server is gone and did not come up: failed, for a reason of its own."""
    world = make()
    world.driver.on_restart = lambda: setattr(world.driver, "identity", None)
    begin(world)
    assert outcome(world) == ("failed", "identity_unavailable")
    assert world.clock.monotonic() >= 1200.0


def test_somebody_was_faster_at_the_last_moment(make: Make) -> None:
    """The driver found another life than the one that was confirmed: nothing is waited for, and no restart is ours."""
    world = make()

    def faster() -> None:
        world.driver.identity = "life-of-another"
        raise DriverFailed("replaced", "life-of-another runs where life-1 was to be restarted; nothing was done")

    world.driver.on_restart = faster
    begin(world)
    assert outcome(world) == ("failed", "replaced")
    assert not world.parts.journal.ledger.called_on("a", "life-1")


def test_a_new_life_that_takes_long_to_begin(make: Make) -> None:
    """A pod that waits ten minutes for a node has no identity for so long: that is no failed restart yet."""
    world = make()

    def gone() -> None:
        world.driver.identity = None
        world.clock.at(600.0, lambda: setattr(world.driver, "identity", "life-2"))

    world.driver.on_restart = gone
    world.exporters.says["a"] = lambda: view("busy" if world.driver.identity == "life-2" else "stuck")
    begin(world)
    assert outcome(world) == ("recovered", "proven")


@pytest.mark.parametrize(
    "after",
    [
        view("busy", last_progress_age_seconds=5000.0),
        view("busy", age_seconds=60.0),
        view("busy", age_seconds=None),
        view("stuck", last_progress_age_seconds=0.5),
        view("unreachable", last_progress_age_seconds=0.5),
        view("idle", last_progress_age_seconds=None, last_answer_age_seconds=5000.0),
        view("starting", last_progress_age_seconds=None),
    ],
    ids=["old progress", "old page", "no page", "stuck again", "unreachable", "old answer", "nothing yet"],
)
def test_what_is_no_recovery(make: Make, after: View) -> None:
    """Progress and answers must be younger than the restart, and seen on a fresh page."""
    world = make()
    world.exporters.says["a"] = lambda: after if world.driver.calls else view()
    begin(world)
    assert outcome(world) == ("failed", "not_recovered")


def test_an_answer_is_a_recovery(make: Make) -> None:
    """An idle server that was asked and answered is well."""
    world = make()
    idle = view("idle", last_progress_age_seconds=None, last_answer_age_seconds=0.5, age_seconds=0.5)
    world.exporters.says["a"] = lambda: idle if world.driver.calls else view()
    begin(world)
    assert outcome(world) == ("recovered", "proven")


def test_a_server_that_is_never_asked_recovers_unproven(make: Make) -> None:
    """A good page is all there can be."""
    world = make()
    page = view("starting", last_progress_age_seconds=None, ask_when="never")
    world.exporters.says["a"] = lambda: page if world.driver.calls else view(ask_when="never")
    begin(world)
    assert outcome(world) == ("recovered", "unproven")
    assert world.attempts()[0]["detail"] == "recovered, unproven"


def test_recovered_between_the_confirmations(make: Make) -> None:
    """The exporter leaves stuck before the call: the driver is not called and the request is over."""
    world = make()
    answers = iter([view("stuck"), view("busy")])
    world.exporters.says["a"] = lambda: next(answers)
    begin(world)
    assert outcome(world) == ("withdrawn", "not_confirmed")
    assert world.driver.calls == 0
    assert not world.parts.journal.inbox.open()


def test_the_exporter_is_lost_between_the_confirmations(make: Make) -> None:
    """Nothing is known any more: not called, and the request waits again."""
    world = make()
    answers = iter([view("stuck"), None])
    world.exporters.says["a"] = lambda: next(answers)
    begin(world)
    assert outcome(world) == ("withdrawn", "evidence_unavailable")
    assert world.driver.calls == 0
    assert [request.backend for request in world.waiting()] == ["a"]


def test_restarted_by_somebody_else_between_the_confirmations(make: Make) -> None:
    """The identity is read again directly before the call."""
    world = make()
    claimed = world.claimed()
    world.driver.identity = "life-2"
    Attempt(world.parts, world.config.backends["a"], claimed).begin()
    assert outcome(world) == ("withdrawn", "already_restarted")
    assert world.driver.calls == 0


def test_held_between_the_confirmations(make: Make) -> None:
    """A person was faster than the call."""
    world = make()
    claimed = world.claimed()
    world.parts.journal.holds.hold(Hold("a", "ada", "wait", START, None))
    Attempt(world.parts, world.config.backends["a"], claimed).begin()
    assert outcome(world) == ("withdrawn", "held")
    assert world.driver.calls == 0


def test_stopped_before_the_call(make: Make) -> None:
    """SIGTERM while evidence is gathered: not called, and the next start lets the request wait again."""
    world = make()
    claimed = world.claimed()
    world.parts.stop.set()
    Attempt(world.parts, world.config.backends["a"], claimed).begin()
    assert (world.driver.calls, outcome(world)) == (0, (None, None))
    world.reopen()
    resume(world)
    assert outcome(world) == ("withdrawn", "interrupted")
    assert len(world.waiting()) == 1


def test_stopped_while_waiting_for_recovery(make: Make) -> None:
    """SIGTERM hands the attempt over, and the next start sees it through."""
    world = make()
    world.exporters.says["a"] = lambda: view() if world.driver.calls == 0 else view("starting", **NOTHING_YET)
    world.clock.at(60.0, world.parts.stop.set)
    begin(world)
    assert world.steps() == STEPS
    world.reopen()
    world.recovers()
    resume(world)
    assert outcome(world) == ("recovered", "proven")
    assert world.driver.calls == 1


class Killed(BaseException):
    """As kill -9: nothing runs after it."""


def die(monkeypatch: pytest.MonkeyPatch, step: str, *, before: bool) -> None:
    """Let the process die right before or right after a step is journalled."""
    for name in ("step", "call", "finish"):
        original = getattr(Ledger, name)

        def deadly(self: Ledger, attempt_id: int, *rest: Any, _o: Any = original, _n: str = name, **named: Any) -> None:
            this = "called" if _n == "call" else str(rest[0])
            if this == step and before:
                raise Killed
            _o(self, attempt_id, *rest, **named)
            if this == step:
                raise Killed

        monkeypatch.setattr(Ledger, name, deadly)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("step", [*STEPS[1:], "recovered"])
def test_killed_at_every_step(make: Make, step: str, before: bool) -> None:
    """Whatever was journalled last, the next start restarts the server at most once and ends the attempt."""
    world = make()
    world.recovers()
    claimed = world.claimed()
    with pytest.MonkeyPatch.context() as patch:
        die(patch, step, before=before)
        with pytest.raises(Killed):
            Attempt(world.parts, world.config.backends["a"], claimed).begin()
    world.reopen()
    resume(world)
    assert not world.parts.journal.ledger.unfinished()
    assert world.driver.calls <= 1
    before_call = STEPS.index("called") if before else STEPS.index("confirmed")
    if step in STEPS[: before_call + 1]:
        assert outcome(world) == ("withdrawn", "interrupted")
        assert (world.driver.calls, len(world.waiting())) == (0, 1)
    else:
        assert outcome(world) == ("recovered", "proven")
        assert world.driver.calls == 1
    resume(world)
    assert len(world.attempts()) == 1


def test_killed_right_after_claiming(make: Make) -> None:
    """The claim alone restarts nothing."""
    world = make()
    world.claimed()
    world.reopen()
    resume(world)
    assert outcome(world) == ("withdrawn", "interrupted")


def lost_call(world: World) -> None:
    """An attempt whose call was journalled; the process died before it was made."""
    attempt = world.claimed()
    world.parts.journal.ledger.step(attempt.id, Step.CONFIRMED, world.clock.time())
    world.parts.journal.ledger.call(attempt.id, 1, world.clock.time(), world.clock.time() + 60)
    world.reopen()


def test_a_lost_call_waits_out_the_deadline(make: Make) -> None:
    """The command may still be running without us: nothing is called before its deadline is over."""
    world = make()
    world.recovers()
    lost_call(world)
    called_at: list[float] = []

    def restart() -> None:
        called_at.append(world.clock.now)
        world.driver.identity = "life-2"

    world.driver.on_restart = restart
    resume(world)
    assert called_at == [60.0]
    assert outcome(world) == ("recovered", "proven")
    assert world.steps().count("called") == 2


def test_a_lost_call_that_took_effect_is_not_repeated(make: Make) -> None:
    """The identity changes while the deadline is waited out."""
    world = make()
    world.recovers()
    lost_call(world)
    world.clock.at(30.0, lambda: setattr(world.driver, "identity", "life-2"))
    resume(world)
    assert world.driver.calls == 0
    assert outcome(world) == ("recovered", "proven")


def test_a_lost_call_is_not_repeated_on_a_server_that_is_well(make: Make) -> None:
    """The second call needs its own confirmation."""
    world = make()
    lost_call(world)
    world.exporters.says["a"] = lambda: view("busy")
    resume(world)
    assert world.driver.calls == 0
    assert outcome(world) == ("failed", "identity_unchanged")


def test_a_lost_call_without_an_identity_is_left_to_a_person(make: Make) -> None:
    """Nobody can tell whether it was restarted: unknown, and nothing is repeated."""
    world = make()
    lost_call(world)
    world.driver.identity = None
    resume(world)
    assert world.driver.calls == 0
    assert outcome(world) == ("unknown", "identity_unavailable")
    assert failures(world, "identity_unavailable") == 1


def test_a_call_that_is_lost_twice_is_not_made_a_third_time(make: Make) -> None:
    """Two journalled calls are the end."""
    world = make()
    lost_call(world)
    (stored,) = world.parts.journal.ledger.unfinished()
    world.parts.journal.ledger.take(stored.id)
    world.parts.journal.ledger.call(stored.id, 2, world.clock.time(), world.clock.time() + 60)
    world.reopen()
    resume(world)
    assert world.driver.calls == 0
    assert outcome(world) == ("failed", "identity_unchanged")


def test_killed_at_the_second_confirmation(make: Make) -> None:
    """A confirmation that stands in the journal already does not keep the attempt from its end."""
    world = make()
    world.recovers()
    lost_call(world)
    with pytest.MonkeyPatch.context() as patch:
        die(patch, "confirmed", before=False)
        with pytest.raises(Killed):
            resume(world)
    world.reopen()
    resume(world)
    assert outcome(world) == ("recovered", "proven")
    assert world.driver.calls == 1


def test_a_clock_set_back_does_not_prolong_the_wait(make: Make) -> None:
    """The deadline of a lost call lies an hour ahead by the wall clock: the driver's own time is enough."""
    world = make()
    world.recovers()
    lost_call(world)
    world.clock.offset -= 3600.0
    resume(world)
    assert outcome(world) == ("recovered", "proven")
    assert world.clock.now < 120.0


def test_a_failed_attempt_is_not_taken_up_again(make: Make) -> None:
    """An outcome is the end."""
    world = make()
    attempt = world.claimed()
    world.parts.journal.ledger.finish(attempt.id, Outcome.FAILED, "exit_status", "", START)
    world.reopen()
    resume(world)
    assert world.driver.calls == 0
