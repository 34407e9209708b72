"""kill -9 at every journalled step and during the driver's call, then a new start: at most one restart a life."""

from __future__ import annotations

from tests.faults.conftest import Make
from tests.faults.world import World, quiet, until


def outcome(world: World) -> tuple[str | None, str | None]:
    """How the newest attempt ended."""
    rows = world.journal("SELECT outcome, reason FROM attempts ORDER BY id DESC LIMIT 1")
    return rows[0] if rows else (None, None)


def ended(world: World) -> bool:
    return outcome(world)[0] is not None


def test_killed_before_anything_was_decided(make: Make) -> None:
    """The alert was journalled and nothing more: the next start decides it."""
    world = make()
    one = world.replica()
    world.exporter.hold.clear()
    assert one.deliver("a") == 202
    one.kill()
    assert (world.steps(), world.a.calls) == ([], 0)
    world.exporter.hold.set()
    one.start()
    until(lambda: ended(world), "it is restarted")
    quiet()
    assert (world.a.calls, outcome(world)) == (1, ("recovered", "proven"))


def test_killed_while_evidence_was_saved(make: Make) -> None:
    """The evidence command hung: that attempt is withdrawn at the next start, and the request decided again."""
    world = make()
    one = world.replica()
    world.a.shut("evidence")
    one.deliver("a")
    until(lambda: world.a.stands_at("evidence"), "the evidence command runs")
    assert world.steps()[-1] == "identity_noted"
    one.kill()
    world.a.open("evidence")
    one.start()
    until(lambda: outcome(world)[0] == "recovered", "it is restarted")
    quiet()
    assert world.a.calls == 1
    assert world.journal("SELECT outcome FROM attempts ORDER BY id") == [("withdrawn",), ("recovered",)]


def test_killed_at_the_confirmation(make: Make) -> None:
    """Killed while the exporter was asked for the last time: nothing was called, so the request is decided again."""
    world = make()
    one = world.replica()
    world.a.shut("evidence")
    one.deliver("a")
    until(lambda: world.a.stands_at("evidence"), "the evidence command runs")
    world.exporter.hold.clear()
    world.a.open("evidence")
    until(lambda: world.steps()[-1] == "evidence_saved", "the evidence is saved")
    one.kill()
    assert world.a.calls == 0
    world.exporter.hold.set()
    one.start()
    until(lambda: world.a.calls == 1 and outcome(world)[0] == "recovered", "it is restarted")
    quiet()
    assert world.a.calls == 1


def test_killed_during_the_call_before_it_had_an_effect(make: Make) -> None:
    """The command was killed with nothing done: after the deadline it is called once more, at most."""
    world = make(timeout_seconds=3.0)
    one = world.replica()
    world.a.shut("before")
    one.deliver("a")
    until(lambda: world.a.stands_at("before"), "the restart command runs")
    assert world.steps()[-1] == "called"
    one.kill()
    world.a.how("lie")  # the command that outlived its parent does nothing any more
    world.a.open("before")
    until(lambda: world.a.stands_at("after"), "the first command ends")
    world.a.how("restart")
    one.start()
    until(lambda: ended(world), "the attempt ends")
    assert (world.a.calls, world.a.identity, outcome(world)) == (2, "life-3", ("recovered", "proven"))
    quiet()
    assert world.a.calls == 2


def test_killed_during_the_call_after_its_effect(make: Make) -> None:
    """The command had done its work: the identity shows it, and nothing is called again."""
    world = make()
    one = world.replica()
    world.a.shut("after")
    one.deliver("a")
    until(lambda: world.a.stands_at("after"), "the restart command has done its work")
    assert world.steps()[-1] == "called"
    one.kill()
    world.a.open("after")
    one.start()
    until(lambda: ended(world), "the attempt ends")
    quiet()
    assert (world.a.calls, outcome(world)) == (1, ("recovered", "proven"))


def test_killed_after_the_call_returned(make: Make) -> None:
    """Killed while the new identity was looked for."""
    world = make()
    one = world.replica()
    world.a.shut("after")
    one.deliver("a")
    until(lambda: world.a.stands_at("after"), "the restart command has done its work")
    world.a.shut("identity")
    world.a.open("after")
    until(lambda: world.steps()[-1] == "returned" and world.a.stands_at("identity"), "it looks for the identity")
    one.kill()
    world.a.open("identity")
    one.start()
    until(lambda: ended(world), "the attempt ends")
    quiet()
    assert (world.a.calls, outcome(world)) == (1, ("recovered", "proven"))


def test_killed_while_it_waits_for_recovery(make: Make) -> None:
    """The new process loads its weights: the next start goes on waiting for it."""
    world = make()
    world.exporter.says = lambda name: world.document(name, "stuck" if world.a.identity == "life-1" else "starting")
    one = world.replica()
    one.deliver("a")
    until(lambda: "identity_changed" in world.steps(), "the identity changed")
    one.kill()
    one.start()
    quiet()
    assert outcome(world) == (None, None)
    world.exporter.says = lambda name: world.document(name, "busy")
    until(lambda: ended(world), "the attempt ends")
    assert (world.a.calls, outcome(world)) == (1, ("recovered", "proven"))


def test_killed_again_and_again(make: Make) -> None:
    """Killed ten times, at whatever moment: one life ends once."""
    world = make(timeout_seconds=2.0)
    one = world.replica()
    one.deliver("a")
    for number in range(10):
        quiet(0.05 + 0.07 * number)
        one.kill()
        one.start()
    until(lambda: ended(world) and outcome(world)[0] == "recovered", "it recovered")
    quiet()
    assert world.a.calls <= 2
    assert world.journal("SELECT count(*) FROM attempts WHERE outcome = 'recovered'")[0][0] == 1
