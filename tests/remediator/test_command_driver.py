"""The command driver, with real processes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from remediator.drivers import DriverFailed
from remediator.drivers.command import CommandDriver, run

PYTHON = sys.executable


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that waits to be reaped by init counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def eventually(what: object, seconds: float = 5.0) -> bool:
    """Whether something comes true: real processes take their time."""
    assert callable(what)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if what():
            return True
        time.sleep(0.01)
    return False


def test_restart_runs_the_command(tmp_path: Path) -> None:
    """Exit status 0 is success."""
    mark = tmp_path / "mark"
    CommandDriver(("touch", str(mark)), ("true",)).restart(5.0)
    assert mark.exists()


def test_identity_is_the_first_line() -> None:
    """White space and further lines do not count."""
    found = CommandDriver(("true",), ("printf", r"\n  life-7  \nmore\n")).describe()
    assert (found.identity, found.running) == ("life-7", None)


@pytest.mark.parametrize(
    ("command", "detail"),
    [
        (("true",), "true printed nothing"),
        (("false",), "false failed with exit status 1"),
        (("/no/such/program",), "the program /no/such/program does not exist"),
        (("/etc/passwd",), "the program /etc/passwd may not be run"),
    ],
)
def test_an_identity_that_cannot_be_told_says_why(command: tuple[str, ...], detail: str) -> None:
    """No identity is an answer with a reason, never an exception."""
    found = CommandDriver(("true",), command).describe()
    assert (found.identity, found.detail) == (None, detail)


def test_no_shell_reads_the_arguments(tmp_path: Path) -> None:
    """Quotes, semicolons and variables arrive as they were written."""
    hostile = f"$(touch {tmp_path}/a); touch {tmp_path}/b `touch {tmp_path}/c` $HOME && *"
    assert run(("printf", "%s", hostile), 5.0).decode() == hostile
    assert not list(tmp_path.iterdir())


def test_the_environment_is_minimal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret in our environment does not reach the command."""
    monkeypatch.setenv("STALLWATCH_SECRET", "hunter2")
    names = {line.split(b"=")[0] for line in run(("env",), 5.0).splitlines()}
    assert names <= {b"PATH", b"LANG", b"HOME", b"USER"}
    assert run(("pwd",), 5.0) == b"/\n"


def test_standard_input_is_empty() -> None:
    """A command that asks a question gets no answer, rather than a terminal."""
    assert run(("cat",), 5.0) == b""


@pytest.mark.parametrize(
    ("command", "reason", "detail"),
    [
        (("sh", "-c", "exit 3"), "exit_status", "sh failed with exit status 3"),
        (("sh", "-c", "echo working; echo no such unit >&2; exit 5"), "exit_status",
         "sh failed with exit status 5: no such unit"),
        (("sh", "-c", "kill -9 $$"), "exit_status", "sh failed with signal 9"),
        (("/no/such/program",), "not_found", "the program /no/such/program does not exist"),
        (("/etc/passwd",), "no_permission", "the program /etc/passwd may not be run"),
        (("echo", "a\0b"), "error", "the program echo cannot be run: embedded null byte"),
    ],
)  # fmt: skip
def test_failures_are_told_apart(command: tuple[str, ...], reason: str, detail: str) -> None:
    """Every way to fail has its reason and one line for a person."""
    with pytest.raises(DriverFailed) as caught:
        CommandDriver(command, ("true",)).restart(5.0)
    assert (caught.value.reason, str(caught.value)) == (reason, detail)


def test_the_whole_process_group_is_killed_at_the_deadline(tmp_path: Path) -> None:
    """A command that hangs, and what it has started, are both gone; nobody waits longer than the deadline."""
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 60 & echo $! $$ > {pids}; wait; sleep 60"
    began = time.monotonic()
    with pytest.raises(DriverFailed) as caught:
        CommandDriver(("sh", "-c", script), ("true",)).restart(0.5)
    assert time.monotonic() - began < 3.0
    assert (caught.value.reason, str(caught.value)) == ("deadline", "sh did not end within 0.5 s and was killed")
    for pid in map(int, pids.read_text(encoding="ascii").split()):
        assert eventually(lambda pid=pid: is_gone(pid))


def test_a_server_left_in_the_background_is_neither_waited_for_nor_killed(tmp_path: Path) -> None:
    """A restart script may start the server itself and leave it running with our pipe open."""
    pid_file = tmp_path / "pid"
    began = time.monotonic()
    CommandDriver(("sh", "-c", f"sleep 30 & echo $! > {pid_file}"), ("true",)).restart(10.0)
    took = time.monotonic() - began
    pid = int(pid_file.read_text(encoding="ascii"))
    try:
        assert took < 3.0
        assert not is_gone(pid)
    finally:
        os.kill(pid, 9)


def test_endless_output_neither_blocks_nor_fills_memory() -> None:
    """The beginning is kept, the rest is drained and dropped, and the last words stay readable."""
    script = "import sys; sys.stdout.write('x' * 5_000_000 + '\\nlast words\\n'); sys.exit(1)"
    with pytest.raises(DriverFailed, match="last words"):
        run((PYTHON, "-c", script), 20.0)
    assert len(run((PYTHON, "-c", "print('x' * 5_000_000)"), 20.0)) == 64 * 1024


def test_binary_output_is_made_printable() -> None:
    """What a person reads is one printable line."""
    with pytest.raises(DriverFailed) as caught:
        run(("sh", "-c", r"printf '\377\001bad'; exit 1"), 5.0)
    assert str(caught.value) == "sh failed with exit status 1: \ufffd?bad"
