"""The loop of decisions, on a fake clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from remediator.ledger import StoredAttempt
from remediator.model import Hold, Limits, Outcome, View
from remediator.pending import Pending
from remediator.runner import Runner
from tests.remediator.fakes import World, view

Make = Callable[..., World]


class FakeRunner(Runner):
    """Keeps what it was asked to carry."""

    def __init__(self, world: World) -> None:
        super().__init__(world.parts)
        self.begun: list[StoredAttempt] = []

    def begin(self, stored: StoredAttempt) -> None:
        self.begun.append(stored)

    def resume(self) -> None:
        pass


class Loop:
    """A world with its loop."""

    def __init__(self, world: World) -> None:
        self.world, self.runner = world, FakeRunner(world)
        self.pending = Pending(world.parts, self.runner)

    def step(self, after: float = 10.0) -> None:
        self.world.clock.pass_by(after)
        self.pending.step()

    def close(self) -> None:
        self.pending._pool.shutdown()

    @property
    def decisions(self) -> list[tuple[str, str]]:
        rows = self.world.parts.journal.reader.recent_decisions(100)
        return [(row["decision"], row["reason"]) for row in reversed(rows)]

    def counted(self, decision: str, reason: str, backend: str = "a") -> float | None:
        name = "stallwatch_remediation_decisions_total"
        labels = {"backend": backend, "decision": decision, "reason": reason}
        return self.world.parts.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def loop(make: Make) -> Iterator[Callable[..., Loop]]:
    """Builds worlds with their loops."""
    made: list[Loop] = []

    def one(*arguments: Any, **named: Any) -> Loop:
        made.append(Loop(make(*arguments, **named)))
        return made[-1]

    yield one
    for entry in made:
        entry.close()


Build = Callable[..., Loop]


def test_a_new_request_is_decided_at_once(loop: Build) -> None:
    """A proven stuck backend is claimed in the first round, with its identity noted."""
    one = loop()
    one.world.alert()
    one.step(0.1)
    (attempt,) = one.runner.begun
    assert (attempt.backend, attempt.identity_before) == ("a", "life-1")
    assert one.decisions == [("act", "act")]
    assert one.counted("act", "act") == 1


def test_a_waiting_request_is_decided_every_ten_seconds_and_told_once(loop: Build) -> None:
    """It acts as soon as the exporter says stuck; a repeated decision is neither journalled nor counted again."""
    one = loop()
    one.world.exporters.says["a"] = lambda: view("stalled")
    one.world.alert()
    for _ in range(5):
        one.step()
    reads = one.world.exporters.reads
    one.step(3.0)
    assert (one.world.exporters.reads, reads) == (5, 5)
    one.world.exporters.says["a"] = view
    one.step()
    assert one.decisions == [("wait", "not_confirmed"), ("act", "act")]
    assert one.counted("wait", "not_confirmed") == 1


def test_a_request_ends_after_an_hour(loop: Build) -> None:
    """An alert about a server that is well does not wait for ever."""
    one = loop()
    one.world.exporters.says["a"] = lambda: view("idle")
    one.world.alert()
    for _ in range(361):
        one.step()
    assert one.decisions == [("wait", "not_confirmed"), ("refuse", "not_confirmed")]
    assert not one.world.waiting()
    assert not one.runner.begun


def test_a_request_ends_when_the_exporter_leaves_stuck(loop: Build) -> None:
    """It was stuck, had to wait for the group, and recovered by itself."""
    one = loop({"a": "g", "b": "g"})
    one.world.alert("b", "a")
    one.step()
    one.world.exporters.says["a"] = lambda: view("busy")
    one.step()
    assert [attempt.backend for attempt in one.runner.begun] == ["b"]
    assert one.decisions == [("act", "act"), ("wait", "group_busy"), ("refuse", "not_confirmed")]


def test_a_request_ends_when_somebody_else_restarts(loop: Build) -> None:
    """Another watchdog was faster while we waited for the exporter."""
    one = loop()
    one.world.exporters.says["a"] = lambda: None
    one.world.alert()
    one.step()
    one.world.driver.identity = "life-2"
    one.world.exporters.says["a"] = view
    one.step()
    assert one.decisions == [("wait", "evidence_unavailable"), ("refuse", "already_restarted")]


def test_no_exporter_no_restart(loop: Build) -> None:
    """The reason in words says which exporter failed how."""
    one = loop()
    one.world.exporters.says["a"] = lambda: None
    one.world.alert()
    one.step()
    (request,) = one.world.parts.journal.reader.open_requests(1)
    assert request["detail"] == "http://127.0.0.1:9840: connection refused"
    assert not one.runner.begun


def test_no_identity_no_restart(loop: Build) -> None:
    """A driver that cannot tell the identity could not tell a restart either; it may find it again."""
    one = loop()
    one.world.driver.identity = None
    one.world.alert()
    one.step()
    assert one.decisions == [("wait", "evidence_unavailable")]
    one.world.driver.identity = "life-1"
    one.step()
    assert len(one.runner.begun) == 1


def test_unknown_backends_cost_no_question(loop: Build) -> None:
    """A name from an alert never reaches a driver or an exporter, and does not become a metric label."""
    one = loop()
    one.world.alert("nobody", "../../etc/passwd", "")
    one.step()
    assert one.decisions == [("refuse", "unknown_backend")] * 3
    assert one.world.exporters.reads == 0
    assert one.counted("refuse", "unknown_backend", "") == 3
    assert not one.world.waiting()


def test_more_requests_than_one_round_can_look_at(loop: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have waited longest go first, and nobody is left out."""
    monkeypatch.setattr("remediator.pending.LOOKS_A_ROUND", 2)
    names = {name: name for name in "abcde"}
    one = loop(names, mode="advise")
    for name in names:
        one.world.exporters.says[name] = lambda name=name: view("idle", name)
    one.world.alert(*names)
    looked = [one.step() or one.world.exporters.reads for _ in range(3)]
    assert looked == [2, 4, 6]
    assert len(one.decisions) == 5


