"""Watches the identities of all backends: a restart that was not ours means that somebody else decides as well.

Two watchdogs that did not know of each other took each other's restarts for new failures. One decider; the others are
counted, shown and alerted.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from remediator.config import Backend
from remediator.database import JournalFailed
from remediator.drivers import Description
from remediator.parts import Parts
from stallwatch.logs import get_logger

LOOK_SECONDS = 60.0
LOOKERS = 4


class Lives:
    """The loop that looks. An identity that cannot be had now is neither a restart nor forgotten.

    The last life that the journal knows counts after a start of this program, too; a first sight is none.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._known: dict[str, str] = {}
        self._log = get_logger("lives")

    def run(self) -> None:
        """Look once a minute until the program is to end; an error costs one round."""
        parts = self._parts
        with ThreadPoolExecutor(LOOKERS, thread_name_prefix="lives") as pool:
            while not parts.stop.is_set():
                try:
                    self.step(pool)
                except JournalFailed as error:
                    self._log.error("round failed", error=str(error))
                except Exception:
                    self._log.exception("round failed unexpectedly")
                parts.clock.wait(parts.stop, LOOK_SECONDS)

    def step(self, pool: ThreadPoolExecutor) -> None:
        """Look at every backend once. Raises `JournalFailed`; what was not written down is seen again."""
        if not self._known:
            self._known = self._parts.journal.restarts.last_identities()
        backends = list(self._parts.config.backends.values())
        for backend, seen in zip(backends, pool.map(_describe, backends), strict=True):
            if seen.identity is not None:
                self._compare(backend.name, seen.identity)

    def _compare(self, name: str, now: str) -> None:
        before = self._known.get(name)
        if before == now:
            return
        journal, at = self._parts.journal, self._parts.clock.time()
        if before is not None:
            ours = journal.ledger.called_on(name, before)
            if journal.restarts.add(name, before, now, at, ours=ours):
                self._parts.metrics.restarts_seen.labels(name, "us" if ours else "others").inc()
                tell = self._log.info if ours else self._log.warning
                tell("restart seen", backend=name, by="us" if ours else "others", before=before, now=now)
        self._known[name] = now


def _describe(backend: Backend) -> Description:
    return backend.driver.describe()
