"""Is a restarted backend well again? Pure."""

from __future__ import annotations

from remediator.group import is_fresh
from remediator.model import Limits, View

NOT_WELL = frozenset({"stuck", "failing", "down", "unreachable"})
UP = frozenset({"starting", "busy", "idle"})
UNPROVEN = "recovered, unproven"


def recovered(view: View, since_seconds: float, limits: Limits) -> str | None:
    """How it is known that the new process works, as a sentence; None while it is not.

    `since_seconds` is the time since the restart was over, measured before the exporter was asked. An answer or
    progress must be younger. A backend that is never asked counts as recovered by a good page, which proves less.
    """
    if not is_fresh(view, limits) or view.age_seconds is None or view.age_seconds >= since_seconds:
        return None
    if view.verdict in NOT_WELL:
        return None
    if view.last_answer_age_seconds is not None and view.last_answer_age_seconds < since_seconds:
        return "it answered after the restart"
    if view.last_progress_age_seconds is not None and view.last_progress_age_seconds < since_seconds:
        return "it made progress after the restart"
    if view.ask_when == "never" and view.verdict in UP:
        return UNPROVEN
    return None
