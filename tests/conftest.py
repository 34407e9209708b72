"""CI draws the same examples each time, so that a rare one is found at a desk and not in a landing."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

from stallwatch import logs
from tests import realparts
from tests.browser import chromium

__all__ = ["chromium"]  # one for the whole run: a second Playwright in one thread refuses to start

logs.configure("info")  # to standard error, where no test looks for a program's answer
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A test that starts a program in this process sets up logging for itself, not for the tests after it.

    A thread that it leaves behind may still tell something, then on standard error.
    """
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end which real parts were used, and why one was not."""
    if lines := realparts.table():
        terminalreporter.section("real parts")
        for line in lines:
            terminalreporter.write_line(line)
