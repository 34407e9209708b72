"""Restarts by a command of the user's: an argument list, never a shell. ssh is covered by this too.

The command gets no terminal, no input and hardly any environment; it stands in a process group of its own, which is
killed as a whole at the deadline. A server that the command leaves running in the background should have its output
redirected: what it writes here is thrown away.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from remediator.drivers import Command, Description, DriverFailed, check_same
from stallwatch.settings import Seconds, Strict

IDENTITY_SECONDS = 10.0
KEPT_BYTES = 64 * 1024
TAIL_BYTES = 4096
LINE_CHARACTERS = 300
LAST_WORDS_SECONDS = 0.5
"""How long output may still arrive after the command has ended; a child in the background may hold it open for ever."""
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class CommandSettings(Strict):
    """Restart by a command; `identity` prints one line that differs from life to life of the server process."""

    kind: Literal["command"]
    restart: Command
    identity: Command
    timeout_seconds: Seconds = 60.0

    def make(self) -> CommandDriver:
        """The driver that these settings describe."""
        return CommandDriver(tuple(self.restart), tuple(self.identity), self.timeout_seconds)


@dataclass(frozen=True, slots=True)
class CommandDriver:
    """`restart` and `identity` are argument lists; the first line that `identity` prints is the identity."""

    restart_command: Sequence[str]
    identity_command: Sequence[str]
    timeout_seconds: float = 60.0
    kind: str = "command"

    @property
    def programs(self) -> Sequence[str]:
        """Both programs."""
        return (self.restart_command[0], self.identity_command[0])

    def describe(self) -> Description:
        """Ask the identity command. `running` is not known to this driver."""
        try:
            output = run(self.identity_command, IDENTITY_SECONDS)
        except DriverFailed as failure:
            return Description(None, None, failure.detail)
        line = first_line(output)
        if not line:
            return Description(None, None, f"{self.identity_command[0]} printed nothing")
        return Description(line, None)

    def restart(self, deadline_seconds: float, identity: str | None = None) -> None:
        """Run the restart command; anything but exit status 0 within the deadline raises `DriverFailed`."""
        if identity is not None:
            began = time.monotonic()
            check_same(identity, self.describe().identity)
            deadline_seconds -= time.monotonic() - began
        run(self.restart_command, deadline_seconds)


def first_line(output: bytes) -> str:
    """The first line that is not empty, printable and short."""
    for line in output.decode("utf-8", "replace").splitlines():
        text = "".join(c if c.isprintable() else "?" for c in line.strip())
        if text:
            return text[:LINE_CHARACTERS]
    return ""


def last_line(output: bytes) -> str:
    """The last line that is not empty: where programs say why they failed."""
    lines = [line for line in output.splitlines() if line.strip()]
    return first_line(lines[-1]) if lines else ""


def run(command: Sequence[str], seconds: float) -> bytes:
    """Run `command` and return the first 64 KiB of its output, standard error included. Raises `DriverFailed`."""
    program = command[0]
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=_environment(),
            start_new_session=True,
        )
    except FileNotFoundError:
        raise DriverFailed("not_found", f"the program {program} does not exist") from None
    except PermissionError:
        raise DriverFailed("no_permission", f"the program {program} may not be run") from None
    except (OSError, ValueError) as error:
        raise DriverFailed("error", f"the program {program} cannot be run: {error}") from None
    output = _Output(process)
    try:
        status = process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        _kill_group(process)
        raise DriverFailed("deadline", f"{program} did not end within {seconds:.3g} s and was killed") from None
    said, tail = output.collect()
    if status != 0:
        how = f"exit status {status}" if status > 0 else f"signal {-status}"
        words = last_line(tail)
        raise DriverFailed("exit_status", f"{program} failed with {how}" + (f": {words}" if words else ""))
    return said


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("HOME", "USER") if name in os.environ}
    return {"PATH": os.environ.get("PATH", DEFAULT_PATH), "LANG": "C.UTF-8", **kept}


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended by itself at the last moment
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # uninterruptible: nothing can end it, nobody must wait
        process.wait(LAST_WORDS_SECONDS)


class _Output:
    """Drains the command's output in a thread, for as long as anybody holds it open, and keeps its beginning."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._stream = process.stdout
        self._kept = bytearray()
        self._tail = b""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, name="command-output", daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        with self._stream as stream:
            while chunk := os.read(stream.fileno(), 65536):
                with self._lock:
                    self._kept += chunk[: KEPT_BYTES - len(self._kept)]
                    self._tail = (self._tail + chunk)[-TAIL_BYTES:]

    def collect(self) -> tuple[bytes, bytes]:
        """The first 64 KiB and the last 4 KiB of what was said until now."""
        self._thread.join(LAST_WORDS_SECONDS)
        with self._lock:
            return bytes(self._kept), self._tail
