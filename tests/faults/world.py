"""A world to break: one real remediator, backends that are files, commands with gates, and an exporter that is told.

A backend is a file with an identity. Its restart command appends to a list of calls and writes a new identity; its
identity command reads the file. Either can be told to wait at a gate, so that a test can kill the remediator exactly
there. The exporter says `stuck` of a backend until it was restarted, then `busy`, unless it is told otherwise.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import requests

from tests.remediator.test_alerts import one, payload
from tests.remediator.test_evidence import document

ROOT = Path(__file__).parents[2]
Says = Callable[[str], Mapping[str, Any] | None]
"""What an exporter says of a backend: a document, or None for "not watched here"."""

COMMAND = r"""
what=$1; cd "$2"
gate() { : > "at-$1"; while [ -e "gate-$1" ]; do sleep 0.01; done; }
case $what in
identity) gate identity; cat identity 2> /dev/null ;;
evidence) gate evidence; echo "stacks of $2" ;;
restart)
    echo called >> calls
    gate before
    case $(cat how 2> /dev/null) in
    fail) echo "it would not" >&2; exit 1 ;;
    lie) ;;
    *) echo "life-$(($(wc -l < calls) + 1))" > new; mv new identity ;;
    esac
    gate after ;;
esac
"""


class Backend:
    """One restartable thing, in a folder of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.folder = name, folder / name
        self.folder.mkdir()
        self.identity = "life-1"

    @property
    def identity(self) -> str:
        """What lives there now."""
        return (self.folder / "identity").read_text().strip()

    @identity.setter
    def identity(self, value: str) -> None:
        (self.folder / "identity").write_text(value + "\n")

    @property
    def calls(self) -> int:
        """How often the restart command was started."""
        file = self.folder / "calls"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def how(self, what: str) -> None:
        """`restart`, `fail`, or `lie`: say yes and do nothing."""
        (self.folder / "how").write_text(what)

    def shut(self, gate: str) -> None:
        """Let the command wait at a gate (identity, evidence, before, after) from now on."""
        (self.folder / f"at-{gate}").unlink(missing_ok=True)
        (self.folder / f"gate-{gate}").touch()

    def open(self, gate: str) -> None:
        """Let it pass."""
        (self.folder / f"gate-{gate}").unlink(missing_ok=True)

    def stands_at(self, gate: str) -> bool:
        """Whether the command has come to the gate since it was shut."""
        return (self.folder / f"at-{gate}").exists()

    def settings(self, group: str, timeout_seconds: float) -> dict[str, Any]:
        """As the configuration names it."""
        argv = ["sh", "-c", COMMAND, "sh"]
        folder = str(self.folder)
        return {
            "name": self.name,
            "group": group,
            "restart_on": ["stuck"],
            "driver": {
                "kind": "command",
                "restart": [*argv, "restart", folder],
                "identity": [*argv, "identity", folder],
                "timeout_seconds": timeout_seconds,
            },
            "evidence": {"command": [*argv, "evidence", folder], "timeout_seconds": 10},
        }


class Exporter:
    """An HTTP server that says of each backend what it is told to."""

    def __init__(self, says: Says, names: list[str]) -> None:
        self.says, self.names = says, names
        self.delay_seconds, self.broken = 0.0, ""
        self.hold = threading.Event()
        self.hold.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.hold.wait(30)
                time.sleep(outer.delay_seconds)
                name = self.path.removeprefix("/api/v1/backends").lstrip("/")
                found: Any
                if name:
                    found = outer.says(name)
                else:
                    rows = [outer.says(each) for each in outer.names]
                    found = {"backends": [row for row in rows if row is not None], "exporter_epoch": "e"}
                body = outer.broken.encode() or json.dumps(found).encode()
                self.send_response(200 if found is not None else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class Replica:
    """One remediator process."""

    def __init__(self, config: Path, log: Path) -> None:
        self._config, self._log = config, log
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> None:
        """Start it; `wait` until it is ready."""
        arguments = ["--config.file", str(self._config), "--log.format", "json", "--log.level", "debug"]
        arguments += ["--web.listen-address", f"127.0.0.1:{self.port}"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "remediator", *arguments], stdout=log, stderr=log, cwd=ROOT
            )
        if wait:
            until(lambda: self.request("GET", "/-/ready")[0] == 200, "the remediator is ready")

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing is told."""
        self.signal(signal.SIGKILL)

    def signal(self, number: int, wait_seconds: float = 20) -> int:
        """Send a signal that ends it, and wait for the end."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(wait_seconds)

    def pause(self) -> None:
        """SIGSTOP, as when its machine is frozen."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """Status and body; status 0 when nobody answers."""
        with requests.Session() as session:
            session.trust_env = False
            try:
                answer = session.request(
                    method, f"http://127.0.0.1:{self.port}{path}", data=body, headers=headers, timeout=10
                )
            except requests.RequestException:
                return 0, b""
            return answer.status_code, answer.content

    def deliver(self, *backends: str, **changes: Any) -> int:
        """An Alertmanager's delivery of a firing alert for each backend; the status of the answer."""
        alerts = [{**one(backend=name), **changes} for name in backends]
        return self.request("POST", "/api/v1/alerts", payload(*alerts))[0]

    def actions(self) -> dict[str, Any]:
        """Attempts, requests and decisions."""
        status, body = self.request("GET", "/api/v1/actions?limit=500")
        assert status == 200, (status, body)
        found: dict[str, Any] = json.loads(body)
        return found


