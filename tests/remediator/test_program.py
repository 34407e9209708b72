"""The program as it runs: a real process, a real driver command, a small exporter, signals that really come."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stallwatch.http import Client, HttpFailed
from tests.exporter.servers import answer, read_request, scripted
from tests.remediator.test_alerts import one, payload

ROOT = Path(__file__).parents[2]


class Program:
    """A remediator for one backend whose identity is a file; its restart command takes a moment."""

    def __init__(self, folder: Path, exporter_url: str, restart: str) -> None:
        self.folder = folder
        self.identity = folder / "identity"
        self.calls = folder / "calls"
        self.identity.write_text("life-1\n", encoding="ascii")
        content = {
            "mode": "restart",
            "exporter_urls": [exporter_url],
            "journal_url": f"sqlite:///{folder}/journal.db",
            "limits": {"decide_every_seconds": 0.2},
            "backends": [
                {
                    "name": "a",
                    "restart_on": ["stuck"],
                    "driver": {
                        "kind": "command",
                        "restart": ["sh", "-c", f"echo call >> {self.calls}; {restart}"],
                        "identity": ["cat", str(self.identity)],
                        "timeout_seconds": 3,
                    },
                }
            ],
        }
        (folder / "remediator.yml").write_text(yaml.safe_dump(content), encoding="utf-8")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        arguments = ["--config.file", str(self.folder / "remediator.yml"), "--log.format", "json"]
        arguments += ["--web.listen-address", f"127.0.0.1:{self.port}"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "remediator", *arguments], stderr=log, cwd=ROOT)
        self.until(lambda: self.get("/-/ready") is not None, "ready")

    def signal(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(20)

    def request(self, method: str, path: str, **named: Any) -> bytes | None:
        client = Client()
        try:
            url = f"http://127.0.0.1:{self.port}{path}"
            return client.request(method, url, timeout_seconds=5, max_bytes=10**7, **named).body
        except HttpFailed:
            return None
        finally:
            client.close()

    def get(self, path: str) -> bytes | None:
        return self.request("GET", path)

    def alert(self) -> None:
        assert self.request("POST", "/api/v1/alerts", json=json.loads(payload(one()))) is not None

    def attempt(self) -> dict[str, Any]:
        body = self.get("/api/v1/actions")
        attempts = json.loads(body)["attempts"] if body else []
        return dict(attempts[0]) if attempts else {}

    def number_of_calls(self) -> int:
        return len(self.calls.read_text(encoding="ascii").splitlines()) if self.calls.exists() else 0

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in (self.folder / "log").read_text(encoding="utf-8").splitlines()]

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 20.0) -> None:
        limit = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < limit, f"{what}: {(self.folder / 'log').read_text(encoding='utf-8')}"
            time.sleep(0.02)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[str], Program]]:
    """Programs beside an exporter that says stuck during the first life and busy from then on."""
    made: list[Program] = []
    identity = tmp_path / "identity"

    def exporter(connection: socket.socket) -> None:
        path = read_request(connection).split(b" ")[1]
        stuck = identity.read_text(encoding="ascii") == "life-1\n"
        verdict = "stuck" if stuck else "busy"
        view = {
            "name": "a",
            "group": "a",
            "verdict": verdict,
            "sentence": f"a is {verdict}.",
            "age_seconds": 0.0,
            "last_progress_age_seconds": 300.0 if stuck else 0.0,
            "limits": {"poll_interval_seconds": 5.0, "startup_grace_seconds": 60.0},
            "ranks": [{"verdict": verdict}],
        }
        whole = path != b"/api/v1/backends"
        connection.sendall(answer(body=json.dumps(view if whole else {"backends": [view]}).encode()))

    with scripted(exporter) as url:

        def build(restart: str) -> Program:
            made.append(Program(tmp_path, url, restart))
            return made[-1]

        yield build
        for entry in made:
            if entry.process is not None and entry.process.poll() is None:
                entry.process.kill()
                entry.process.wait(10)


def test_an_alert_becomes_one_restart(program: Callable[[str], Program], tmp_path: Path) -> None:
    """From the webhook to the recovered backend; SIGTERM ends the program with 0; the log tells the story."""
    one_program = program(f"echo life-2 > {tmp_path}/identity")
    one_program.start()
    for _ in range(20):
        one_program.alert()
    one_program.until(lambda: one_program.attempt().get("outcome"), "an outcome")
    assert one_program.attempt()["outcome"] == "recovered"
    assert one_program.number_of_calls() == 1
    assert one_program.signal(signal.SIGTERM) == 0
    events = one_program.events()
    story = ["started", "webhook received", "alert received", "decided", "attempt step", "attempt ended", "stopped"]
    assert [event for event in story if event not in events] == []


def test_killed_during_the_driver_call(program: Callable[[str], Program], tmp_path: Path) -> None:
    """kill -9 while the command runs; it takes effect without us; the next start only waits for recovery."""
    one_program = program(f"sleep 1; echo life-2 > {tmp_path}/identity")
    one_program.start()
    one_program.alert()
    one_program.until(lambda: one_program.number_of_calls() == 1, "the call")
    assert one_program.signal(signal.SIGKILL) == -signal.SIGKILL
    one_program.start()
    one_program.alert()
    one_program.until(lambda: one_program.attempt().get("outcome"), "an outcome")
    assert one_program.attempt()["outcome"] == "recovered"
    assert one_program.number_of_calls() == 1
    one_program.signal(signal.SIGTERM)


def test_sigterm_during_the_driver_call(program: Callable[[str], Program], tmp_path: Path) -> None:
    """The call is waited for, the rest is handed over, and the next start sees it through."""
    one_program = program(f"sleep 1; echo life-2 > {tmp_path}/identity")
    one_program.start()
    one_program.alert()
    one_program.until(lambda: one_program.number_of_calls() == 1, "the call")
    assert one_program.signal(signal.SIGTERM) == 0
    assert one_program.identity.read_text(encoding="ascii") == "life-2\n"
    one_program.start()
    one_program.until(lambda: one_program.attempt().get("outcome"), "an outcome")
    assert one_program.attempt()["outcome"] == "recovered"
    assert one_program.number_of_calls() == 1
    one_program.signal(signal.SIGTERM)


def test_a_second_program_on_one_journal(program: Callable[[str], Program], tmp_path: Path) -> None:
    """It ends with exit code 2 and one line, and the first goes on."""
    one_program = program("true")
    one_program.start()
    arguments = ["--config.file", str(tmp_path / "remediator.yml"), "--web.listen-address", "127.0.0.1:0"]
    second = subprocess.run(
        [sys.executable, "-m", "remediator", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=20,
        check=False,
    )
    assert second.returncode == 2
    assert second.stderr == f"stallwatch-remediator: {tmp_path}/journal.db: another remediator uses this journal\n"
    assert one_program.get("/-/ready") is not None
    one_program.signal(signal.SIGTERM)


def test_a_port_that_is_taken(program: Callable[[str], Program], tmp_path: Path) -> None:
    """One line says which address cannot be had."""
    one_program = program("true")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["--config.file", str(one_program.folder / "remediator.yml"), "--web.listen-address", address]
        done = subprocess.run(
            [sys.executable, "-m", "remediator", *arguments],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=20,
            check=False,
        )
    assert done.returncode == 2
    expected = f"stallwatch-remediator: cannot listen on {address}: {os.strerror(98)}\n"
    assert done.stderr == expected
