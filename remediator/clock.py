"""Time as an argument: the one place that reads the clocks, so that tests can bring their own."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks and a wait."""

    def monotonic(self) -> float:
        """Seconds for durations within this process."""

    def time(self) -> float:
        """Unix seconds, for what is shown and for what outlives the process."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for `event`, at most `seconds`; whether it is set."""


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Seconds for durations within this process."""
        return time.monotonic()

    def time(self) -> float:
        """Unix seconds."""
        return time.time()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for `event`, at most `seconds`; whether it is set."""
        return event.wait(max(0.0, seconds))
