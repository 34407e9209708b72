"""Cooldown and restart budget: pure arithmetic over past attempts. Only attempts that called the driver count.

Times are Unix seconds, because they outlive the process. A clock that was set back makes an age negative: it then
counts as zero, so that the doubt ends in waiting.
"""

from __future__ import annotations

from collections.abc import Iterable

from remediator.model import History, Limits, Outcome, PastAttempt

DAY_SECONDS = 86400.0


def called(attempts: Iterable[PastAttempt], backend: str) -> list[PastAttempt]:
    """The attempts on `backend` that called its driver, oldest first."""
    own = [a for a in attempts if a.backend == backend and a.called_at is not None]
    return sorted(own, key=lambda a: a.called_at or 0.0)


def cooldown_until(attempts: Iterable[PastAttempt], backend: str, limits: Limits, now: float) -> float | None:
    """When the cooldown ends; None without an attempt in the last day.

    It counts from the outcome of the last attempt and doubles with each one before it, back to a recovery that
    lasted `cooldown_forgotten_after_seconds`.
    """
    own = [a for a in called(attempts, backend) if _age(a.called_at, now) < DAY_SECONDS]
    if not own or own[-1].ended_at is None:
        return None
    doublings = 0
    for older, younger in zip(own[-2::-1], own[:0:-1], strict=True):
        lasted = (younger.called_at or 0.0) - (older.ended_at or 0.0)
        if older.outcome is Outcome.RECOVERED and lasted >= limits.cooldown_forgotten_after_seconds:
            break
        doublings += 1
    ended = min(own[-1].ended_at, now)
    return ended + limits.cooldown_seconds * 2.0**doublings


def budget_remaining(history: History, backend: str, limits: Limits, now: float) -> int:
    """How many more calls the budget allows now; 0 while it is latched."""
    if backend in history.latched:
        return 0
    reset_at = history.budget_reset_at.get(backend)
    own = called(history.attempts, backend)
    ages = [_age(a.called_at, now) for a in own if reset_at is None or (a.called_at or 0.0) > reset_at]
    in_window = sum(1 for age in ages if age < limits.budget_window_seconds)
    in_day = sum(1 for age in ages if age < DAY_SECONDS)
    return max(0, min(limits.budget_attempts - in_window, limits.daily_budget_attempts - in_day))


def _age(at: float | None, now: float) -> float:
    return max(0.0, now - at) if at is not None else 0.0
