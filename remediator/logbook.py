"""What an attempt writes down: its steps in the journal and in the log, the time since each, its outcome."""

from __future__ import annotations

from remediator.config import Backend
from remediator.drivers import Description
from remediator.ledger import StoredAttempt
from remediator.model import Outcome, Step
from remediator.parts import Parts
from stallwatch.logs import get_logger


class HandedOver(Exception):
    """The program ends; the attempt stays open in the journal and is taken up at the next start."""


class Logbook:
    """The journal's side of one attempt."""

    def __init__(self, parts: Parts, backend: Backend, stored: StoredAttempt) -> None:
        self._parts, self._backend, self._stored = parts, backend, stored
        self._ledger, self._clock = parts.journal.ledger, parts.clock
        self._marks: dict[Step, float] = {}
        self.log = get_logger("attempt").bind(backend=backend.name, attempt=stored.id)

    def step(self, step: Step, detail: str = "", **values: object) -> None:
        """Journal a step with what became known in it. Raises `JournalFailed`, or `Taken` if it stands there."""
        self._ledger.step(self._stored.id, step, self._clock.time(), detail, **values)
        self.mark(step, detail)

    def call(self, number: int) -> None:
        """Journal that the driver is about to be called for the `number`th time. Raises as `step` does."""
        now = self._clock.time()
        self._ledger.call(self._stored.id, number, now, now + self._backend.driver.timeout_seconds)
        self.mark(Step.CALLED)

    def mark(self, step: Step, detail: str = "") -> None:
        """Note when a step was done, and tell the log."""
        self._marks[step] = self._clock.monotonic()
        self.log.info("attempt step", step=step.value, **({"detail": detail} if detail else {}))

    def has(self, step: Step) -> bool:
        """Whether a step was done, by this process or by one before it."""
        return step in self._marks or step in self._stored.at

    def elapsed(self, step: Step) -> float:
        """Seconds since a step; by the wall clock only for one that another process journalled."""
        if step in self._marks:
            return self._clock.monotonic() - self._marks[step]
        return max(0.0, self._clock.time() - self._stored.at[step])

    def changed(self, description: Description) -> bool:
        """Whether the driver sees another life of the server than the one that was to be restarted."""
        return description.identity is not None and description.identity != self._stored.identity_before

    def wait(self, seconds: float) -> None:
        """Wait. Raises `HandedOver` when the program is to end."""
        if self._clock.wait(self._parts.stop, seconds):
            raise HandedOver

    def finish(self, outcome: Outcome, reason: str, detail: str, *, still_wanted: bool = False) -> None:
        """Journal the outcome; `still_wanted` lets the request wait again."""
        now = self._clock.time()
        self._ledger.finish(self._stored.id, outcome, reason, detail, now, still_wanted=still_wanted)
        if outcome in (Outcome.FAILED, Outcome.UNKNOWN):
            self._parts.metrics.failures.labels(self._backend.name, self._backend.driver.kind, reason).inc()
        write = self.log.info if outcome in (Outcome.RECOVERED, Outcome.WITHDRAWN) else self.log.error
        write("attempt ended", outcome=outcome.value, reason=reason, detail=detail)

    def last_step(self) -> str:
        """The step that the journal shows last."""
        return self._ledger.get(self._stored.id).last_step.value
