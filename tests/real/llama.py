"""A real llama-server under the demonstration's supervisor, the chain around it, and how to hold its threads still."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import requests
import yaml

from demo.chain import NAME, Chain, Ports
from demo.parts import Part, Parts, free_port, get
from tests.real.chain import RealChain
from tests.real.server import HERE, ROOT, RealServer

PROGRAM = ROOT / ".venv-llama" / "bin" / "llama-server"
READY = ROOT / ".venv-llama" / "ready"
FIRST_PORT = 18300
SLOTS = 4
BATCH = 2048
LIMITS: Mapping[str, float] = {
    "suspect_after_seconds": 3,
    "stuck_after_seconds": 8,
    "ask_timeout_seconds": 3,
    "idle_ask_seconds": 3,
    "startup_grace_seconds": 60,
    "unreachable_after_seconds": 8,
    "down_after_seconds": 15,
}
"""Short, since a batch of a few tokens takes milliseconds here. Polls are 1 s apart."""
HOLD_TRIES = 30


class LlamaServer(RealServer):
    """llama-server with the tiny model on loopback; `arguments` are added to its own."""

    what = "llama-server"

    def __init__(self, folder: Path, port: int, *arguments: str) -> None:
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        self.state = folder / "state"
        self.state.mkdir(parents=True)
        model = folder / "tiny.gguf"
        subprocess.run([sys.executable, str(HERE / "make_gguf.py"), str(model)], check=True, timeout=60)
        serve = [str(PROGRAM), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "--metrics"]
        # No device but the processor, one thread, and nothing remembered of the prompts before.
        serve += ["-dev", "none", "-ngl", "0", "-t", "1", "-np", str(SLOTS), "-c", "32768", "-b", str(BATCH)]
        serve += ["-cram", "0", *arguments]
        supervisor = [sys.executable, "-m", "demo.supervisor", "--state", str(self.state), "--grace-seconds", "3"]
        self._part = Part("llama-server", [*supervisor, "--", *serve], folder)

    def process(self) -> int:
        """The process id of the server; it is also the id of its main thread."""
        return int(self.identity().split()[0])

    def decodes(self) -> float:
        """The counter of batches. Raises `requests`' errors and `ValueError` while the page cannot be read."""
        found = re.search(r"^llamacpp:n_decode_total (\S+)$", get(f"{self.url}/metrics").text, re.MULTILINE)
        if found is None:
            raise ValueError("no llamacpp:n_decode_total")
        return float(found[1])

    def said(self, words: str) -> int:
        """How often they stand in its log."""
        return self._part.log_path.read_text(errors="replace").count(words)

    def engine(self) -> int:
        """What a SIGSTOP freezes: the whole server, which is one process."""
        return self.process()

    def thaw(self) -> None:
        """End the freeze."""
        os.kill(self.process(), signal.SIGCONT)

    def decoding_thread(self) -> int:
        """The thread that has the most of the processor while requests are under way: builds differ in which it is."""
        before = self._ticks()
        time.sleep(2.0)
        after = self._ticks()
        return max(after, key=lambda thread: after[thread] - before.get(thread, 0))

    def _ticks(self) -> dict[int, int]:
        found = {}
        for thread in Path(f"/proc/{self.process()}/task").iterdir():
            with contextlib.suppress(OSError):
                fields = (thread / "stat").read_text().rpartition(") ")[2].split()
                found[int(thread.name)] = int(fields[11]) + int(fields[12])
        return found

    @contextlib.contextmanager
    def decode_held(self) -> Iterator[float]:
        """A batch that never ends, while the page is served: the wall time at which the deciding thread stood.

        Between two batches the same thread serves the page, so it is let go until it is caught within one.
        """
        thread = self.decoding_thread()
        for _ in range(HOLD_TRIES):
            with held(thread) as since:
                if self._page_is_served():
                    yield since
                    return
            time.sleep(0.05)
        raise AssertionError(f"never caught within a batch in {HOLD_TRIES} attempts")

    def _page_is_served(self) -> bool:
        with contextlib.suppress(requests.RequestException, ValueError):
            return self.decodes() > 0
        return False


@contextlib.contextmanager
def held(thread: int) -> Iterator[float]:
    """Hold one thread still within this context; gives the wall time at which it stood. Skips if that is forbidden."""
    command = [sys.executable, "-I", str(HERE / "hold_thread.py"), str(thread)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stderr is not None
        try:
            if holder.stdout.readline().strip() != b"held":
                why = holder.stderr.read().decode().strip()
                if os.strerror(errno.EPERM) in why:
                    pytest.skip(f"the kernel lets nobody hold a thread of another process: {why}")
                raise AssertionError(why)
            yield time.time()
        finally:
            holder.stdin.close()
            holder.wait(10)


class LlamaChain(RealChain):
    """The chain on llama-server. `start_exporter` alone is enough for a test of verdicts."""

    def __init__(self, parts: Parts, server: LlamaServer) -> None:
        Chain.__init__(self, parts)
        self.server, self.backend_url = server, server.url
        exporter, remediator, prometheus, alertmanager = (free_port(FIRST_PORT + n) for n in range(10, 14))
        self.ports = Ports(server.port, exporter, remediator, prometheus, alertmanager)
        self.backend_settings: dict[str, object] = {}

    def start_exporter(self, limits: Mapping[str, float] | None = None) -> None:
        """The exporter with these limits in place of the same ones of `LIMITS`."""
        backend = {"name": NAME, "url": self.backend_url, "runtime": "llamacpp", "group": NAME}
        content = {
            "poll_interval_seconds": 1,
            "poll_timeout_seconds": 2,
            "limits": {**LIMITS, **(limits or {})},
            "backends": [{**backend, **self.backend_settings}],
        }
        path = self.folder / "exporter.yml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        address = f"127.0.0.1:{self.ports.exporter}"
        argv = [sys.executable, "-m", "exporter", "--config.file", str(path), "--web.listen-address", address]
        self.exporter = self.parts.start("exporter", [*argv, "--log.format", "json"], f"http://{address}/-/ready")

    def start(self) -> None:
        """Start all parts."""
        self.start_exporter()
        self.start_remediator()
        self.start_alertmanager()
        self.start_prometheus()

    def state(self) -> tuple[str, str]:
        """Verdict and reason."""
        backend = self.backend()
        return str(backend.get("verdict")), str(backend.get("reason"))


@contextlib.contextmanager
def serving(folder: Path, port: int, *arguments: str) -> Iterator[LlamaServer]:
    """llama-server, answering."""
    if not READY.exists():
        pytest.skip("llama-server is not installed: tests/real/install_llama.sh")
    server = LlamaServer(folder, free_port(port), *arguments)
    with server.running():
        server.make_well()
        yield server


@contextlib.contextmanager
def watched(server: LlamaServer) -> Iterator[LlamaChain]:
    """A chain that the test starts; pytest shows what it said if the test failed."""
    with Parts() as parts:
        chain = LlamaChain(parts, server)
        try:
            yield chain
        finally:
            sys.stdout.write(f"{chain.logs()}\n== llama-server\n{server.last_words()}\n")
