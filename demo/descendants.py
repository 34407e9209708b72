"""A command and everything it starts, ended together. Linux only (it reads /proc).

The command leads a session of its own. Its descendants are the members of that session, and whatever else falls to
this process when its parent ends (this process adopts orphans below it). A guard process, outside of all that, ends
the session if this process is killed; run as a script this file is that guard. Standard library only, for its sake.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_LOOK_SECONDS = 0.02
_KILL_SECONDS = 5.0


class Process(NamedTuple):
    """What the kernel says of a process."""

    pid: int
    state: str
    parent: int
    session: int
    start_ticks: int

    @property
    def lives(self) -> bool:
        """Whether any of its threads is more than the record of its end.

        The first thread of a killed process is such a record while another one still holds its sockets: a restarted
        llama-server could not have its port for that moment.
        """
        return self.state not in "ZX" or any(state not in "ZX" for state in _states_of_threads(self.pid))


def _states_of_threads(pid: int) -> list[str]:
    states = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                text = (task / "stat").read_text(encoding="utf-8", errors="replace")
                states.append(text[text.rindex(")") + 2])
    return states


def process(pid: int) -> Process | None:
    """One process, None if there is none of that number."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name comes in parentheses and may contain anything: the fields begin behind the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return Process(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def _processes() -> list[Process]:
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return [one for one in found if one is not None]


def _signal_all(members: Sequence[Process], number: signal.Signals) -> None:
    for member in members:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(member.pid, number)


class Descendants:
    """One command at a time. Not thread-safe; the calling process must not be multi-threaded or wait for any child."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._session = 0
        self._status: int | None = None
        ctypes.CDLL(None, use_errno=True).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
        self._guard = _start_guard()

    def start(self, command: Sequence[str]) -> int:
        """Start the command; returns its process id. OSError: it cannot be run."""
        self._status = None
        self._session = os.posix_spawnp(
            command[0],
            list(command),
            os.environ,
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
            setsid=True,
            setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE],
        )
        self._tell_guard(self._session)
        return self._session

    def ended(self) -> int | None:
        """The exit status of the command (minus the signal that ended it), None while it lives."""
        if self._session and self._status is None:
            pid, status = os.waitpid(self._session, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def end(self) -> None:
        """SIGTERM to all, SIGKILL to those left after the grace; returns when none is left."""
        if not self._session:
            return
        members, deadline = self._members(), time.monotonic() + self._grace_seconds
        _signal_all(members, signal.SIGTERM)
        while members and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            members = self._members()
        deadline = time.monotonic() + _KILL_SECONDS
        while members and time.monotonic() < deadline:
            _signal_all(members, signal.SIGKILL)
            time.sleep(_LOOK_SECONDS)
            members = self._members()
        self._session = 0
        self._tell_guard(0)

    def close(self) -> None:
        """End the command if it still runs, and the guard."""
        self.end()
        with contextlib.suppress(OSError):
            _pipe(self._guard).close()
        self._guard.wait()

    def _members(self) -> list[Process]:
        self.ended()
        own, members = os.getpid(), []
        for one in _processes():
            if one.pid == self._guard.pid or (one.session != self._session and one.parent != own):
                continue
            if one.lives:
                members.append(one)
            elif one.parent == own and one.pid != self._session:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(one.pid, os.WNOHANG)
        return members

    def _tell_guard(self, session: int) -> None:
        line = f"{session}\n".encode()
        try:
            _write(self._guard, line)
        except BrokenPipeError:
            with contextlib.suppress(OSError):
                _pipe(self._guard).close()
            self._guard.wait()
            self._guard = _start_guard()
            _write(self._guard, line)


def _start_guard() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", __file__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def _pipe(guard: subprocess.Popen[bytes]) -> IO[bytes]:
    assert guard.stdin is not None
    return guard.stdin


def _write(guard: subprocess.Popen[bytes], line: bytes) -> None:
    _pipe(guard).write(line)
    _pipe(guard).flush()


def guard() -> None:
    """Read session ids until the writer is gone, then kill what is left of the last one."""
    session = 0
    for line in sys.stdin:
        session = int(line)
    while session:
        members = [one for one in _processes() if one.session == session and one.lives]
        if not members:
            return
        _signal_all(members, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    guard()
