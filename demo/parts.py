"""The processes of a chain on loopback: started with their output in a file, ended together, nothing left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import requests

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class ChainError(Exception):
    """A part cannot be had, started or reached; one line that says which and what its last words were."""


def free_port(preferred: int = 0) -> int:
    """The preferred port of loopback if nothing listens there, else one that is free."""
    for port in (preferred, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise ChainError("no free port on 127.0.0.1")


def find_program(name: str) -> str:
    """Prometheus's programs from PATH, else from `.tools/bin`. Raises `ChainError` that says what to do."""
    local = Path(__file__).resolve().parent.parent / ".tools" / "bin" / name
    found = shutil.which(name) or (str(local) if local.exists() else None)
    if found is None:
        raise ChainError(f"{name} is neither in PATH nor in .tools/bin: `make tools` fetches it")
    return found


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Part:
    """One process, with its output in a file."""

    def __init__(self, name: str, argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.name, self.argv, self.log_path = name, list(argv), folder / f"{name}.log"
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it in a session of its own, so that Ctrl-C reaches only the chain, which ends its parts in order."""
        with self.log_path.open("ab") as log:
            try:
                self.process = subprocess.Popen(
                    self.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._env,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,  # noqa: PLW1509 -- one prctl call, before any thread of ours
                )
            except OSError as error:
                raise ChainError(f"{self.name} cannot be started: {error}") from error

    def running(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def last_words(self) -> str:
        """The end of its output, for an error line."""
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """End it: TERM, and KILL when that does not help."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


class Parts:
    """A folder and the parts started in it; a context that ends them in reverse order."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stallwatch-"))
        self.started: list[Part] = []

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *_: object) -> None:
        for part in reversed(self.started):
            part.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name: str, argv: Sequence[str], ready: str | None = None, timeout_seconds: float = 30.0) -> Part:
        """Start a part and wait until `ready` (a URL) answers 200. Raises `ChainError`."""
        part = Part(name, argv, self.folder)
        self.started.append(part)
        part.start()
        if ready is not None:
            wait_for(
                lambda: not part.running() or answers(ready), timeout_seconds, f"{name} does not answer at {ready}"
            )
            if not part.running():
                raise ChainError(f"{name} ended: {part.last_words()}")
        return part


def answers(url: str) -> bool:
    """Whether a GET is answered with 200 within two seconds."""
    with contextlib.suppress(requests.RequestException):
        return get(url).status_code == 200
    return False


def get(url: str) -> requests.Response:
    """A GET that takes no proxy from the environment."""
    with requests.Session() as session:
        session.trust_env = False
        return session.get(url, timeout=2.0)


def post(url: str, body: Any = None) -> requests.Response:
    """A POST that takes no proxy from the environment."""
    with requests.Session() as session:
        session.trust_env = False
        return session.post(url, json=body, timeout=5.0)


def wait_for(condition: Callable[[], Any], timeout_seconds: float, what: str) -> Any:
    """Poll until the condition holds and return its value. Raises `ChainError` naming what did not happen."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise ChainError(f"{what} (waited {timeout_seconds:.0f} s)")
        time.sleep(0.1)
