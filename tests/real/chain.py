"""The demonstration's chain around a real vLLM, with a record of what happened when."""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests

from demo.chain import Chain, Ports
from demo.parts import Parts, free_port, get, wait_for
from tests.real.server import RealServer

LIMITS = {
    "suspect_after_seconds": 5,
    "stuck_after_seconds": 10,
    "ask_timeout_seconds": 3,
    "idle_ask_seconds": 5,
    "startup_grace_seconds": 120,
}
"""Short, since the tiny model's longest healthy step is a fraction of a second. Polls are 1 s apart."""
FIRST_PORT = 18200
LOOK_SECONDS = 0.1


class RealChain(Chain):
    """Exporter, remediator, Alertmanager and Prometheus, as a test needs them, on a server that runs already."""

    def __init__(self, parts: Parts, server: RealServer) -> None:
        super().__init__(parts)
        self.server, self.backend_url = server, server.url
        exporter, remediator, prometheus, alertmanager = (free_port(FIRST_PORT + n) for n in range(1, 5))
        self.ports = Ports(server.port, exporter, remediator, prometheus, alertmanager)

    @property
    def state_folder(self) -> Path:
        """Where the supervisor of vLLM is to be found."""
        return self.server.state

    def start(self) -> None:
        """Start all parts."""
        self.start_exporter(LIMITS)
        self.start_remediator()
        self.start_alertmanager()
        self.start_prometheus()

    def events(self, part: str, event: str, since: float = 0.0) -> Iterator[tuple[float, dict[str, Any]]]:
        """Wall time and fields of each logged event of that name, from `since` on."""
        for entry in self.logged(part):
            at = _seconds(str(entry.get("ts", "")))
            if entry.get("event") == event and at >= since:
                yield at, dict(entry)

    def verdicts(self, since: float = 0.0) -> list[str]:
        """The verdicts that the exporter announced, in their order."""
        return [str(entry["verdict"]) for _, entry in self.events("exporter", "verdict", since)]

    def asked(self, since: float = 0.0) -> int:
        """How many short requests the exporter sent."""
        return sum(1 for _ in self.events("exporter", "asked", since))

    def ask_results(self, since: float = 0.0) -> list[str]:
        """What became of them."""
        return [str(entry["result"]) for _, entry in self.events("exporter", "ask ended", since)]

    def outcome(self) -> str:
        """How the newest attempt ended; "" while there is none or it goes on."""
        attempts = self.actions()
        return str(attempts[0].get("outcome") or "") if attempts else ""

    def active_at(self, alert: str) -> float | None:
        """Wall time of the evaluation since which an alert fires; None if it does not."""
        with contextlib.suppress(requests.RequestException, ValueError):
            found = get(f"http://127.0.0.1:{self.ports.prometheus}/api/v1/alerts").json()["data"]["alerts"]
            for one in found:
                if one["labels"]["alertname"] == alert and one["state"] == "firing":
                    return _seconds(one["activeAt"])
        return None

    def wait_for_verdict(self, verdict: str, timeout_seconds: float) -> None:
        """Wait until the exporter says so. Raises `ChainError`."""
        wait_for(lambda: self.backend().get("verdict") == verdict, timeout_seconds, f"the verdict is not {verdict}")

    def logs(self) -> str:
        """The end of what each part said, for the report of a failed test."""
        paths = sorted(self.folder.glob("*.log"))
        ends = (path.read_text(errors="replace").splitlines()[-60:] for path in paths)
        return "\n".join(f"== {path.name}\n" + "\n".join(end) for path, end in zip(paths, ends, strict=True))


class Lookout:
    """Looks at the alert and at the server several times a second; `with` starts and ends it."""

    def __init__(self, chain: RealChain) -> None:
        self._chain, self._before = chain, chain.server.identity()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=look) for look in (self._look_for_alert, self._look_for_answer)]
        self.firing_at: float | None = None
        self.answered_at: float | None = None

    def __enter__(self) -> Lookout:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _look_for_alert(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self.firing_at = self._chain.active_at("ModelServerStuck")
            if self.firing_at is not None:
                return

    def _look_for_answer(self) -> None:
        server = self._chain.server
        while not self._stop.wait(LOOK_SECONDS):
            if server.identity() not in {"", self._before} and server.answers():
                self.answered_at = time.time()
                return


def _seconds(text: str) -> float:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
