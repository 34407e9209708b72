"""Public accidents of webhooks and of remediation: what happened to others, and what happens here instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from remediator.alerts import parse
from remediator.model import Reason
from remediator.pending import Pending
from remediator.runner import Runner
from tests.faults.test_fleets import inline
from tests.remediator.fakes import FakeDriver, World, build, view
from tests.remediator.test_alerts import one, payload

Build = Callable[..., "Fleet"]


class Fleet:
    """A world on a fake clock whose attempts are carried on the test's own thread."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._pending = Pending(world.parts, Runner(world.parts))
        self._carry = inline(self._pending)

    def deliver(self, body: bytes) -> None:
        """A delivery, and the round of decisions that it wakes."""
        self.world.parts.journal.inbox.receive(parse(body).alerts, self.world.clock.time())
        self.round()

    def round(self) -> None:
        """One round."""
        self._pending.step()
        self._carry()

    def pass_by(self, seconds: float) -> None:
        """Time passes, with a round every ten seconds."""
        for _ in range(int(seconds // 10)):
            self.world.clock.pass_by(10.0)
            self.round()

    def reasons(self) -> list[str]:
        """Reasons of the decisions, oldest first."""
        return [row["reason"] for row in self.world.parts.journal.reader.recent_decisions(500)][::-1]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Build]:
    """Builds fleets."""
    made: list[World] = []

    def one_fleet(*arguments: object, **named: object) -> Fleet:
        made.append(build(tmp_path / f"journal-{len(made)}.db", *arguments, **named))  # type: ignore[arg-type]
        return Fleet(made[-1])

    yield one_fleet
    for world in made:
        world.close()


def well_after_a_restart(world: World, name: str = "a") -> None:
    """Stuck in its first life, busy in each later one."""
    driver: FakeDriver = world.drivers[name]
    world.exporters.says[name] = lambda: view("stuck" if driver.identity == "life-1" else "busy", name)


def test_a_sibling_joins_the_group_and_the_same_alert_comes_again(fleet: Build) -> None:
    """Alertmanager sends a group anew when a sibling joins and leaves: each backend is restarted once."""
    here = fleet({"a": "g1", "b": "g2", "c": "g3", "d": "g4", "e": "g5"})
    for name in "ab":
        well_after_a_restart(here.world, name)
    for name in "cde":
        here.world.exporters.says[name] = lambda name=name: view("busy", name)
    for body in (payload(one()), payload(one(), one(backend="b")), payload(one(), one("resolved", backend="b"))):
        here.deliver(body)
        here.pass_by(300.0)
    assert [here.world.drivers[name].calls for name in "ab"] == [1, 1]


def test_a_silenced_alert_is_never_resolved(fleet: Build) -> None:
    """Nothing came for six hours, then it fires anew: that is another episode, and is acted on."""
    here = fleet()
    well_after_a_restart(here.world)
    here.deliver(payload(one()))
    here.world.clock.pass_by(6.1 * 3600)
    here.world.exporters.says["a"] = lambda: view("stuck" if here.world.driver.identity == "life-2" else "busy")
    here.deliver(payload({**one(), "startsAt": "2027-01-15T14:06:00Z"}))
    assert here.world.driver.calls == 2


def test_a_notification_that_comes_after_the_recovery(fleet: Build) -> None:
    """Told four minutes after the server was well again: nothing is restarted, and the reason says why."""
    here = fleet()
    here.world.exporters.says["a"] = lambda: view("busy")
    here.deliver(payload(one()))
    here.pass_by(60.0)
    assert (here.world.driver.calls, set(here.reasons())) == (0, {Reason.NOT_CONFIRMED})


def test_a_server_that_is_still_starting(fleet: Build) -> None:
    """A container was restarted while it started, again and again, and never came up: starting is left alone."""
    here = fleet()
    here.world.exporters.says["a"] = lambda: view("starting", last_progress_age_seconds=None)
    here.deliver(payload(one()))
    here.pass_by(900.0)
    assert (here.world.driver.calls, set(here.reasons())) == (0, {Reason.STARTING})


def test_what_an_operator_stopped(fleet: Build) -> None:
    """A watchdog started what a person had stopped: held, and while the driver says it does not run, left alone."""
    here = fleet()
    driver = here.world.driver
    described = driver.describe
    driver.describe = lambda: described().__class__(driver.identity, False, "it was stopped")  # type: ignore[method-assign]
    here.deliver(payload(one()))
    here.pass_by(300.0)
    assert (driver.calls, set(here.reasons())) == (0, {Reason.NOT_CONFIRMED})


def test_the_restart_succeeds_and_the_server_stays_away(fleet: Build) -> None:
    """Orphans kept the GPU's memory: exit status 0, and nothing ever answered. Failed, and no storm of retries."""
    here = fleet()
    here.world.exporters.says["a"] = lambda: view(
        "stuck" if here.world.driver.identity == "life-1" else "down", last_progress_age_seconds=None
    )
    here.deliver(payload(one()))
    for _ in range(12):
        here.deliver(payload(one()))
        here.pass_by(300.0)
    attempt = here.world.attempts()[-1]
    assert (attempt["outcome"], attempt["reason"], here.world.driver.calls) == ("failed", "not_recovered", 1)


@pytest.mark.parametrize(
    "labels",
    [
        {"backend": None, "exported_backend": "a"},
        {"backend": "b"},
        {"backend": "A"},
        {"backend": "a "},
        {"backend": ""},
    ],
)
def test_an_alert_that_names_nobody_here(fleet: Build, labels: dict[str, str | None]) -> None:
    """A relabelled or missing label named the exporter in place of the server: refused and counted, nothing guessed."""
    here = fleet()
    alert = one()
    for key, value in labels.items():
        if value is None:
            del alert["labels"][key]
        else:
            alert["labels"][key] = value
    here.deliver(payload(alert))
    here.pass_by(60.0)
    assert here.world.driver.calls == 0
    assert set(here.reasons()) <= {Reason.UNKNOWN_BACKEND}


def test_the_same_stall_told_anew_after_prometheus_restarted(fleet: Build) -> None:
    """Prometheus was restarted, so that the alert has another start: the cooldown after the failed attempt holds."""
    here = fleet()
    here.world.driver.on_restart = here.world.driver.lie
    here.deliver(payload(one()))
    calls = here.world.driver.calls
    here.deliver(payload({**one(), "startsAt": "2027-01-15T09:00:00Z"}))
    here.pass_by(600.0)
    assert (calls, here.world.driver.calls) == (1, 1)
    assert here.reasons()[-1] == Reason.COOLDOWN
