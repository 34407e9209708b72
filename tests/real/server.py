"""A real vLLM under the demonstration's supervisor: where it is, what its engine process is, and how to freeze that."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import requests

from demo.parts import ChainError, Part, answers, wait_for

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENGINE = "VLLM::EngineCore"
START_SECONDS = 240.0
STOP_SECONDS = 60.0
TAKE_EFFECT_SECONDS = 5.0


class RealServer:
    """vLLM with the tiny model on loopback; `folder` holds the model, the supervisor's state and the log."""

    what = "vLLM"

    def __init__(self, folder: Path, port: int) -> None:
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        self.state = folder / "state"
        self.state.mkdir()
        model = folder / "model"
        subprocess.run([sys.executable, str(HERE / "make_model.py"), str(model)], check=True, timeout=30)
        serve = [str(HERE / "serve_vllm.sh"), str(model), str(port)]
        # A frozen engine never sees SIGTERM, so a long grace would only make each restart later.
        supervisor = [sys.executable, "-m", "demo.supervisor", "--state", str(self.state), "--grace-seconds", "3"]
        self._part = Part("vllm", [*supervisor, "--", *serve], folder)

    @contextlib.contextmanager
    def running(self) -> Iterator[RealServer]:
        """Serve within this context. Raises `ChainError` with the server's last words if it does not start."""
        self._part.start()
        try:
            silent = f"{self.what} does not answer"
            wait_for(lambda: not self._serves() or answers(f"{self.url}/health"), START_SECONDS, silent)
            if not self._serves():
                raise ChainError(f"{self.what} ended: {self.last_words()}")
            yield self
        finally:
            self._part.stop(STOP_SECONDS)

    def _serves(self) -> bool:
        # The supervisor outlives a command that ends by itself, so the log tells.
        return self._part.running() and "the command ended with status" not in self.last_words(lines=5)

    def last_words(self, lines: int = 30) -> str:
        """The end of the log of the server and its supervisor."""
        return "\n".join(self._part.log_path.read_text(errors="replace").splitlines()[-lines:])

    def identity(self) -> str:
        """The supervisor's word for the process that serves now; "" between two of them."""
        try:
            return (self.state / "identity").read_text().strip()
        except FileNotFoundError:
            return ""

    def engine(self) -> int:
        """The process id of the engine, which steps the model; the server of HTTP is another process."""
        session = int(self.identity().split()[0])
        found = [pid for pid in _members(session) if _command(pid).startswith(ENGINE)]
        assert len(found) == 1, f"{len(found)} processes named {ENGINE} instead of one"
        return found[0]

    def freeze(self) -> float:
        """Stop the engine and nothing else; returns the wall time at which it stands."""
        engine = self.engine()
        os.kill(engine, signal.SIGSTOP)
        wait_for(lambda: _state(engine) == "T", TAKE_EFFECT_SECONDS, "the engine does not stop")
        return time.time()

    def make_well(self) -> None:
        """Thaw the engine if a test left it frozen, and wait until it answers."""
        with contextlib.suppress(AssertionError, IndexError, ProcessLookupError):
            os.kill(self.engine(), signal.SIGCONT)
        wait_for(self.answers, START_SECONDS, f"{self.what} does not answer a short request")

    def answers(self) -> bool:
        """Whether a request for one token is answered within five seconds."""
        with contextlib.suppress(requests.RequestException):
            return self.complete("Are you there?", max_tokens=1, timeout_seconds=5.0) > 0
        return False

    def complete(self, prompt: str, *, max_tokens: int, timeout_seconds: float) -> int:
        """One request; returns the prompt's length in tokens as the server counted them. Raises `requests`' errors."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
        with requests.Session() as session:
            session.trust_env = False
            response = session.post(f"{self.url}/v1/completions", json=body, timeout=timeout_seconds)
        response.raise_for_status()
        return int(response.json()["usage"]["prompt_tokens"])


def _members(session: int) -> list[int]:
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == session:
                found.append(pid)
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0")
    return ""


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2][:1]
