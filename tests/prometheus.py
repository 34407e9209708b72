"""A real Prometheus on loopback with a configuration of the test's own."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.tools import find_tool, run_tool

WAIT_SECONDS = 60.0


def free_port() -> int:
    """A port that nobody has at present."""
    with socket.create_server(("127.0.0.1", 0)) as trial:
        return int(trial.getsockname()[1])


def promtool_refuses(paths: Sequence[Path]) -> list[bool]:
    """For each configuration whether the real promtool refuses it."""
    parts = run_tool("promtool", "check", "config", *paths).stdout.split("Checking ")[1:]
    assert len(parts) == len(paths)
    return ["FAILED" in part for part in parts]


class Prometheus:
    """One that runs, with its API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str) -> Any:
        """The data of an answer of its API."""
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def wait_for(self, what: Callable[[Prometheus], Any]) -> Any:
        """Ask until the answer is true; return it."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            with contextlib.suppress(OSError):
                if found := what(self):
                    return found
            assert time.monotonic() < deadline, "Prometheus did not come to it in time"
            time.sleep(0.2)


@contextlib.contextmanager
def prometheus(config: str, folder: Path) -> Iterator[Prometheus]:
    """Start it with this configuration, whose files are relative to the folder; end it with the block."""
    (folder / "prometheus.yml").write_text(config)
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                find_tool("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        running = Prometheus(f"http://127.0.0.1:{port}")
        running.wait_for(lambda it: process.poll() is not None or it.get("status/buildinfo"))
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        yield running
    finally:
        process.terminate()
        process.wait(30)
