"""What the commands of the documents are run against: simulated servers, the chain of `make run`, a Prometheus."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from demo.parts import post
from demo.traffic import Traffic
from demo.vllm import Options, Server
from tests import certificates
from tests.prometheus import Prometheus, free_port, prometheus
from tests.tools import ROOT

WAIT_SECONDS = 90.0
SCRAPE = {"job_name": "vllm", "scrape_interval": "1s", "scrape_timeout": "1s"}


@dataclasses.dataclass
class Running:
    """A command under way, with all its output in a file."""

    process: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        """What it has printed so far, on both channels."""
        return self.log.read_text(errors="replace")

    def until(self, pattern: str) -> re.Match[str]:
        """Wait for a line with this."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not (found := re.search(pattern, self.output())):
            assert self.process.poll() is None, f"it ended: {self.output()}"
            assert time.monotonic() < deadline, f"no {pattern} in time: {self.output()}"
            time.sleep(0.1)
        return found

    def end(self, number: int = 0) -> int:
        """Its exit code; before, unless 0, send this signal to it and what it started, as a terminal does."""
        if number and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        return self.process.wait(WAIT_SECONDS)


class World:
    """A folder like the project's own, and servers. What costs time is started when it is first needed."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self._running: dict[str, Running] = {}
        self._parts: dict[str, Any] = {}
        shutil.copytree(ROOT / "config", folder / "config", ignore=shutil.ignore_patterns("secrets"))
        (folder / ".venv").symlink_to(sys.prefix)
        (folder / "tests").symlink_to(ROOT / "tests")
        (folder / "tmp").mkdir()
        (folder / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\nmax-time = 20\n", encoding="ascii")
        stack.callback(self._end_all)
        self._configure()

    def _configure(self) -> None:
        """exporter.yml and remediator.yml are the examples, with a journal that may be written."""
        exporter = (self.folder / "config" / "exporter.yml").read_text(encoding="utf-8")
        assert "http://127.0.0.1:8000" in exporter
        (self.folder / "exporter.yml").write_text(exporter.replace("http://127.0.0.1:8000", self["idle"]))
        remediator = (self.folder / "config" / "remediator.yml").read_text(encoding="utf-8")
        assert "/var/lib/stallwatch/" in remediator
        (self.folder / "remediator.yml").write_text(remediator.replace("/var/lib/stallwatch/", f"{self.folder}/"))

    def __getitem__(self, name: str) -> str:
        """The address, file or port that this word stands for in a command."""
        if name == "port":
            return str(free_port())
        if name not in self._parts:
            self._parts[name] = getattr(self, f"_{name}")()
        return str(self._parts[name])

    def fill(self, text: str, put: Mapping[str, str]) -> str:
        """The text with what stands there in place of the documents' addresses; all of them must be there."""
        for old, new in put.items():
            assert old in text, f"{old} is not in: {text}"
            text = text.replace(old, re.sub(r"\{(\w+)\}", lambda word: self[word[1]], new))
        return text

    def start(self, text: str) -> Running:
        """Run it as a person would, in the folder, with the programs of this environment in PATH."""
        env = dict(os.environ, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}", HOME=str(self.folder))
        env |= {"TMPDIR": str(self.folder / "tmp"), "PYTHONUNBUFFERED": "1"}
        env = {key: value for key, value in env.items() if not key.startswith(("MAKE", "PYTEST_"))}
        log = self.folder / "tmp" / f"{len(self._running)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["sh", "-c", text],
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        running = self._running[log.name] = Running(process, log)
        return running

    def once(self, key: str, text: str) -> Running:
        """The same, but what was started under this key already is not started again."""
        if key not in self._running:
            self._running[key] = self.start(text)
        return self._running[key]

    def make(self) -> str:
        """`make` in the project, which takes this environment as it is."""
        return f"make -C {ROOT} VENV={sys.prefix} -o {sys.prefix}/.ready"

    def story(self) -> Running:
        """`make run`, at its end: frozen, restarted once, recovered."""
        running = self.once("story", f"exec {self.make()} run")
        running.until(r"story +process \d.* restarts: 1, outcome: recovered")
        return running

    def _end_all(self) -> None:
        for running in self._running.values():
            if running.process.poll() is None:
                running.end(signal.SIGINT)

    # The words.

    def _make(self) -> str:
        return self.make()

    def _idle(self) -> str:
        return self._stack.enter_context(Server(Options())).url

    def _busy(self) -> str:
        url = self._stack.enter_context(Server(Options())).url
        self._stack.enter_context(Traffic(url, clients=3, max_tokens=400))
        return url

    def _frozen(self) -> str:
        url = self._busy()
        time.sleep(1)  # its three requests are in flight
        post(f"{url}/demo/freeze").raise_for_status()
        return url

    def _refused(self) -> str:
        taken = self._stack.enter_context(socket.socket())
        taken.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else gets it
        return f"http://127.0.0.1:{taken.getsockname()[1]}"

    def _history(self) -> str:
        """A Prometheus that has scraped a busy server as gb10-a."""
        target = {"targets": [self["busy"].removeprefix("http://")], "labels": {"backend": "gb10-a"}}
        config = {"scrape_configs": [{**SCRAPE, "static_configs": [target]}]}
        folder = self.folder / "history"
        folder.mkdir()
        running: Prometheus = self._stack.enter_context(prometheus(yaml.safe_dump(config), folder))
        pages = "query?query=count_over_time(vllm:num_requests_running[1h])"
        running.wait_for(lambda it: any(int(one["value"][1]) >= 4 for one in it.get(pages)["result"]))
        return running.url

    def _chain(self) -> Path:
        """The folder of the chain."""
        self.story()
        (folder,) = (self.folder / "tmp").glob("stallwatch-*/journal.db")
        return folder.parent

    def _address(self, part: str) -> str:
        return self.story().until(rf"\n  {part} +(http://127\.0\.0\.1:\d+)")[1]

    def _prometheus(self) -> str:
        return self._address("prometheus")

    def _remediator(self) -> str:
        return self._address("remediator")

    def _web(self) -> Path:
        """A file with TLS, beside its certificate."""
        folder = self.folder
        certificates.make(folder, "ca")
        certificates.make(folder, "server", "ca")
        content = {"tls_server_config": {"cert_file": "server.crt", "key_file": "server.key"}}
        (folder / "web.yml").write_text(yaml.safe_dump(content), encoding="ascii")
        return folder / "web.yml"
