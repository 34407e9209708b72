"""What the backends of one group are to each other: pure, the standard library only."""

from __future__ import annotations

from remediator.model import Fleet, History, Limits, Member, PastAttempt, View

HEALTHY = frozenset({"busy", "idle"})


def is_fresh(view: View, limits: Limits) -> bool:
    """Whether the exporter's last observation is young enough to prove anything."""
    if view.age_seconds is None or view.poll_interval_seconds is None:
        return False
    return view.age_seconds <= limits.fresh_polls * view.poll_interval_seconds


def open_in_group(history: History, group: str) -> PastAttempt | None:
    """The attempt that is under way in the group, if one is."""
    return next((past for past in history.attempts if past.group == group and past.ended_at is None), None)


def settling(history: History, group: str, limits: Limits, now: float) -> PastAttempt | None:
    """The attempt after which the group still settles, if there is one. `now` is Unix seconds."""
    for past in history.attempts:
        if past.group != group or past.ended_at is None or past.called_at is None:
            continue
        if now - past.ended_at < limits.group_settle_seconds:
            return past
    return None


def others_serving(fleet: Fleet, member: Member, limits: Limits) -> tuple[int, int]:
    """How many others of its group are seen to be healthy, and how many must be."""
    peers = [m for m in fleet.members.values() if m.group == member.group and m.name != member.name]
    default = limits.minimum_healthy if peers else 0
    wanted = member.minimum_healthy if member.minimum_healthy is not None else default
    seen = [m.view for m in peers if m.view is not None]
    return sum(view.verdict in HEALTHY and is_fresh(view, limits) for view in seen), wanted
