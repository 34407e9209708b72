"""A real systemd of the tests' own: a small system in a container of systemd-nspawn, booted once for all tests.

Needs root and Debian's packages: apt-get install --no-install-recommends systemd-container debootstrap. The system is
put together from this machine's own Debian mirror once and kept in build/; what a run changes in it lives in memory.
It has no network, and only its bus can be reached: over a folder that is bound into it.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from remediator.drivers.systemd import SystemdDriver, SystemdSettings
from tests.realparts import need
from tests.remediator.drivers.contract import eventually

PART = "systemd in a container"
BUILD = Path(__file__).parents[3] / "build"
ROOT = BUILD / "systemd-root-1"
"""The number is that of the recipe: another recipe takes another one."""
INCLUDE = "systemd,systemd-sysv,libpam-systemd,dbus,dbus-user-session,polkitd"
QUIET = ("console-getty.service", "systemd-networkd.service", "apt-daily.timer", "apt-daily-upgrade.timer",
         "dpkg-db-backup.timer", "e2scrub_all.timer")  # fmt: skip
"""Not wanted in it: they only make the boot longer."""
BUILD_SECONDS, BOOT_SECONDS, LIFE_SECONDS = 600.0, 40.0, 900
SERVES = "exec sleep 1000"
IGNORES_TERM = "trap '' TERM; while :; do sleep 0.1; done"
SECRET = "hunter2"
NOBODY = 65534
_numbers = itertools.count(1)


class NotUp(Exception):
    """There is no machine; the text says why."""


def why_not() -> str | None:
    """What is missing here at first sight."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [program for program in ("systemd-nspawn", "debootstrap", "nsenter") if shutil.which(program) is None]
    if missing:
        packages = "apt-get install --no-install-recommends systemd-container debootstrap"
        return f"there is no {', '.join(missing)}; Debian: {packages}"
    return None


def mirror() -> tuple[str, str]:
    """Address and code name of the Debian that this machine itself installs from. Raises `NotUp`."""
    release = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines() if line
    )
    suite = release.get("VERSION_CODENAME", "").strip('"')
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {suite}"]
    with suppress(OSError, subprocess.SubprocessError):
        if found := subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split():
            return found[0], suite
    raise NotUp("this system's apt names no mirror to build a small Debian from")


def build_root() -> None:
    """Put the small system together, if it is not there. Complete or not there. Raises `NotUp`."""
    if ROOT.exists():
        return
    address, suite = mirror()
    half = ROOT.with_suffix(".half")
    _remove(half)
    command = ["nice", "debootstrap", "--variant=minbase", f"--include={INCLUDE}", suite, str(half), address]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=BUILD_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stdout", "") or error).strip().splitlines()
        _remove(half)
        raise NotUp(f"debootstrap failed: {said[-1][:300] if said else error}") from None
    units = half / "etc/systemd/system"
    for name in QUIET:
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to("/dev/null")
    (units / "dbus.socket.d").mkdir()
    (units / "dbus.socket.d/host.conf").write_text("[Socket]\nListenStream=/run/hostbus/bus\n", encoding="ascii")
    half.rename(ROOT)


def _remove(folder: Path) -> None:
    for line in reversed(Path("/proc/mounts").read_text(encoding="utf-8").splitlines()):
        if (where := line.split()[1]).startswith(f"{folder}/"):  # of a build that was killed
            subprocess.run(["umount", "--lazy", where], check=False)
    shutil.rmtree(folder, ignore_errors=True)


