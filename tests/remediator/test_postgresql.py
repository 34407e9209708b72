"""A journal on a real PostgreSQL: what happens when it is gone, frozen, full of others, or not let in to."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from flask.testing import FlaskClient
from sqlalchemy.engine import make_url
from structlog.testing import capture_logs

from remediator import __main__ as main
from remediator import engines
from remediator.attempt import Attempt
from remediator.database import JournalFailed
from remediator.engines import Times
from remediator.journal import Journal
from remediator.model import Step
from remediator.pending import Pending
from remediator.runner import Runner
from remediator.web import create_app
from tests import realparts
from tests.remediator import postgresql
from tests.remediator.fakes import World, build, view
from tests.remediator.test_alerts import one, payload
from tests.remediator.test_attempt import STEPS, Killed, die, outcome
from tests.remediator.test_program import Program, program

Make = Callable[..., World]
__all__ = ["program"]


@pytest.fixture(scope="module")
def own_server() -> Iterator[postgresql.Server]:
    """A server that the tests of this file may break."""
    realparts.need("PostgreSQL", postgresql.why_not())
    server = postgresql.Server()
    yield server
    server.close()


@pytest.fixture
def fragile(own_server: postgresql.Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world on that server, and less patience."""
    monkeypatch.setattr(engines, "Times", lambda: Times(statement=2.0, lock=1.0, patience=2.0))
    monkeypatch.setattr(engines, "CONNECT_SECONDS", 2)
    world = build(own_server.database(), password=postgresql.PASSWORD)
    yield world
    world.close()


def client(world: World) -> FlaskClient:
    return create_app(world.parts, lambda: True).test_client()


def rounds(world: World, number: int) -> list[str]:
    """So many rounds of the loop of decisions; what its log says."""
    with capture_logs() as lines:
        world.clock.at(10.0 * number - 5.0, world.parts.stop.set)
        Pending(world.parts, Runner(world.parts)).run()
    world.parts.stop.clear()
    return [line["event"] for line in lines]


def test_a_server_that_is_killed_and_comes_back(own_server: postgresql.Server, fragile: World) -> None:
    """503 for the webhook, a lost round for the loop, nothing on the scrape; then all goes on by itself."""
    web = client(fragile)
    fragile.exporters.says["a"] = lambda: view("stalled")
    fragile.alert("b")
    own_server.kill()
    try:
        answer = web.post("/api/v1/alerts", data=payload(one()))
        assert answer.status_code == 503
        assert answer.get_json()["error"].startswith("the journal cannot be used: ")
        assert postgresql.PASSWORD not in answer.get_data(as_text=True)
        assert web.get("/-/ready").status_code == 503
        assert "stallwatch_remediation_journal_readable 0.0" in web.get("/metrics").get_data(as_text=True)
        assert rounds(fragile, 2) == ["round failed", "round failed"]
    finally:
        own_server.start()
    assert web.post("/api/v1/alerts", data=payload(one())).status_code == 202
    assert web.get("/-/ready").status_code == 200
    assert {request.backend for request in fragile.waiting()} == {"a", "b"}
    events = rounds(fragile, 1)
    assert "round failed" not in events
    assert "decided" in events


def test_a_server_that_was_started_again_between_two_uses(own_server: postgresql.Server, fragile: World) -> None:
    """The connections of before are dead, and nobody notices."""
    fragile.alert("b")
    own_server.kill()
    own_server.start()
    assert client(fragile).post("/api/v1/alerts", data=payload(one())).status_code == 202


def test_a_server_that_is_frozen(own_server: postgresql.Server, fragile: World) -> None:
    """It takes connections and keeps none of its own time-outs: ours end the wait, and it goes on when it does."""
    web = client(fragile)
    fragile.alert("b")
    own_server.freeze()
    began = time.monotonic()
    try:
        assert web.post("/api/v1/alerts", data=payload(one())).status_code == 503
    finally:
        took = time.monotonic() - began
        own_server.thaw()
    assert took < 15.0
    assert web.post("/api/v1/alerts", data=payload(one())).status_code == 202


