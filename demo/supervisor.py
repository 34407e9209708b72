"""Runs one command, and runs it anew on demand, as an init system would. Linux only (it reads /proc).

`python -m demo.supervisor --state DIR -- COMMAND ...` runs it; beside that, on the same DIR, `restart` and `identity`.
The command and all its descendants end when the supervisor ends, however it ends, and when the process that started
the supervisor ends. A command that ends by itself stays ended until `restart`.
"""

import argparse
import contextlib
import os
import selectors
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from demo.descendants import Descendants, process

_LOOK_SECONDS = 0.1
_MOST_BYTES = 4096


class Supervisor:
    """One child at a time; `DIR/identity` names it while it lives: process id, and start in clock ticks since boot."""

    def __init__(self, state: Path, command: Sequence[str], *, grace_seconds: float) -> None:
        self._running = Descendants(grace_seconds)
        self._identity_file = state / "identity"
        self._command = command
        self._identity = ""

    def start(self) -> None:
        """Run the command. OSError: it cannot be run."""
        pid = self._running.start(self._command)
        born = process(pid)
        self._identity = f"{pid} {born.start_ticks if born else 0}"
        fresh = self._identity_file.with_suffix(".new")
        fresh.write_text(self._identity + "\n", encoding="ascii")
        fresh.replace(self._identity_file)

    def stop(self) -> None:
        """End the command and all its descendants."""
        self._running.end()
        self._identity = ""
        self._identity_file.unlink(missing_ok=True)

    def close(self) -> None:
        """As `stop`, for good."""
        self.stop()
        self._running.close()

    def look(self) -> None:
        """Notice that the command has ended by itself; what it left behind ends too."""
        if self._identity and (status := self._running.ended()) is not None:
            print(f"supervisor: the command ended with status {status}", file=sys.stderr, flush=True)
            self.stop()

    def restart(self, seen: str) -> str:
        """Run the command anew unless the identity is no longer the one `seen`; "ok IDENTITY" or "error WHY"."""
        self.look()  # whoever asks may have seen its end before we have
        if seen == self._identity:
            self.stop()
            try:
                self.start()
            except OSError as error:
                return f"error {self._command[0]}: {error.strerror}"
        return f"ok {self._identity}"


@contextlib.contextmanager
def _socket_path(state: Path) -> Iterator[str]:
    """A path for the control socket that is short however long DIR is: socket paths may have 107 bytes."""
    directory = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/control"
    finally:
        os.close(directory)


def _call(state: Path, message: str, timeout: float) -> str:
    """Send one message to the supervisor of DIR; OSError if there is none or it does not answer in time."""
    with _socket_path(state) as path, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(timeout)
        client.connect(path)
        client.sendall(message.encode() + b"\n")
        return client.recv(_MOST_BYTES).decode().strip()


def _answer(listener: socket.socket, supervisor: Supervisor) -> None:
    client, _ = listener.accept()
    with client, contextlib.suppress(OSError):
        client.settimeout(1.0)
        word, _, seen = client.recv(_MOST_BYTES).decode().strip().partition(" ")
        client.sendall(supervisor.restart(seen).encode() if word == "restart" else b"ok")


def _known(state: Path) -> str:
    """The identity of the living child, "" if there is none."""
    try:
        identity = (state / "identity").read_text(encoding="ascii").strip()
        pid, _, ticks = identity.partition(" ")
        found = process(int(pid))
        return identity if found and found.lives and found.start_ticks == int(ticks) else ""
    except (OSError, ValueError):
        return ""


def run(state: Path, command: Sequence[str], *, grace_seconds: float) -> int:
    """Supervise until SIGTERM, SIGINT or the end of the parent process. 2: cannot begin."""
    parent, stopping = os.getppid(), []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: stopping.append(number))
    state.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        _call(state, "hello", 1.0)
        print(f"supervisor: {state} has a supervisor already", file=sys.stderr)
        return 2
    supervisor = Supervisor(state, command, grace_seconds=grace_seconds)
    with _socket_path(state) as path, socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as ready:
        Path(path).unlink(missing_ok=True)
        listener.bind(path)
        listener.listen()
        ready.register(listener, selectors.EVENT_READ)
        try:
            begun = supervisor.restart("")
            if begun.startswith("error"):
                print(f"supervisor: {begun.removeprefix('error ')}", file=sys.stderr)
                return 2
            while not stopping and os.getppid() == parent:
                if ready.select(_LOOK_SECONDS):
                    _answer(listener, supervisor)
                supervisor.look()
        finally:
            supervisor.close()
            Path(path).unlink(missing_ok=True)
    return 0


def restart(state: Path, timeout: float) -> int:
    """Ask the supervisor of DIR to run its command anew; 0 once the new one runs, else 1 and one line."""
    try:
        word, _, rest = _call(state, f"restart {_known(state)}", timeout).partition(" ")
    except TimeoutError:
        word, rest = "error", f"not restarted within {timeout:g} s"
    except OSError:
        word, rest = "error", f"no supervisor answers in {state}"
    if word == "ok" and rest:
        print(rest)
        return 0
    print(f"restart: {rest or 'the supervisor ended'}", file=sys.stderr)
    return 1


def identity(state: Path) -> int:
    """Print the identity of the living child; 1 and one line if there is none."""
    known = _known(state)
    if not known:
        print(f"identity: no child of a supervisor lives in {state}", file=sys.stderr)
        return 1
    print(known)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The three commands."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="demo.supervisor", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, metavar="DIR")
    if words[:1] == ["restart"]:
        parser.add_argument("--timeout", type=float, default=60.0, metavar="S")
        arguments = parser.parse_args(words[1:])
        return restart(arguments.state, arguments.timeout)
    if words[:1] == ["identity"]:
        return identity(parser.parse_args(words[1:]).state)
    parser.add_argument("--grace-seconds", type=float, default=10.0, help="from SIGTERM to SIGKILL")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    arguments = parser.parse_args(words)
    return run(arguments.state, arguments.command, grace_seconds=arguments.grace_seconds)


if __name__ == "__main__":
    sys.exit(main())
