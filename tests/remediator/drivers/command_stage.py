"""The stage of the command driver: a supervisor of our own with a real child."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from remediator.drivers.command import CommandDriver
from tests.remediator.drivers import supervised
from tests.remediator.drivers.contract import eventually


@dataclass
class CommandStage:
    """The supervisor and its folder."""

    folder: Path
    process: subprocess.Popen[bytes]
    secrets: tuple[str, ...] = ()

    def command(self, what: str) -> tuple[str, ...]:
        """The supervisor's program with its arguments."""
        return (sys.executable, supervised.__file__, what, str(self.folder))

    @property
    def driver(self) -> CommandDriver:
        """Asks the supervisor's own program."""
        return CommandDriver(self.command("restart"), self.command("identity"), timeout_seconds=20.0)

    def kill_outside(self) -> None:
        """As somebody would with the same program."""
        subprocess.run(self.command("restart"), check=True, timeout=20)

    def vanish(self) -> None:
        """The supervisor ends, and its child with it."""
        self.process.terminate()
        self.process.wait(10)
        (self.folder / "life").unlink(missing_ok=True)


@pytest.fixture
def command_stage(tmp_path: Path) -> Iterator[CommandStage]:
    """A supervisor whose first child runs."""
    process = subprocess.Popen([sys.executable, supervised.__file__, "run", str(tmp_path)])
    stage = CommandStage(tmp_path, process)
    try:
        assert eventually((tmp_path / "life").exists)
        yield stage
    finally:
        stage.vanish()
