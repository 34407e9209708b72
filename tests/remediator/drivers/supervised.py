"""A supervisor for the command driver's stage: keeps one child alive and can be asked for it. No shell anywhere.

`supervised.py run FOLDER` stays; `identity FOLDER` prints which life this is; `restart FOLDER` replaces the child.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

WAIT_SECONDS = 10.0


def run(folder: Path) -> None:
    """Start a child, and another one whenever it has ended; each life has a number in the file."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    life = 0
    while True:
        life += 1
        child = subprocess.Popen(["sleep", "600"])
        try:
            (folder / "new").write_text(f"{life} {child.pid}", encoding="ascii")
            (folder / "new").rename(folder / "life")
            child.wait()
        finally:
            child.kill()
            child.wait()


def life_of(folder: Path) -> tuple[str, int]:
    """The number of the life and its process id. Ends the program with one line when there is none."""
    try:
        life, pid = (folder / "life").read_text(encoding="ascii").split()
    except FileNotFoundError:
        sys.exit("no server is supervised here")
    return life, int(pid)


def restart(folder: Path) -> None:
    """End the child and wait for the next one."""
    before, pid = life_of(folder)
    os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + WAIT_SECONDS
    while life_of(folder)[0] == before:
        if time.monotonic() > until:
            sys.exit("no new server came up")
        time.sleep(0.01)


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    if what == "run":
        run(where)
    elif what == "identity":
        print("life {} pid {}".format(*life_of(where)))  # noqa: T201
    else:
        restart(where)
