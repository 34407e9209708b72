"""Fleets: one, three all stuck, forty with half stuck, peers of one group, and one that flaps for a day."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from remediator.attempt import Attempt
from remediator.model import Reason, Verb
from remediator.pending import Pending
from remediator.runner import Runner
from tests.faults.conftest import Make
from tests.faults.world import quiet, until
from tests.remediator.fakes import build, view


def test_a_fleet_of_one(make: Make) -> None:
    """One backend in one group has neither a minimum nor a storm to wait for."""
    world = make()
    world.replica().deliver("a")
    until(lambda: world.journal("SELECT 1 FROM attempts WHERE outcome = 'recovered'"), "it recovered")
    assert world.a.calls == 1


def test_three_of_three_stuck_at_once(make: Make) -> None:
    """All failure domains at once have one cause, and it is not the servers: nothing is restarted."""
    names = {"a": "g1", "b": "g2", "c": "g3"}
    world = make(names)
    replica = world.replica()
    replica.deliver(*names)
    until(lambda: len(world.journal("SELECT 1 FROM decisions WHERE reason = 'storm'")) == 3, "three waiting requests")
    quiet()
    assert [backend.calls for backend in world.backends.values()] == [0, 0, 0]
    assert replica.actions()["storm"] is not None


def test_half_of_forty_stuck_at_once(make: Make) -> None:
    """Twenty of forty groups: a storm; with two of forty there was none, and both are restarted."""
    names = {f"b{n}": f"g{n}" for n in range(40)}
    world = make(names)
    sick = {"b0", "b1"}

    def says(name: str) -> dict[str, object]:
        alive = name not in sick or world.backends[name].identity != "life-1"
        return world.document(name, "busy" if alive else "stuck")

    world.exporter.says = says
    replica = world.replica()
    replica.deliver(*sick)
    until(lambda: len(world.journal("SELECT 1 FROM attempts WHERE outcome = 'recovered'")) == 2, "two recovered", 60)
    sick.update(f"b{n}" for n in range(2, 22))
    replica.deliver(*(f"b{n}" for n in range(2, 22)))
    until(
        lambda: len(world.journal("SELECT DISTINCT request_id FROM decisions WHERE reason = 'storm'")) == 20, "20", 60
    )
    quiet()
    assert sum(backend.calls for backend in world.backends.values()) == 2


def test_prefill_and_decode_peers_one_after_the_other(make: Make) -> None:
    """Peers of one group that are both stuck: the second waits until the first has recovered and the group settled."""
    world = make({"prefill": "pd", "decode": "pd", "other": "g"}, limits={"group_settle_seconds": 2.0})
    world.exporter.says = lambda name: world.document(
        name, "stuck" if name != "other" and world.backends[name].identity == "life-1" else "busy"
    )
    replica = world.replica()
    replica.deliver("prefill", "decode")
    until(lambda: world.journal("SELECT 1 FROM decisions WHERE reason IN ('group_busy', 'in_progress')"), "one waits")
    until(lambda: len(world.journal("SELECT 1 FROM attempts WHERE outcome = 'recovered'")) == 2, "both recovered", 60)
    ended, claimed = world.journal(
        "SELECT (SELECT ended_at FROM attempts ORDER BY id LIMIT 1), (SELECT max(claimed_at) FROM attempts)"
    )[0]
    assert claimed >= ended + 2.0


def test_flapping_for_a_day(tmp_path: Path) -> None:
    """A poison request that comes back after each restart: three restarts in six hours, then a person has to look."""
    world = build(tmp_path / "journal.db")
    pending = Pending(world.parts, Runner(world.parts))
    runs = inline(pending)
    while world.clock.monotonic() < 86_400:
        lives = world.driver.identity
        # Well for ten minutes after each restart, then stuck again.
        world.exporters.says["a"] = lambda lives=lives: view("stuck" if world.driver.identity == lives else "busy")
        world.alert("a")
        pending.step()
        runs()
        world.clock.pass_by(600.0)
    calls = [a["called_at"] for a in world.attempts() if a["called_at"] is not None]
    assert world.driver.calls == len(calls) == 3
    decisions = world.parts.journal.reader.recent_decisions(5)
    assert (decisions[0]["decision"], decisions[0]["reason"]) == (Verb.REFUSE, Reason.BUDGET_EXHAUSTED)
    world.close()


def inline(pending: Pending) -> Callable[[], None]:
    """Carry attempts on the test's own thread: the clock is a fake one."""
    begun: list[Callable[[], None]] = []
    runner = pending._runner

    def begin(stored: object) -> None:
        attempt = runner._attempt(stored)  # type: ignore[arg-type]
        assert isinstance(attempt, Attempt)
        begun.append(attempt.begin)

    runner.begin = begin  # type: ignore[method-assign]
    runner.resume = lambda: None  # type: ignore[method-assign]

    def run() -> None:
        while begun:
            begun.pop(0)()

    return run


def test_a_clock_that_is_set_back(tmp_path: Path) -> None:
    """Set back by an hour after a restart: the cooldown still holds, and nothing is restarted twice for it."""
    world = build(tmp_path / "journal.db")
    pending = Pending(world.parts, Runner(world.parts))
    runs = inline(pending)
    world.alert("a")
    pending.step()
    runs()
    assert world.driver.calls == 1
    world.clock.offset -= 3600.0
    world.exporters.says["a"] = lambda: view("stuck")
    for _ in range(30):
        world.alert("a")
        world.clock.pass_by(60.0)
        pending.step()
        runs()
    assert world.driver.calls == 1
    world.close()