def test_the_journal_is_gone_during_the_call(own_server: postgresql.Server, fragile: World) -> None:
    """The restart has happened and could not be written down: seen by the identity later, and never repeated."""
    fragile.recovers()

    def restart() -> None:
        fragile.driver.identity = "life-2"
        own_server.kill()

    fragile.driver.on_restart = restart
    runner = Runner(fragile.parts)
    runner.begin(fragile.claimed())
    assert runner.join(20.0)
    own_server.start()
    assert outcome(fragile) == (None, None)
    runner.resume()
    assert runner.join(20.0)
    assert outcome(fragile) == ("recovered", "proven")
    assert fragile.driver.calls == 1


def test_a_row_that_somebody_locks(own_server: postgresql.Server, fragile: World) -> None:
    """A person's open transaction costs a bounded time and one typed error."""
    fragile.alert()
    (request,) = fragile.waiting()
    with fragile.parts.journal._database._engine.connect() as other:
        other.exec_driver_sql("SELECT * FROM requests FOR UPDATE")
        with pytest.raises(JournalFailed, match="lock timeout"):
            fragile.parts.journal.inbox.note_stuck(request.id)
    fragile.parts.journal.inbox.note_stuck(request.id)
    assert fragile.waiting()[0].seen_stuck


def test_every_time_is_bounded(make_on_postgresql: Make) -> None:
    """The session's settings, and what was committed is on the disk."""
    world = make_on_postgresql()
    names = (
        "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit",
        "transaction_isolation",
    )  # fmt: skip
    found = [world.sql(f"SHOW {name}") for name in names]
    assert found == ["10s", "5s", "30s", "on", "read committed"]
    with world.parts.journal._database.read() as connection:
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "repeatable read"
        assert connection.exec_driver_sql("SHOW transaction_read_only").scalar() == "on"


@pytest.mark.parametrize("password", ["hunter2-wrong", None])
def test_a_wrong_password(server: postgresql.Server, password: str | None) -> None:
    """One line in the server's words, without the secret."""
    with pytest.raises(JournalFailed) as caught:
        Journal(server.database(), password)
    text = str(caught.value)
    assert "\n" not in text
    assert "password" in text
    assert "hunter2" not in text
    assert "hunter2" not in repr(caught.value.__cause__)


