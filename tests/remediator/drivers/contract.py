"""What a test of the contract needs of a driver: a stage with a real process on it. Every kind has one.

To add a kind: write a fixture that gives a `Stage`, name it in `STAGES`, and import it in this folder's conftest.py.
A stage whose real part cannot be had calls `tests.realparts.need`, which skips its tests with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from remediator.drivers import Driver

STAGES = {
    "command": "command_stage",
    "docker": "docker_stage",
    "kubernetes": "kubernetes_stage",
    "systemd": "systemd_stage",
}
"""Kind of driver to the name of the fixture that gives its stage."""


class Stage(Protocol):
    """One real server process under its real supervisor, and a driver that is configured for it."""

    @property
    def driver(self) -> Driver:
        """The driver; `timeout_seconds` is at most a minute, so that a broken one does not hold the tests."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that no detail may show: what the settings, the environment or the server's arguments hold."""

    def kill_outside(self) -> None:
        """Somebody else replaces the process: returns when a new one runs."""

    def vanish(self) -> None:
        """Take away what the driver is configured for: unit, container, object; its supervisor stays."""


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether something comes true: real processes take their time."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