def children(pid: int) -> list[int]:
    """Process ids of the children of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if path.read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()[1] == str(pid):
                found.append(int(path.parent.name))
    return found


@dataclass
class Machine:
    """The booted system. `leader` is its first process, seen from here."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    leader: int = 0

    @property
    def bus(self) -> Path:
        """Its system bus."""
        return self.folder / "bus"

    def start(self) -> None:
        """Boot; returns when systemd answers over the bus. Raises `NotUp`."""
        log = self.folder / "console.txt"
        command = ["timeout", "--signal=KILL", str(LIFE_SECONDS), "systemd-nspawn", "--boot", "--quiet"]
        options = ["--register=no", "--keep-unit", "--private-network", "--volatile=overlay", "--link-journal=no"]
        named = [f"--machine=stallwatch-{os.getpid()}", f"--directory={ROOT}", f"--bind={self.folder}:/run/hostbus"]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, *options, *named], stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        process = self.process
        eventually(lambda: process.poll() is not None or (self.bus.is_socket() and self._answers()), BOOT_SECONDS)
        if not self.leader:
            lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
            said = [line.strip() for line in lines if line.strip()]
            raise NotUp(f"systemd-nspawn did not boot: {said[-1][:300] if said else 'it says nothing'}")

    def _answers(self) -> bool:
        assert self.process is not None
        firsts = [first for nspawn in children(self.process.pid) for first in children(nspawn)]
        if firsts and self.driver("no-such.service").describe().detail == "there is no unit no-such.service":
            self.leader = firsts[0]
        return bool(self.leader)

    def run(self, *command: str) -> str:
        """Run a command inside, as its root, and give what it printed; whether it failed does not matter."""
        inside = ["nsenter", f"--target={self.leader}", "--mount", "--pid", "--uts", "--net", "--ipc", *command]
        return subprocess.run(inside, check=False, capture_output=True, text=True, timeout=60).stdout

    def systemctl(self, *arguments: str) -> str:
        """As somebody would inside; needs no bus."""
        return self.run("systemctl", "--no-pager", *arguments)

    def show(self, unit: str) -> dict[str, str]:
        """What systemctl says of a unit."""
        return dict(line.partition("=")[::2] for line in self.systemctl("show", unit).splitlines())

    def path(self, inside: str) -> Path:
        """A file of the machine, seen from here."""
        return Path(f"/proc/{self.leader}/root{inside}")

    def unit(
        self, script: str = SERVES, *, name: str | None = None, start: bool = True, unit: str = "", service: str = ""
    ) -> str:
        """Make a unit that runs a script of the shell, with further lines for its two sections; give its name."""
        name = name or f"server-{next(_numbers)}.service"
        text = f'[Unit]\n{unit}\n[Service]\nEnvironment=API_KEY={SECRET}\nExecStart=/bin/sh -c "{script}"\n{service}\n'
        folder = self.path("/run/systemd/system")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="ascii")
        self.systemctl("daemon-reload")
        if start:
            self.systemctl("start", name)
        return name

    def remove(self, name: str) -> None:
        """Stop a unit and take its file away."""
        self.systemctl("kill", "--signal=KILL", name)
        self.systemctl("stop", name)
        self.path(f"/run/systemd/system/{name}").unlink(missing_ok=True)
        self.systemctl("daemon-reload")
        self.systemctl("reset-failed", name)

    def driver(self, unit: str, **settings: Any) -> SystemdDriver:
        """A driver for a unit of this machine."""
        given: Mapping[str, Any] = {
            "kind": "systemd", "unit": unit, "bus_address": f"unix:path={self.bus}", "timeout_seconds": 30.0
        }  # fmt: skip
        return SystemdSettings.model_validate({**given, **settings}).make()

    def end(self) -> None:
        """End its first process, and with it all others; what it wrote is gone."""
        if self.process is not None and self.process.poll() is None:  # else its number may be somebody else's by now
            for pid in [self.leader] if self.leader else children(self.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder)


@contextmanager
def alone() -> Iterator[None]:
    """One run of the tests at a time builds and boots: the container locks its root. Raises `NotUp`."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "systemd-root.lock").open("w") as lock:

        def taken() -> bool:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            return False

        if not eventually(taken, BUILD_SECONDS):
            raise NotUp("another run of the tests has it")
        yield


@pytest.fixture(scope="session")
def systemd_machine() -> Iterator[Machine]:
    """A machine that answers, or a skip that says why there is none."""
    if reason := why_not():
        need(PART, reason)
    folder = Path(tempfile.mkdtemp(prefix="systemd-"))
    folder.chmod(0o755)  # so that another user comes as far as the socket
    machine = Machine(folder)
    try:
        try:
            with alone():
                build_root()
                machine.start()
                need(PART, None)
                yield machine
        except NotUp as error:
            need(PART, " ".join(str(error).split()))
    finally:
        machine.end()


@dataclass
class SystemdStage:
    """One unit."""

    machine: Machine
    name: str
    secrets: tuple[str, ...] = field(default=(SECRET,))

    @property
    def driver(self) -> SystemdDriver:
        """By the name of the unit."""
        return self.machine.driver(self.name)

    def kill_outside(self) -> None:
        """Somebody else restarts it."""
        self.machine.systemctl("restart", self.name)

    def vanish(self) -> None:
        """Stopped and removed; systemd stays."""
        self.machine.remove(self.name)


@pytest.fixture
def systemd_stage(systemd_machine: Machine) -> Iterator[SystemdStage]:
    """A unit that serves."""
    stage = SystemdStage(systemd_machine, systemd_machine.unit())
    yield stage
    stage.vanish()
