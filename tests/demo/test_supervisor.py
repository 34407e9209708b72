"""The supervisor: one child at a time, started anew on demand, and never anything left behind."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from demo.descendants import process
from tests.demo.pages import Live
from tests.demo.test_as_recorded_on_purpose import restarted

DEADLINE_SECONDS = 15.0
# A process that notes its id in the directory given, starts another that does the same, and lives on; what is
# between runs before. The other one leads a group of its own and does not end on SIGTERM.
TREE = """
import os, pathlib, signal, subprocess, sys, time
there = pathlib.Path(sys.argv[1])
(there / f"{os.getpid()}.pid").touch()
child = "import os, pathlib, signal, sys, time; signal.signal(15, signal.SIG_IGN); os.setpgid(0, 0); " \\
    "pathlib.Path(sys.argv[1], f'{os.getpid()}.pid').touch(); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child, str(there)])
time.sleep(600)
"""


def supervisor(*words: str | Path) -> list[str]:
    """The command line of the supervisor."""
    return [sys.executable, "-m", "demo.supervisor", *map(str, words)]


def wait_for(condition: Callable[[], object]) -> None:
    """Returns once it holds; fails after a while."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lives(pid: int) -> bool:
    """Whether a process runs."""
    found = process(pid)
    return found is not None and found.lives


def started(there: Path) -> set[int]:
    """The processes that noted themselves."""
    return {int(path.stem) for path in there.glob("*.pid")}


def asked(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a sub-command to its end."""
    return subprocess.run(supervisor(*words), capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`supervise("sleep", "9")` supervises a command in `tmp_path`, with a short grace."""
    with ExitStack() as stack:

        def start(*command: str | Path) -> subprocess.Popen[bytes]:
            words = supervisor("--state", tmp_path, "--grace-seconds", "0.5", "--", *command)
            running = stack.enter_context(subprocess.Popen(words, stdin=subprocess.DEVNULL))
            stack.callback(running.terminate)
            wait_for(lambda: (tmp_path / "identity").exists() or running.poll() is not None)
            return running

        yield start


Supervise = Callable[..., subprocess.Popen[bytes]]


def test_a_restart_gives_another_identity_and_leaves_nothing(supervise: Supervise, tmp_path: Path) -> None:
    """The child's whole family is gone, also those that ignore SIGTERM, before the new one starts."""
    supervise(sys.executable, "-c", TREE, tmp_path)
    wait_for(lambda: len(started(tmp_path)) == 2)
    old, before = started(tmp_path), asked("identity", "--state", tmp_path)
    assert before.returncode == 0
    done = asked("restart", "--state", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not any(lives(pid) for pid in old)
    after = asked("identity", "--state", tmp_path)
    assert after.stdout == done.stdout != before.stdout
    wait_for(lambda: len(started(tmp_path)) == 4)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_survives_the_supervisor(supervise: Supervise, tmp_path: Path, number: signal.Signals) -> None:
    """Told to end or killed: child and grandchild end with it."""
    running = supervise(sys.executable, "-c", TREE, tmp_path)
    wait_for(lambda: len(started(tmp_path)) == 2)
    running.send_signal(number)
    assert running.wait(DEADLINE_SECONDS) == (-number if number is signal.SIGKILL else 0)
    wait_for(lambda: not any(lives(pid) for pid in started(tmp_path)))


def test_nothing_survives_the_parent_of_the_supervisor(tmp_path: Path) -> None:
    """If the process that started the supervisor is killed, all below end too."""
    words = supervisor("--state", tmp_path, "--grace-seconds", "0.5", "--", sys.executable, "-c", TREE, tmp_path)
    parent = f"import subprocess, time; subprocess.Popen({words!r}); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", parent]) as running:
        wait_for(lambda: len(started(tmp_path)) == 2)
        running.kill()
    wait_for(lambda: not any(lives(pid) for pid in started(tmp_path)))
    wait_for(lambda: not (tmp_path / "control").exists())


def test_two_restarts_at_once_are_one(supervise: Supervise, tmp_path: Path) -> None:
    """Both asked for the end of the same child: it is restarted once, and both learn of the new one."""
    supervise(sys.executable, "-c", TREE, tmp_path)
    wait_for(lambda: len(started(tmp_path)) == 2)
    words = supervisor("restart", "--state", tmp_path)
    with ExitStack() as stack:
        calls = [stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE)) for _ in range(2)]
        first, second = (call.communicate(timeout=DEADLINE_SECONDS)[0] for call in calls)
    assert first == second
    wait_for(lambda: len(started(tmp_path)) == 4)


def test_a_child_that_ends_has_no_identity_until_a_restart(supervise: Supervise, tmp_path: Path) -> None:
    """As an init system without a restart policy; the restart brings it back."""
    supervise("sh", "-c", f"test -e {tmp_path}/again && exec sleep 600; touch {tmp_path}/again")
    wait_for(lambda: asked("identity", "--state", tmp_path).returncode == 1)
    assert asked("restart", "--state", tmp_path).returncode == 0
    assert asked("identity", "--state", tmp_path).returncode == 0


def test_what_is_wrong_is_one_line(supervise: Supervise, tmp_path: Path) -> None:
    """No supervisor, no child, no such command, a second supervisor: a sentence and a status."""
    for words, status in (
        (("restart", "--state", tmp_path / "none"), 1),
        (("identity", "--state", tmp_path / "none"), 1),
        (("--state", tmp_path / "new", "--", tmp_path / "no-such-command"), 2),
    ):
        done = asked(*words)
        assert (done.returncode, done.stderr.count("\n")) == (status, 1), done.stderr
    supervise("sleep", "600")
    second = asked("--state", tmp_path, "--", "sleep", "600")
    assert (second.returncode, second.stderr.count("\n")) == (2, 1)
    assert asked("identity", "--state", tmp_path).returncode == 0


def test_a_restarted_simulated_server_does_as_recorded(supervise: Supervise, tmp_path: Path, unused_port: int) -> None:
    """Dead, then restarted: refused, then 200 with counters at 0 and another start time, as the real server."""
    words = (sys.executable, "-m", "demo.vllm", "--port", str(unused_port), "--step-seconds", "0.01")
    supervise(*words, "--start-seconds", "0.3")
    live = Live(f"http://127.0.0.1:{unused_port}")
    started_up = live.polls_until(bool)
    assert {poll.error for poll in started_up[:-1]} == {"refused"}
    assert live.ask() == 200
    polls = live.polls(2)
    with suppress(OSError):
        live.post("/demo/die")
    wait_for(lambda: live.poll().error == "refused")
    polls += live.polls(1)
    assert asked("restart", "--state", tmp_path).returncode == 0
    restarted(polls + live.polls_until(bool), start_time=True)
