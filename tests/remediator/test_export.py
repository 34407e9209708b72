"""The export: every kind of event, oldest first, a line each, while the service runs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from remediator import __main__ as program
from remediator.attempt import Attempt
from remediator.database import JournalFailed
from remediator.export import export
from remediator.model import Decision, Hold, Reason, Storm, Verb
from tests.remediator.fakes import START, World, firing

Make = Callable[..., World]
ROOT = Path(__file__).parents[2]


def read(world: World, **named: Any) -> list[dict[str, Any]]:
    """What an export says now, with the service still open."""
    out = io.StringIO()
    number = export(world.path, world.config.journal_password, out, **{"since": 0.0, **named})
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(events) == number
    return events


def story(make: Make) -> World:
    """A day with a bit of everything."""
    world = make({"a": "g", "b": "h"}, evidence_command=(sys.executable, "-c", "print('stack')"))
    journal, clock = world.parts.journal, world.clock
    world.recovers()
    claimed = world.claimed()
    (request,) = journal.inbox.open()
    journal.inbox.decided(request, Decision(Verb.ACT, Reason.ACT, "a is stuck."), clock.time())
    Attempt(world.parts, world.config.backends["a"], claimed).begin()
    clock.pass_by(100.0)
    now = clock.time()
    journal.holds.hold(Hold("b", "ada", "weights", now, now + 3600))
    journal.holds.release("b", "bob", now + 10)
    journal.holds.keep_storm(Storm(now + 20, now + 20), now + 20)
    journal.holds.override_storm("ada", "one switch", now + 30)
    journal.holds.keep_storm(None, now + 700)
    world.alert("b")
    (request,) = world.waiting()
    said = Decision(Verb.REFUSE, Reason.BUDGET_EXHAUSTED, "used up")
    journal.inbox.decided(request, said, now + 800, latch=True)
    journal.restarts.add("b", "life-1", "life-2", now + 900, ours=False)
    return world


def test_every_kind_in_its_order(make_on_either: Make) -> None:
    """Alerts, decisions, attempts with their evidence, steps, holds, storms, budgets, restarts by others."""
    world = story(make_on_either)
    events = read(world)
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    told = [event["kind"] + (f" {event['event']}" if "event" in event else "") for event in events]
    assert sorted(set(told)) == [
        "alert", "attempt", "budget latched", "decision", "hold held", "hold released", "restart_seen", "step",
        "storm began", "storm ended", "storm overridden",
    ]  # fmt: skip
    assert [event["name"] for event in events if event["kind"] == "step"] == [
        "claimed", "identity_noted", "evidence_saved", "confirmed", "called", "returned", "identity_changed",
        "recovered",
    ]  # fmt: skip
    (attempt,) = [event for event in events if event["kind"] == "attempt"]
    assert (attempt["backend"], attempt["outcome"], attempt["identity_after"]) == ("a", "recovered", "life-2")
    assert attempt["evidence"]["limits"] == {"startup_grace_seconds": 1200.0}
    assert attempt["evidence_output"] == "stack\n"
    first = events[0]
    assert (first["time"], first["at"], first["kind"]) == ("2027-01-15T08:00:00.000Z", START, "alert")
    assert (first["backend"], first["name"], first["restart_asked"]) == ("a", "ModelServerStuck", True)


def test_one_backend(make_on_either: Make) -> None:
    """Its own events, steps too, and storms, which concern all."""
    world = story(make_on_either)
    events = read(world, backend="b")
    assert {event.get("backend") for event in events} == {"b", None}
    assert {event["kind"] for event in events if "backend" not in event} == {"storm"}
    assert [event for event in read(world, backend="a") if event["kind"] == "step"]
    assert {event["kind"] for event in read(world, backend="nobody")} == {"storm"}


def test_since(make_on_either: Make) -> None:
    """By the time of the event: a hold that was set before is seen to be released."""
    world = story(make_on_either)
    after = next(event["at"] for event in read(world) if event.get("event") == "released")
    events = read(world, since=after)
    assert events[0]["event"] == "released"
    assert [event for event in read(world) if event["at"] >= after] == events
    assert read(world, since=after + 1e6) == []


def test_it_does_not_hold_everything_at_once(make_on_either: Make) -> None:
    """Rows come from the database as they are written: the first line is out before the last row is read."""
    world = make_on_either()
    world.parts.journal.inbox.receive([firing(f"b{n}") for n in range(3000)], START)

    class Stop(Exception):
        pass

    class Narrow(io.StringIO):
        def write(self, text: str) -> int:
            if text:
                raise Stop
            return 0

    with pytest.raises(Stop):
        export(world.path, world.config.journal_password, Narrow(), since=0.0)
    world.alert("late")  # and nothing is left locked
    assert len(read(world)) == 3001


def test_the_service_writes_meanwhile(make_on_either: Make) -> None:
    """The export is one consistent look, and holds nobody up."""
    world = make_on_either()
    world.alert("a")

    class Busy(io.StringIO):
        def write(self, text: str) -> int:
            world.alert("b")
            return super().write(text)

    out = Busy()
    assert export(world.path, world.config.journal_password, out, since=0.0) == 1
    assert len(read(world)) == 2


def test_journals_that_cannot_be_exported(tmp_path: Path, make: Make) -> None:
    """One line each, and no file appears."""
    path = tmp_path / "none.db"
    with pytest.raises(JournalFailed, match=r"none\.db does not exist"):
        export(path, None, io.StringIO(), since=0.0)
    assert not path.exists()
    world = make()
    world.sql("UPDATE meta SET value = '1' WHERE key = 'version'")
    with pytest.raises(JournalFailed, match="is a journal of version 1, which the next start of the service migrates"):
        read(world)
    world.sql("UPDATE meta SET value = '99' WHERE key = 'version'")
    with pytest.raises(JournalFailed, match="is a journal of version 99; this program reads versions up to"):
        read(world)


class TestCommand:
    """`stallwatch-remediator export`."""

    def configured(self, world: World, folder: Path) -> Path:
        backend = {"name": "a", "restart_on": ["stuck"]}
        driver = {"kind": "command", "restart": ["true"], "identity": ["true"]}
        content: dict[str, Any] = {
            "mode": "advise",
            "exporter_urls": ["http://127.0.0.1:9840"],
            "journal_url": world.config.journal_url,
            "backends": [{**backend, "driver": driver}],
        }
        if world.config.journal_password is not None:
            (folder / "password").write_text(world.config.journal_password, encoding="ascii")
            content["journal"] = {"password_file": str(folder / "password")}
        path = folder / "remediator.yml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    def test_beside_the_service(self, make_on_either: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The journal is open and locked, and the export reads it."""
        world = story(make_on_either)
        file = str(self.configured(world, tmp_path))
        capsys.readouterr()
        assert program.main(["export", "--config.file", file]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [json.loads(line) for line in lines] == read(world)
        assert program.main(["export", "--config.file", file, "--since", "1d", "--backend", "nobody"]) == 0

    @pytest.mark.parametrize("since", ["30", "d", "-1d", "1w", "1.5h", ""])
    def test_a_strange_duration(self, since: str, capsys: pytest.CaptureFixture[str]) -> None:
        """The error says what one looks like."""
        with pytest.raises(SystemExit) as caught:
            program.main(["export", f"--since={since}"])
        assert caught.value.code == 2
        assert f"{since!r} is no duration such as 90m, 12h or 30d" in capsys.readouterr().err

    def test_a_reader_that_has_seen_enough(self, make: Make, tmp_path: Path) -> None:
        """`export | head -1` ends without a word."""
        world = make()
        world.parts.journal.inbox.receive([firing(f"b{n}") for n in range(3000)], START)
        arguments = ["-m", "remediator", "export", "--config.file", str(self.configured(world, tmp_path))]
        with subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as one:
            assert one.stdout is not None
            assert one.stderr is not None
            assert json.loads(one.stdout.readline())["kind"] == "alert"
            one.stdout.close()
            assert one.stderr.read() == b""
            assert one.wait(20) == 0

    def test_of_a_service_that_is_not_running(self, make: Make, tmp_path: Path) -> None:
        """A journal at rest has no file beside it; the export leaves none behind that would hinder the next start."""
        world = story(make)
        before = read(world)
        world.close()
        assert isinstance(world.path, Path)
        assert read(world) == before
        world.open()
        assert os.access(world.path, os.W_OK)
