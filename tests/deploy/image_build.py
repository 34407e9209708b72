"""The unchanged Dockerfile built by a real engine without a registry, on a base image that is made here.

The base image has the name of the official one and stands in for it: a small Debian with Debian's own Python of the
same minor version, and `python` on the PATH. It needs root and Debian's packages: apt-get install
--no-install-recommends docker.io debootstrap. The Debian is put together once and kept in build/. This machine's pip
fetches the packages, from wherever it is configured to; the build gets them from a server on loopback, so that nothing
of this machine's configuration is needed in it.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import docker  # type: ignore[import-untyped]
import pytest

from tests.deploy.files import OURS
from tests.realparts import need
from tests.remediator.drivers.contract import eventually
from tests.remediator.drivers.docker_engine import UP_SECONDS, Engine
from tests.remediator.drivers.systemd_machine import NotUp, mirror
from tests.tools import ROOT

PART = "image of stallwatch"
SYSTEM = ROOT / "build" / "python-root-1"
"""The number is that of the recipe: another recipe takes another one."""
DEBIAN, PYTHON = "bookworm", "3.11"
INCLUDE = "python3,python3-venv,ca-certificates"
NOT_NEEDED = ("./var/cache/apt/*", "./var/lib/apt/lists/*", "./usr/share/doc/*", "./usr/share/locale/*")
SYSTEM_SECONDS, FETCH_SECONDS, BUILD_SECONDS = 600.0, 300.0, 600.0


class OverlayEngine(Engine):
    """An engine whose layers share what they have in common: `vfs` copies the whole image for each step."""

    def start(self) -> None:
        """Returns when it answers. Raises `NotUp`."""
        (self.folder / "daemon.json").write_text("{}", encoding="ascii")
        places = {"data-root": "data", "exec-root": "exec", "pidfile": "docker.pid", "config-file": "daemon.json"}
        options = [f"--{option}={self.folder / name}" for option, name in places.items()]
        with (self.folder / "dockerd.txt").open("ab") as log:
            self.process = process = subprocess.Popen(
                ["dockerd", "--iptables=false", "--bridge=none", "--storage-driver=overlay2",
                 f"--host={self.host}", *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        if not eventually(lambda: self._answers() or process.poll() is not None, UP_SECONDS) or process.poll():
            lines = (self.folder / "dockerd.txt").read_text(encoding="utf-8", errors="replace").splitlines()
            raise NotUp(f"dockerd with overlay2 did not come up: {lines[-1][:300] if lines else 'it says nothing'}")


@dataclass
class Built:
    """The image, and the engine that has it."""

    engine: Engine
    image: str

    @contextmanager
    def client(self) -> Iterator[Any]:
        """A client that waits longer than the engine's own tests do."""
        with docker.APIClient(self.engine.host, version="1.41", timeout=BUILD_SECONDS) as client:
            yield client


def why_not() -> str | None:
    """What is missing here at first sight."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [program for program in ("dockerd", "debootstrap") if shutil.which(program) is None]
    if missing:
        packages = "apt-get install --no-install-recommends docker.io debootstrap"
        return f"there is no {', '.join(missing)}; Debian: {packages}"
    return None


def make_system() -> None:
    """Put the small Debian together, if it is not there. Complete or not there. Raises `NotUp`."""
    SYSTEM.parent.mkdir(exist_ok=True)
    with SYSTEM.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if SYSTEM.exists():
            return
        half = SYSTEM.with_suffix(".half")
        for mounted in ("proc", "sys"):  # of a run that was killed
            subprocess.run(["umount", "--quiet", "--lazy", half / mounted], check=False, capture_output=True)
        shutil.rmtree(half, ignore_errors=True)
        command = ["nice", "debootstrap", "--variant=minbase", f"--include={INCLUDE}", DEBIAN, str(half), mirror()[0]]
        _run("debootstrap", command, SYSTEM_SECONDS)
        (half / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        half.rename(SYSTEM)


def fetch_packages(folder: Path) -> None:
    """Every wheel that the lock files name for the image, by this machine's pip. Raises `NotUp`."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (script,) = re.findall(r"sed -n '([^']+)' requirements-dev.lock", dockerfile)
    builder = folder / "builder.lock"
    lines = subprocess.run(
        ["sed", "-n", script, ROOT / "requirements-dev.lock"], check=True, capture_output=True, text=True
    )
    builder.write_text(lines.stdout, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    kind = ["--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp", f"--dest={folder}"]
    for lock in (builder, ROOT / "requirements.lock"):
        _run("pip download", [*pip, *kind, f"--requirement={lock}"], FETCH_SECONDS)


def _run(what: str, command: list[str], seconds: float) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds)
    except (OSError, subprocess.SubprocessError) as error:
        said = f"{getattr(error, 'stderr', '') or getattr(error, 'stdout', '') or error}".strip().splitlines()
        raise NotUp(f"{what} failed: {said[-1][:300]}") from None


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The folder's listing over HTTP on loopback; gives its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def _import_base(client: Any, name: str, packages: str, folder: Path) -> None:
    """The small Debian as an image of the official one's name, whose pip takes packages from `packages` alone."""
    archive = folder / "base.tar"
    leave = [f"--exclude={pattern}" for pattern in NOT_NEEDED]
    subprocess.run(["tar", f"--directory={SYSTEM}", "--create", f"--file={archive}", *leave, "."], check=True)
    configuration = f"[global]\nno-index = true\nfind-links = {packages}\n".encode()
    entry = tarfile.TarInfo("./etc/pip.conf")
    entry.size = len(configuration)
    with tarfile.open(archive, "a") as tar:
        tar.addfile(entry, io.BytesIO(configuration))
    repository, _, tag = name.partition(":")
    client.import_image_from_file(str(archive), repository=repository, tag=tag, changes=['CMD ["python3"]'])


def build(engine: Engine) -> Built:
    """Build it as `docker build` does. Raises `NotUp` without packages; a build that fails is an `AssertionError`."""
    built = Built(engine, OURS)
    (base,) = set(re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE))
    with tempfile.TemporaryDirectory(prefix="image-") as name, built.client() as client:
        packages = Path(name) / "packages"
        packages.mkdir()
        fetch_packages(packages)
        said = ""
        with _served(packages) as address:
            _import_base(client, base, address, Path(name))
            # The network of the build alone: the server above is on this machine's loopback.
            for part in client.build(path=str(ROOT), tag=OURS, network_mode="host", rm=True, decode=True):
                said += part.get("stream", "")
                assert "error" not in part, f"{said[-2000:]}\n{part['error']}"
    return built


@pytest.fixture(scope="session")
def image() -> Iterator[Built]:
    """Built once for all tests, by an engine of its own, or a skip that says why it cannot be."""
    need(PART, why_not())
    folder = Path(tempfile.mkdtemp(prefix="dockerd-"))
    engine = OverlayEngine(folder)
    try:
        try:
            make_system()
            engine.start()
            built = build(engine)
        except NotUp as error:
            need(PART, " ".join(str(error).split()))
        yield built
    finally:
        engine.end()