def test_no_server(server: postgresql.Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program ends with exit code 2 and one line."""
    path = configure(tmp_path, "postgresql://stallwatch@127.0.0.1:1/journal")
    assert main.main(["--config.file", str(path)]) == 2
    line = capsys.readouterr().err
    assert line.startswith("stallwatch-remediator: connection failed: ")
    assert line.count("\n") == 1
    assert postgresql.PASSWORD not in line


def test_the_extra_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line names it."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "remediator.bounded", raising=False)
    path = configure(tmp_path, "postgresql://stallwatch@127.0.0.1:1/journal")
    assert main.main(["--config.file", str(path)]) == 2
    expected = "journal_url: PostgreSQL needs an extra: pip install 'stallwatch[postgresql]'"
    assert capsys.readouterr().err == f"stallwatch-remediator: {expected}\n"


def configure(folder: Path, url: str) -> Path:
    (folder / "password").write_text(postgresql.PASSWORD, encoding="ascii")
    driver = {"kind": "command", "restart": ["true"], "identity": ["true"]}
    content = {
        "mode": "advise",
        "exporter_urls": ["http://127.0.0.1:9840"],
        "journal_url": url,
        "journal": {"password_file": str(folder / "password")},
        "backends": [{"name": "a", "restart_on": ["stuck"], "driver": driver}],
    }
    path = folder / "remediator.yml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def test_text_that_only_sqlite_would_take(make_on_either: Make) -> None:
    """NUL and half a character from a driver or an exporter are no reason to lose a step."""
    world = make_on_either()
    attempt = world.claimed()
    world.parts.journal.ledger.step(attempt.id, Step.IDENTITY_NOTED, 0.0, "a\0b\ud800c", sentence="\0")
    assert world.attempts()[0]["steps"][-1]["detail"] == "ab?c"


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("step", [*STEPS[1:], "recovered"])
def test_the_holder_is_killed_at_every_step(make_on_postgresql: Make, step: str, before: bool) -> None:
    """The other replica restarts the server at most once and ends the attempt, once the lease is over."""
    first, second = make_on_postgresql(), make_on_postgresql()
    first.recovers()
    object.__setattr__(second.config.backends["a"], "driver", first.driver)
    second.exporters.says["a"] = first.exporters.says["a"]
    claimed = first.claimed()
    with pytest.MonkeyPatch.context() as patch:
        die(patch, step, before=before)
        with pytest.raises(Killed):
            Attempt(first.parts, first.config.backends["a"], claimed).begin()
    runner = Runner(second.parts)
    runner.resume()
    runner.join(10.0)
    if step != "recovered" or before:
        assert outcome(second) == (None, None)
    second.expire()
    runner.resume()
    assert runner.join(20.0)
    assert not second.parts.journal.ledger.unfinished()
    assert first.driver.calls <= 1
    called = step not in STEPS[: STEPS.index("called") + (1 if before else 0)]
    assert outcome(second) == (("recovered", "proven") if called else ("withdrawn", "interrupted"))


class TestPrograms:
    """Two real programs on one database."""

    @pytest.fixture
    def pair(
        self, program: Callable[[str], Program], server: postgresql.Server, tmp_path: Path
    ) -> Callable[[str], tuple[Program, Program]]:
        """Both are told to restart by the same command."""
        url = server.database()

        def build(restart: str) -> tuple[Program, Program]:
            made = []
            for name in ("one", "two"):
                entry = program(restart)
                entry.folder = tmp_path / name
                entry.folder.mkdir()
                content = yaml.safe_load((tmp_path / "remediator.yml").read_text(encoding="utf-8"))
                content["journal_url"] = url.render_as_string()
                content["journal"] = {"password_file": str(tmp_path / "password")}
                (tmp_path / "password").write_text(postgresql.PASSWORD, encoding="ascii")
                (entry.folder / "remediator.yml").write_text(yaml.safe_dump(content), encoding="utf-8")
                made.append(entry)
            return made[0], made[1]

        return build

    def test_both_are_told_and_one_restarts(
        self, pair: Callable[[str], tuple[Program, Program]], tmp_path: Path
    ) -> None:
        """Twenty deliveries to each: one call, one story in the journal, and each of them tells it."""
        programs = pair(f"echo life-2 > {tmp_path}/identity")
        for entry in programs:
            entry.start()
        for _ in range(20):
            for entry in programs:
                entry.alert()
        programs[0].until(lambda: programs[0].attempt().get("outcome"), "an outcome")
        assert programs[0].attempt()["outcome"] == "recovered"
        assert programs[0].attempt() == programs[1].attempt()
        assert programs[0].number_of_calls() == 1
        for entry in programs:
            assert entry.signal(signal.SIGTERM) == 0
            assert postgresql.PASSWORD not in (entry.folder / "log").read_text(encoding="utf-8")

    def test_the_one_that_restarts_is_killed(
        self, pair: Callable[[str], tuple[Program, Program]], server: postgresql.Server, tmp_path: Path
    ) -> None:
        """kill -9 while its command runs; the other one waits for the lease, sees the new life, and calls nothing."""
        programs = pair(f"sleep 1; echo life-2 > {tmp_path}/identity")
        programs[0].start()
        programs[0].alert()
        programs[0].until(lambda: programs[0].number_of_calls() == 1, "the call")
        assert programs[0].signal(signal.SIGKILL) == -signal.SIGKILL
        programs[1].start()
        body = programs[1].get("/api/v1/actions")
        assert body is not None
        assert json.loads(body)["attempts"][0]["outcome"] is None
        settings = yaml.safe_load((programs[0].folder / "remediator.yml").read_text(encoding="utf-8"))
        server.sql("UPDATE attempts SET lease_expires_at = 0", str(make_url(settings["journal_url"]).database))
        programs[1].until(lambda: programs[1].attempt().get("outcome"), "an outcome")
        assert programs[1].attempt()["outcome"] == "recovered"
        assert programs[1].number_of_calls() == 1
        assert programs[1].signal(signal.SIGTERM) == 0
