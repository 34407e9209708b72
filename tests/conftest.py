"""CI draws the same examples each time, so that a rare one is found at a desk and not in a landing."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests import realparts

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end which real parts were used, and why one was not."""
    if lines := realparts.table():
        terminalreporter.section("real parts")
        for line in lines:
            terminalreporter.write_line(line)
