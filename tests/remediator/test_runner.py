"""Attempts in threads of their own: taken up again when they stop half-way, joined at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from remediator.database import JournalFailed
from remediator.ledger import Ledger
from remediator.model import Step
from remediator.runner import Runner
from tests.remediator.fakes import World

Make = Callable[..., World]


def outcome(world: World) -> tuple[str | None, str | None]:
    attempt = world.attempts()[0]
    return attempt["outcome"], attempt["reason"]


def test_an_attempt_runs_beside_its_caller(make: Make) -> None:
    """`begin` returns while the driver is still at work."""
    world = make()
    world.recovers()
    gate = threading.Event()

    def slow() -> None:
        gate.wait(10)
        world.driver.identity = "life-2"
        world.clock.pass_by(1.0)

    world.driver.on_restart = slow
    runner = Runner(world.parts)
    runner.begin(world.claimed())
    assert not runner.join(0.0)
    runner.resume()  # it is carried already: no second thread
    gate.set()
    assert runner.join(10.0)
    assert outcome(world) == ("recovered", "proven")
    assert world.driver.calls == 1


def test_an_attempt_that_stops_half_way_is_taken_up_in_the_next_round(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the end of the call is to be written down: nothing is lost, and nothing repeated."""
    world = make()
    world.recovers()
    original = Ledger.step
    full = [True]

    def sometimes(self: Ledger, attempt_id: int, step: Step, *rest: Any, **named: Any) -> None:
        if step is Step.RETURNED and full.pop():
            raise JournalFailed("database or disk is full")
        original(self, attempt_id, step, *rest, **named)

    monkeypatch.setattr(Ledger, "step", sometimes)
    runner = Runner(world.parts)
    with capture_logs() as lines:
        runner.begin(world.claimed())
        runner.join(10.0)
    assert "attempt interrupted" in [line["event"] for line in lines]
    assert outcome(world) == (None, None)
    runner.resume()
    runner.join(10.0)
    assert outcome(world) == ("recovered", "proven")
    assert world.driver.calls == 1


@pytest.mark.parametrize(("called", "expected"), [(False, "withdrawn"), (True, "unknown")])
def test_a_backend_that_is_not_configured_any_more(make: Make, called: bool, expected: str) -> None:
    """Its attempt gets an end, and nothing is called."""
    world = make({"a": "g", "b": "h"})
    attempt = world.claimed("b")
    if called:
        world.parts.journal.ledger.call(attempt.id, 1, 0.0, 60.0)
    del world.config.backends["b"]  # type: ignore[attr-defined]
    Runner(world.parts).resume()
    assert outcome(world) == (expected, "not_configured")
    assert world.drivers["b"].calls == 0


def test_nothing_is_taken_up_while_stopping(make: Make) -> None:
    """What is open stays open for the next start."""
    world = make()
    world.claimed()
    world.parts.stop.set()
    Runner(world.parts).resume()
    assert outcome(world) == (None, None)
