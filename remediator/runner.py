"""A thread for each attempt. One that stopped half-way, for whatever reason, is taken up again from the journal."""

from __future__ import annotations

import threading
from collections.abc import Callable

from remediator.attempt import Attempt
from remediator.ledger import StoredAttempt
from remediator.model import Outcome
from remediator.parts import Parts
from stallwatch.logs import get_logger


class Runner:
    """Starts attempts and knows which are under way in this process."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._threads: dict[int, threading.Thread] = {}
        self._log = get_logger("attempt")

    def begin(self, stored: StoredAttempt) -> None:
        """Carry an attempt that was just claimed."""
        attempt = self._attempt(stored)
        if attempt is not None:
            self._spawn(stored, attempt.begin)

    def resume(self) -> None:
        """Take up every open attempt that no thread and no other replica carries. Raises `JournalFailed`."""
        self._threads = {id_: thread for id_, thread in self._threads.items() if thread.is_alive()}
        if self._parts.stop.is_set():
            return
        for stored in self._parts.journal.ledger.left():
            if stored.id not in self._threads:
                attempt = self._attempt(stored)
                if attempt is not None:
                    self._spawn(stored, attempt.resume)

    def join(self, seconds: float) -> bool:
        """Wait for the threads that are in the middle of a step; whether all of them ended."""
        until = self._parts.clock.monotonic() + seconds
        for thread in self._threads.values():
            thread.join(max(0.0, until - self._parts.clock.monotonic()))
        return not any(thread.is_alive() for thread in self._threads.values())

    def _attempt(self, stored: StoredAttempt) -> Attempt | None:
        backend = self._parts.config.backends.get(stored.backend)
        if backend is not None:
            return Attempt(self._parts, backend, stored)
        if self._parts.journal.ledger.take(stored.id) is None:
            return None
        detail = "the backend is not configured any more"
        outcome = Outcome.UNKNOWN if stored.calls else Outcome.WITHDRAWN
        self._parts.journal.ledger.finish(stored.id, outcome, "not_configured", detail, self._parts.clock.time())
        self._log.error(
            "attempt ended", backend=stored.backend, attempt=stored.id, outcome=outcome.value, reason="not_configured"
        )
        return None

    def _spawn(self, stored: StoredAttempt, carry: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                carry()
            except Exception as error:  # the next round takes it up again, from the journal
                self._log.error(
                    "attempt interrupted",
                    backend=stored.backend,
                    attempt=stored.id,
                    error=f"{type(error).__name__}: {error}",
                )

        thread = threading.Thread(target=guarded, name=f"attempt-{stored.id}", daemon=True)
        self._threads[stored.id] = thread
        thread.start()