def test_held_ends_the_request(loop: Build) -> None:
    """During maintenance the alert is written down and refused."""
    one = loop()
    one.world.parts.journal.holds.hold(Hold("a", "ada", "weights", one.world.clock.time(), None))
    one.world.alert()
    one.step()
    assert one.decisions == [("refuse", "held")]


def test_advise_does_everything_but_the_restart(loop: Build) -> None:
    """The decision says that it would have acted."""
    one = loop(mode="advise")
    one.world.alert()
    one.step()
    assert one.decisions == [("refuse", "advise_only")]
    assert not one.runner.begun


def test_an_exhausted_budget_is_latched(loop: Build) -> None:
    """The refusal closes the budget until a person opens it."""
    limits = dataclasses.replace(Limits(), budget_attempts=1, cooldown_seconds=1.0)
    one = loop(limits=limits)
    ledger = one.world.parts.journal.ledger
    attempt = one.world.claimed()
    ledger.call(attempt.id, 1, one.world.clock.time(), one.world.clock.time() + 60)
    ledger.finish(attempt.id, Outcome.RECOVERED, "proven", "", one.world.clock.time())
    one.world.clock.pass_by(600.0)
    one.world.alert()
    one.step()
    assert one.decisions == [("refuse", "budget_exhausted")]
    one.world.clock.pass_by(30 * 3600.0)
    one.world.alert()
    one.step()
    assert one.decisions[-1] == ("refuse", "budget_exhausted")
    one.world.parts.journal.holds.reset_budget("a", "ada", "mended", one.world.clock.time())
    one.world.alert()
    one.step()
    assert one.decisions[-1] == ("act", "act")


def test_a_fleet_in_trouble_is_left_alone(loop: Build) -> None:
    """Three of three groups stuck at once is a storm; it lifts ten minutes after it has fallen below."""
    one = loop({"a": "g", "b": "h", "c": "i"})
    one.world.alert("a", "b", "c")
    one.step()
    assert one.decisions == [("wait", "storm")] * 3
    for name in ("b", "c"):
        one.world.exporters.says[name] = lambda name=name: view("busy", name)
    for _ in range(59):
        one.step()
    assert not one.runner.begun
    one.step()
    assert [attempt.backend for attempt in one.runner.begun] == ["a"]


def test_a_person_lifts_the_storm(loop: Build) -> None:
    """The override counts at once, and the groups go on being restarted one by one."""
    one = loop({"a": "g", "b": "h"})
    one.world.alert("a", "b")
    one.step()
    one.world.parts.journal.holds.override_storm("ada", "both were on one switch", one.world.clock.time())
    one.step()
    assert [attempt.backend for attempt in one.runner.begun] == ["a", "b"]


def test_one_restart_at_a_time_in_a_group(loop: Build) -> None:
    """Both of two are stuck: the second waits for the first, within one round."""
    one = loop({"a": "g", "b": "g"})
    one.world.alert("a", "b")
    one.step()
    assert [attempt.backend for attempt in one.runner.begun] == ["a"]
    assert one.decisions == [("act", "act"), ("wait", "group_busy")]


def test_a_group_that_the_exporter_names_otherwise_is_shown(loop: Build) -> None:
    """The remediator's file decides, and somebody should know."""
    one = loop({"a": "other"})
    one.step()
    found = one.world.parts.metrics.registry.get_sample_value("stallwatch_remediation_group_mismatch", {"backend": "a"})
    assert found == 1


def test_the_log_tells_a_decision_once(loop: Build) -> None:
    """At three in the morning a line a change is read, a line every ten seconds is not."""
    one = loop()
    one.world.exporters.says["a"] = lambda: view("stalled")
    one.world.alert()
    with capture_logs() as lines:
        for _ in range(5):
            one.step()
    (line,) = [line for line in lines if line["event"] == "decided"]
    assert (line["backend"], line["decision"], line["reason"]) == ("a", "wait", "not_confirmed")
    assert line["detail"] == "the exporter says stalled"


def test_an_error_costs_one_round(loop: Build) -> None:
    """The loop survives whatever a round runs into, and counts it."""
    one = loop()

    def explode() -> View:
        one.world.parts.stop.set()
        raise RuntimeError("an exporter of another planet")

    one.world.exporters.says["a"] = explode
    with capture_logs() as lines:
        one.pending.run()
    assert "round failed" in [line["event"] for line in lines]
    found = one.world.parts.metrics.registry.get_sample_value("stallwatch_remediation_round_failures_total")
    assert found == 1
