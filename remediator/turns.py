"""Writers of one SQLite file, one after the other in the order in which they came.

SQLite's own way is to try again until it works: under a stream of deliveries, beside a loop that writes at once again,
some of them never had their turn.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from remediator.errors import JournalFailed


class Turns:
    """A lock that is handed on in order."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._taken = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have the turn while the block runs. Raises `JournalFailed` after `seconds` of waiting."""
        self._take()
        try:
            yield
        finally:
            self._hand_on()

    def _take(self) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        if mine.wait(self._seconds):
            return
        with self._lock:
            if mine.is_set():  # handed on at the last moment
                return
            self._waiting.remove(mine)
        raise JournalFailed(f"no turn to write within {self._seconds:g} s")

    def _hand_on(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False