class World:
    """Backends, an exporter and remediators on one journal."""

    def __init__(
        self,
        folder: Path,
        groups: Mapping[str, str],
        *,
        mode: str = "restart",
        limits: Mapping[str, float] | None = None,
        timeout_seconds: float = 5.0,
        journal: Mapping[str, Any] | None = None,
        exporters: int = 1,
    ) -> None:
        self.folder = folder
        self.backends = {name: Backend(folder, name) for name in groups}
        self.exporters = [Exporter(self.says, list(groups)) for _ in range(exporters)]
        chosen = {"decide_every_seconds": 0.2, "identity_change_seconds": 3.0, **(limits or {})}
        self.settings = {
            "mode": mode,
            "exporter_urls": [exporter.url for exporter in self.exporters],
            "exporter_timeout_seconds": 2.0,
            "limits": chosen,
            "backends": [self.backends[name].settings(group, timeout_seconds) for name, group in groups.items()],
            **(journal or {"journal_url": f"sqlite:///{folder}/journal.db"}),
        }
        self.config = folder / "remediator.yml"
        self.write()
        self.replicas: list[Replica] = []

    def write(self) -> None:
        """Write the configuration down; JSON is YAML without its surprises."""
        self.config.write_text(json.dumps(self.settings))

    @property
    def a(self) -> Backend:
        """The first backend."""
        return next(iter(self.backends.values()))

    @property
    def exporter(self) -> Exporter:
        """The first exporter."""
        return self.exporters[0]

    def replica(self, *, start: bool = True) -> Replica:
        """One more remediator on this journal."""
        self.replicas.append(Replica(self.config, self.folder / f"log-{len(self.replicas)}"))
        if start:
            self.replicas[-1].start()
        return self.replicas[-1]

    def says(self, name: str) -> Mapping[str, Any] | None:
        """Stuck in the first life, busy in every later one."""
        backend = self.backends.get(name)
        if backend is None:
            return None
        stuck = backend.identity == "life-1"
        return self.document(name, "stuck" if stuck else "busy")

    def document(self, name: str, verdict: str, **changes: Any) -> dict[str, Any]:
        """What the exporter's API tells of a backend with this verdict, just read."""
        fresh = {"last_progress_age_seconds": 0.2} if verdict == "busy" else {}
        group = next(each["group"] for each in self.settings["backends"] if each["name"] == name)
        found = document(name=name, verdict=verdict, group=group, age_seconds=0.2, **fresh)
        for rank in found["ranks"]:
            rank["verdict"] = verdict
        return {**found, **changes}

    def journal(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of an SQLite journal, read beside the remediator."""
        connection = sqlite3.connect(f"file:{self.folder}/journal.db?mode=ro", uri=True, timeout=10)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def steps(self) -> list[str]:
        """The steps of all attempts, in order."""
        return [row[0] for row in self.journal("SELECT name FROM steps ORDER BY id")]

    def log(self) -> str:
        """What all remediators said."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("log-*")))

    def close(self) -> None:
        """End everything."""
        for backend in self.backends.values():
            for gate in ("identity", "evidence", "before", "after"):
                backend.open(gate)
        for replica in self.replicas:
            if replica.process is not None and replica.process.poll() is None:
                replica.resume()
            replica.close()
        for exporter in self.exporters:
            exporter.hold.set()
            exporter.close()


def until(what: Callable[[], object], why: str, seconds: float = 30.0) -> None:
    """Wait until something is true; real processes take their time."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"waited {seconds:g} s for: {why}"
        time.sleep(0.02)


def quiet(client_seconds: float = 1.0) -> None:
    """Time in which nothing may happen: several rounds of decisions at the interval of these tests."""
    time.sleep(client_seconds)
