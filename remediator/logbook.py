"""What an attempt writes down: its steps in the journal and in the log, the time since each, its outcome."""

from __future__ import annotations

from remediator.config import Backend
from remediator.drivers import Description
from remediator.lease import MARGIN_SECONDS
from remediator.ledger import StoredAttempt
from remediator.model import Outcome, Step
from remediator.parts import Parts
from stallwatch.logs import get_logger

RENEW_SECONDS = 10.0
"""While nothing is journalled: well within the margin of a lease."""
LOOKED_SECONDS, PROMPT_SECONDS = 20.0, 5.0
"""From the last look at the driver's identity, which may take ten seconds itself, to the journal; and from there to
the call. Whoever needs longer was paused, or has a journal in trouble, and does not know what has happened since.
Both are within the margin of a lease: a call that begins so late is over before another replica may act."""


class HandedOver(Exception):
    """The attempt stays open in the journal, and is taken up at the next start or by another replica."""


class Logbook:
    """The journal's side of one attempt."""

    def __init__(self, parts: Parts, backend: Backend, stored: StoredAttempt) -> None:
        self._parts, self._backend, self._stored = parts, backend, stored
        self._ledger, self._clock = parts.journal.ledger, parts.clock
        self._marks: dict[Step, float] = {}
        self._lease_seconds = lease_seconds(backend)
        self._renewed_at = self._looked_at = self._clock.monotonic()
        self._looked_at_wall = self._clock.time()
        self.log = get_logger("attempt").bind(backend=backend.name, attempt=stored.id)

    def step(self, step: Step, detail: str = "", **values: object) -> None:
        """Journal a step with what became known in it.

        Raises `JournalFailed`, `LeaseLost`, or `Taken` if it stands there.
        """
        now, seconds = self._clock.time(), self._lease_seconds
        self._ledger.step(self._stored.id, step, now, detail, lease_seconds=seconds, **values)
        self.mark(step, detail)

    def call(self, number: int) -> None:
        """Journal that the driver is about to be called for the `number`th time. Raises as `step` does."""
        now, seconds = self._clock.time(), self._lease_seconds
        deadline_at = now + self._backend.driver.timeout_seconds
        self._ledger.call(self._stored.id, number, now, deadline_at, lease_seconds=seconds)
        self.mark(Step.CALLED)

    def looked(self) -> None:
        """From here on the way to the call is measured."""
        self._looked_at, self._looked_at_wall = self._clock.monotonic(), self._clock.time()

    def must_be_prompt(self, seconds: float) -> None:
        """Raise `HandedOver` if more time has passed since `looked`: this process was paused.

        Both clocks are asked: the monotonic one may stand still in a pause, and the other one may be set.
        """
        passed = self._clock.monotonic() - self._looked_at
        passed = max(passed, abs(self._clock.time() - self._looked_at_wall))
        if passed > seconds:
            self.log.error("too late to call the driver", seconds=round(passed, 1))
            raise HandedOver

    def release(self) -> None:
        """Let another replica take the attempt up now. Raises `JournalFailed`."""
        self._ledger.release(self._stored.id)

    def mark(self, step: Step, detail: str = "") -> None:
        """Note when a step was done, and tell the log."""
        self._marks[step] = self._renewed_at = self._clock.monotonic()
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
        """Wait. Raises `HandedOver` when the program is to end, `LeaseLost`, `JournalFailed`."""
        if self._clock.wait(self._parts.stop, seconds):
            raise HandedOver
        if self._clock.monotonic() - self._renewed_at >= RENEW_SECONDS:
            self._ledger.renew(self._stored.id, self._lease_seconds)
            self._renewed_at = self._clock.monotonic()

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


def lease_seconds(backend: Backend) -> float:
    """Longer than anything that an attempt does without writing to the journal."""
    return backend.driver.timeout_seconds + backend.evidence_seconds + MARGIN_SECONDS
