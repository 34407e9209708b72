"""Readings that failed: for how long, and what may be concluded from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from exporter.model import Failure, FailureReason, Limits, Verdict

NO_METRICS_STATUS = frozenset({401, 403, 404, 405, 501})
"""A status by which a server says that it has no metrics for us, now or ever."""
BUSY_FACTOR = 3.0
"""A server that was working when it fell silent is given three times as long: some answer only between batches."""

_NO_METRICS_REASONS = frozenset(
    {FailureReason.MISSING_SERIES, FailureReason.EMPTY, FailureReason.UNPARSABLE, FailureReason.TOO_LARGE}
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """The failures since the last good page; instants are monotonic seconds, None: no such failure."""

    since: float | None = None
    refused_since: float | None = None  # of the uninterrupted run of refused connections
    loading_since: float | None = None  # since it first said so, in one life of the process
    refused: bool = False  # refused at least once since the last good page
    until: float = 0.0

    def add(self, failure: Failure) -> Trouble:
        """Take one more failure."""
        refused, loading = (failure.reason is reason for reason in (FailureReason.REFUSED, FailureReason.LOADING))
        loads_since = failure.began_at if loading and self.loading_since is None else self.loading_since
        return replace(
            self,
            since=failure.began_at if self.since is None else self.since,
            refused_since=(failure.began_at if self.refused_since is None else self.refused_since) if refused else None,
            loading_since=None if refused else loads_since,
            refused=self.refused or refused,
            until=failure.at,
        )

    def loading(self, failure: Failure, limits: Limits) -> bool:
        """Whether it says that it is loading, and has still time to do so."""
        if failure.reason is not FailureReason.LOADING or self.loading_since is None:
            return False
        return self.until - self.loading_since < limits.startup_grace_seconds

    def conclude(
        self, failure: Failure, measured_before: bool, worked: bool, limits: Limits
    ) -> tuple[Verdict, str] | None:
        """Return the verdict that the failures prove by now, or None while they are shorter than their limit.

        `measured_before`: there was a good page. `worked`: the last good page showed work in flight.
        """
        if self.since is None:
            return None
        lasted = self.until - self.since
        if _has_no_metrics(failure):
            if measured_before and lasted < limits.down_after_seconds:
                return None
            return Verdict.UNMEASURED, failure.reason.value
        if self.refused_since is not None:
            refused_for = self.until - self.refused_since
            return (Verdict.DOWN, "refused") if refused_for >= limits.down_after_seconds else None
        if lasted >= limits.unreachable_after_seconds * (BUSY_FACTOR if worked else 1.0):
            return Verdict.UNREACHABLE, "health_answers_metrics_do_not" if failure.alive else failure.reason.value
        return None


NO_TROUBLE = Trouble()
"""The last reading was good."""


def _has_no_metrics(failure: Failure) -> bool:
    if failure.alive is False:
        return False
    if failure.reason is FailureReason.HTTP_ERROR:
        return failure.status in NO_METRICS_STATUS
    return failure.reason in _NO_METRICS_REASONS
