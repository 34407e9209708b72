"""A real Docker engine of the tests' own: its folders, socket and image are private, and it uses no network.

Needs root and `dockerd` (Debian: apt-get install --no-install-recommends docker.io; its service need not run). The
image is made of this system's shell and `sleep`, so nothing is downloaded.
"""

from __future__ import annotations

import io
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker  # type: ignore[import-untyped]
import pytest
from docker.errors import APIError, DockerException, NotFound  # type: ignore[import-untyped]

from remediator.drivers.docker import DockerDriver, DockerSettings
from tests.realparts import need
from tests.remediator.drivers.contract import eventually

PART = "Docker engine"
UP_SECONDS = 30.0
IMAGE = "stallwatch-test:1"
SERVES = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
IGNORES_TERM = "trap '' TERM; while :; do sleep 0.1; done"
SECRET = "hunter2"
_numbers = itertools.count(1)


class NotUp(Exception):
    """The engine did not come up; the text says why."""


class Engine:
    """A dockerd that can be started, killed and started again on the same folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "docker.sock"
        self.host = f"unix://{self.socket}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers. Raises `NotUp`."""
        (self.folder / "docker.pid").unlink(missing_ok=True)
        options = {
            "--data-root": "data",
            "--exec-root": "exec",
            "--pidfile": "docker.pid",
            "--config-file": "daemon.json",
        }
        (self.folder / "daemon.json").write_text("{}", encoding="ascii")
        arguments = [f"--host={self.host}", *(f"{option}={self.folder / name}" for option, name in options.items())]
        with (self.folder / "dockerd.txt").open("ab") as log:
            self.process = subprocess.Popen(
                ["dockerd", "--iptables=false", "--bridge=none", "--storage-driver=vfs", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if not eventually(lambda: self._answers() or self.process.poll() is not None, UP_SECONDS) or (
            self.process.poll() is not None
        ):
            lines = (self.folder / "dockerd.txt").read_text(encoding="utf-8", errors="replace").splitlines()
            raise NotUp(f"dockerd did not come up: {lines[-1][:300] if lines else 'it says nothing'}")

    def _answers(self) -> bool:
        with suppress(DockerException, OSError):
            with socket.socket(socket.AF_UNIX) as probe:  # the SDK leaves a socket open that cannot connect
                probe.connect(str(self.socket))
            with self.client() as client:
                return bool(client.ping())
        return False

    def client(self) -> Any:
        """A client of the tests' own; use it in a `with`."""
        return docker.APIClient(self.host, version="1.41", timeout=30)

    def kill(self) -> None:
        """As the kernel would when memory is short; its containers stay."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)
        pid_file = self.folder / "exec" / "containerd" / "containerd.pid"
        with suppress(OSError, ValueError):  # its own containerd may outlive it, and would be in the next one's way
            os.kill(int(pid_file.read_text(encoding="ascii")), signal.SIGKILL)
        pid_file.unlink(missing_ok=True)

    def make_image(self) -> None:
        """Import the shell, `sleep` and what they are linked with."""
        files = {"/bin/sh": Path("/bin/sh").resolve(), "/bin/sleep": Path("/bin/sleep").resolve()}
        for program in list(files.values()):
            listed = subprocess.run(["ldd", str(program)], check=True, capture_output=True, text=True).stdout
            files |= {word: Path(word).resolve() for word in listed.split() if word.startswith("/")}
        image = io.BytesIO()
        with tarfile.open(fileobj=image, mode="w") as tar:
            for name, path in files.items():
                tar.add(path, name.lstrip("/"))
        with self.client() as client:
            client.import_image_from_data(image.getvalue(), *IMAGE.split(":"))

    def run(self, script: str = SERVES, *, name: str | None = None, labels: Mapping[str, str] | None = None) -> str:
        """Start a container without a network and give its name."""
        name = name or f"server-{next(_numbers)}"
        with self.client() as client:
            made = client.create_container(
                IMAGE,
                ["/bin/sh", "-c", script],
                name=name,
                labels=dict(labels or {}),
                environment={"API_KEY": SECRET},
                host_config=client.create_host_config(network_mode="none"),
            )
            client.start(made["Id"])
        return name

    def inspect(self, name: str) -> dict[str, Any]:
        """What the engine itself says."""
        with self.client() as client:
            found: dict[str, Any] = client.inspect_container(name)
            return found

    def driver(self, **settings: Any) -> DockerDriver:
        """A driver for a container of this engine."""
        return DockerSettings.model_validate(
            {"kind": "docker", "host": self.host, "stop_seconds": 2, "timeout_seconds": 30.0, **settings}
        ).make()

    def clean(self) -> None:
        """Remove every container."""
        with self.client() as client:
            for entry in client.containers(all=True):
                with suppress(NotFound):
                    client.remove_container(entry["Id"], force=True)

    def end(self) -> None:
        """End the engine and whatever it left, by pid, and take its folders away."""
        if self.process is not None and self.process.poll() is None:
            with suppress(APIError, DockerException, OSError):
                self.clean()
            self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            if self.process.poll() is None:
                self.kill()
        for pid in self._left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not self._left())
        for line in reversed(Path("/proc/mounts").read_text(encoding="utf-8").splitlines()):
            if (where := line.split()[1]).startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", where], check=False)
        shutil.rmtree(self.folder)

    def _left(self) -> list[int]:
        """Processes with our folder among their arguments (containerd, its shims), and those in our containers."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                arguments = (process / "cmdline").read_bytes()
                mounts = (process / "mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
                inside = any(f"/{self.folder.name}/data/containers/" in line.split()[3] for line in mounts)
                if (f"{self.folder}/".encode() in arguments or inside) and process.name != str(os.getpid()):
                    found.append(int(process.name))
        return found


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[Engine]:
    """An engine that has been seen to run a container, or a skip that says why there is none."""
    if os.geteuid() != 0:
        need(PART, "needs root")
    if shutil.which("dockerd") is None:
        need(PART, "there is no dockerd; Debian: apt-get install --no-install-recommends docker.io")
    folder = Path(tempfile.mkdtemp(prefix="dockerd-"))
    folder.chmod(0o755)  # so that another user comes as far as the socket
    engine = Engine(folder)
    try:
        try:
            engine.start()
            engine.make_image()
            engine.run()
        except (NotUp, APIError, OSError) as error:
            need(PART, " ".join(str(error).split()))
        engine.clean()
        need(PART, None)
        yield engine
    finally:
        engine.end()


@dataclass
class DockerStage:
    """One container."""

    engine: Engine
    name: str
    secrets: tuple[str, ...] = (SECRET,)

    @property
    def driver(self) -> DockerDriver:
        """By name."""
        return self.engine.driver(container=self.name)

    def kill_outside(self) -> None:
        """Somebody else restarts it."""
        with self.engine.client() as client:
            client.restart(self.name, timeout=2)

    def vanish(self) -> None:
        """Removed; the engine stays."""
        with self.engine.client() as client:
            client.remove_container(self.name, force=True)


@pytest.fixture
def docker_stage(docker_engine: Engine) -> Iterator[DockerStage]:
    """A container that serves."""
    stage = DockerStage(docker_engine, docker_engine.run())
    yield stage
    with suppress(NotFound):
        stage.vanish()
