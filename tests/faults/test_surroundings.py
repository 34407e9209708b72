"""What surrounds the remediator fails or lies: exporter, driver, disk, database, signals."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.conftest import Make
from tests.faults.world import World, quiet, until
from tests.realparts import need


def last_decision(world: World) -> tuple[str, str] | None:
    rows = world.journal("SELECT decision, reason FROM decisions ORDER BY id DESC LIMIT 1")
    return rows[0] if rows else None  # type: ignore[return-value]


def outcome(world: World) -> tuple[str | None, str | None]:
    rows = world.journal("SELECT outcome, reason FROM attempts ORDER BY id DESC LIMIT 1")
    return rows[0] if rows else (None, None)


def waits_for(world: World, verb: str, reason: str) -> None:
    until(lambda: last_decision(world) == (verb, reason), f"{verb} {reason}, not {last_decision(world)}")


# The exporter.


def test_the_exporter_is_down_and_comes_back(make: Make) -> None:
    """Without evidence the request waits; once the exporter answers again it is restarted, once."""
    world = make()
    world.exporter.broken = "gone"
    replica = world.replica()
    replica.deliver("a")
    waits_for(world, "wait", "evidence_unavailable")
    quiet()
    assert world.a.calls == 0
    world.exporter.broken = ""
    until(lambda: outcome(world)[0] == "recovered", "it recovered")
    assert world.a.calls == 1


def test_the_exporter_hangs(make: Make) -> None:
    """One that takes a connection and says nothing cannot be asked; the webhook goes on answering."""
    world = make()
    world.exporter.hold.clear()
    replica = world.replica()
    replica.deliver("a")
    waits_for(world, "wait", "evidence_unavailable")
    began = time.monotonic()
    assert replica.deliver("a") == 202
    assert time.monotonic() - began < 5
    assert world.a.calls == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"age_seconds": 600.0}, "not_confirmed"),
        ({"age_seconds": None}, "not_confirmed"),
        ({"loop_alive": False}, "not_confirmed"),
        ({"limits": {}}, "not_confirmed"),
        ({"verdict": "stalled"}, "not_confirmed"),
        ({"verdict": "paused"}, "not_confirmed"),
        ({"verdict": "hung"}, "not_confirmed"),
        ({"verdict": "unmeasured", "age_seconds": None}, "not_confirmed"),  # it was restarted and has read nothing yet
        ({"verdict": "starting"}, "starting"),
        ({"verdict": None}, "evidence_unavailable"),
        ({"name": "b"}, "evidence_unavailable"),
    ],
)
def test_the_exporter_says_something_else(make: Make, changes: dict[str, object], reason: str) -> None:
    """Stale, of a dead loop, without its limits, another verdict, one that nobody knows: nothing is restarted."""
    world = make()
    world.exporter.says = lambda name: {**world.document(name, "stuck"), **changes}
    replica = world.replica()
    replica.deliver("a")
    until(lambda: (last_decision(world) or ("", ""))[1] == reason, f"{reason}, not {last_decision(world)}")
    quiet(0.5)
    assert world.a.calls == 0


def test_two_exporters_claim_one_backend(make: Make) -> None:
    """One of them is wrong, and nobody knows which: nothing is restarted until one is left."""
    world = make(exporters=2)
    replica = world.replica()
    replica.deliver("a")
    waits_for(world, "wait", "evidence_unavailable")
    quiet(0.5)
    assert world.a.calls == 0
    world.exporters[1].says = lambda _: None
    until(lambda: outcome(world)[0] == "recovered", "it recovered")
    assert world.a.calls == 1


def test_it_recovers_between_the_decision_and_the_call(make: Make) -> None:
    """It moved again while evidence was saved: the last confirmation says so, and nothing is called."""
    world = make()
    world.a.shut("evidence")
    replica = world.replica()
    replica.deliver("a")
    until(lambda: world.a.stands_at("evidence"), "the evidence command runs")
    world.exporter.says = lambda name: world.document(name, "busy")
    world.a.open("evidence")
    until(lambda: outcome(world)[0] is not None, "the attempt ends")
    assert (outcome(world), world.a.calls) == (("withdrawn", "not_confirmed"), 0)


def test_somebody_else_restarts_it_between_the_decision_and_the_call(make: Make) -> None:
    """The identity is another one at the last look: somebody was faster, and nothing is called."""
    world = make()
    world.a.shut("evidence")
    world.exporter.says = lambda name: world.document(name, "stuck")
    replica = world.replica()
    replica.deliver("a")
    until(lambda: world.a.stands_at("evidence"), "the evidence command runs")
    world.a.identity = "life-by-somebody-else"
    world.a.open("evidence")
    until(lambda: outcome(world)[0] is not None, "the attempt ends")
    assert (outcome(world), world.a.calls) == (("withdrawn", "already_restarted"), 0)


# The driver.


def test_the_driver_hangs(make: Make) -> None:
    """The command is killed with its process group at the deadline; the attempt failed, and the cooldown runs."""
    world = make(timeout_seconds=1.0)
    world.a.shut("before")
    replica = world.replica()
    replica.deliver("a")
    until(lambda: outcome(world)[0] is not None, "the attempt ends")
    assert outcome(world) == ("failed", "deadline")
    world.a.open("before")
    replica.deliver("a")
    waits_for(world, "wait", "cooldown")
    quiet(0.5)
    assert (world.a.calls, world.a.identity) == (1, "life-1")


@pytest.mark.parametrize(("how", "reason"), [("fail", "exit_status"), ("lie", "identity_unchanged")])
def test_the_driver_fails_or_lies(make: Make, how: str, reason: str) -> None:
    """It says no, or says yes and does nothing: both are failures, and the cooldown runs."""
    world = make(limits={"identity_change_seconds": 1.0})
    world.a.how(how)
    replica = world.replica()
    replica.deliver("a")
    until(lambda: outcome(world)[0] is not None, "the attempt ends")
    assert outcome(world) == ("failed", reason)
    replica.deliver("a")
    waits_for(world, "wait", "cooldown")
    assert world.a.calls == 1


def test_what_is_to_be_restarted_is_gone(make: Make) -> None:
    """Nothing has an identity any more: nobody could tell afterwards whether it was restarted, so it is not."""
    world = make()
    world.exporter.says = lambda name: world.document(name, "stuck")
    (world.a.folder / "identity").unlink()
    replica = world.replica()
    replica.deliver("a")
    waits_for(world, "wait", "evidence_unavailable")
    quiet(0.5)
    assert world.a.calls == 0


def test_it_does_not_recover(make: Make) -> None:
    """Restarted, and no answer within its startup grace: failed, and a person is told."""
    world = make()
    limits = {"poll_interval_seconds": 5.0, "startup_grace_seconds": 1.0}
    world.exporter.says = lambda name: world.document(
        name, "stuck" if world.a.identity == "life-1" else "starting", limits=limits
    )
    replica = world.replica()
    replica.deliver("a")
    until(lambda: outcome(world)[0] is not None, "the attempt ends")
    assert (outcome(world), world.a.calls) == (("failed", "not_recovered"), 1)


# Disk, database, signals.


def test_the_disk_is_full(make: Make) -> None:
    """Deliveries are answered 503, so that Alertmanager comes again; with room one restart follows."""
    need("a small file system of its own", None if os.geteuid() == 0 and sys.platform == "linux" else "not root")
    world = make()
    disk = world.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    need("a small file system of its own", mounted.stderr.strip() or None if mounted.returncode else None)
    try:
        world.settings["journal_url"] = f"sqlite:///{disk}/journal.db"
        world.write()
        replica = world.replica()
        world.exporter.hold.clear()
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        until(lambda: replica.deliver("a") == 503, "a delivery that cannot be journalled is refused")
        assert replica.request("GET", "/-/ready")[0] == 503
        filler.unlink()
        until(lambda: replica.deliver("a") == 202, "a delivery is taken again")
        world.exporter.hold.set()
        until(lambda: world.a.calls == 1 and replica.actions()["attempts"][0]["outcome"] == "recovered", "it recovered")
        replica.signal(signal.SIGTERM)
    finally:
        world.close()
        subprocess.run(["umount", str(disk)], check=True)


def test_the_database_is_locked(make: Make) -> None:
    """Somebody else's transaction holds the journal for longer than anybody waits: 503; afterwards all goes on."""
    world = make()
    replica = world.replica()
    other = sqlite3.connect(world.folder / "journal.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert replica.deliver("a") == 503
    assert world.a.calls == 0
    other.execute("ROLLBACK")
    other.close()
    assert replica.deliver("a") == 202
    until(lambda: outcome(world)[0] == "recovered", "it recovered")
    assert world.a.calls == 1


def test_sigterm_during_a_restart(make: Make) -> None:
    """The call is waited for, the rest handed over to the next start, and the log says which."""
    world = make()
    world.a.shut("after")
    replica = world.replica()
    replica.deliver("a")
    until(lambda: world.a.stands_at("after"), "the restart command has done its work")
    assert replica.process is not None
    replica.process.send_signal(signal.SIGTERM)
    quiet(0.5)
    assert replica.process.poll() is None
    world.a.open("after")
    assert replica.process.wait(20) == 0
    assert "attempt handed over" in world.log()
    assert outcome(world) == (None, None)
    replica.start()
    until(lambda: outcome(world)[0] == "recovered", "it recovered")
    assert world.a.calls == 1


def test_no_environment_reaches_the_commands(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Evidence and restart commands get a path and a language, and no secret of the service's environment."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
    world = make()
    seen = tmp_path / "seen"
    world.settings["backends"][0]["evidence"]["command"] = ["sh", "-c", f"env | tee {seen}"]
    world.write()
    replica = world.replica()
    replica.deliver("a")
    until(lambda: outcome(world)[0] == "recovered", "it recovered")
    names = {line.partition("=")[0] for line in seen.read_text().splitlines()}
    assert names <= {"PATH", "LANG", "HOME", "USER", "PWD", "OLDPWD", "SHLVL", "_"}
    assert "planted-secret" not in str(world.journal("SELECT evidence_output FROM attempts"))
