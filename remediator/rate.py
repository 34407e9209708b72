"""How often something may happen: a bucket that fills at a steady rate."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Rate:
    """At most `burst` at once and `per_second` in the long run. `monotonic` gives seconds; any thread may ask."""

    def __init__(self, per_second: float, burst: float, monotonic: Callable[[], float]) -> None:
        self._per_second, self._burst, self._monotonic = per_second, burst, monotonic
        self._left, self._at = burst, monotonic()
        self._lock = threading.Lock()

    def allows(self) -> bool:
        """Whether one more may happen now; it counts if so."""
        with self._lock:
            now = self._monotonic()
            self._left = min(self._burst, self._left + max(0.0, now - self._at) * self._per_second)
            self._at = now
            if self._left < 1:
                return False
            self._left -= 1
            return True
