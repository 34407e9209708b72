"""The storm rule: many failure domains in trouble at once have one cause, and restarting servers is not its cure. Pure.

Groups are counted, not backends: the replicas of one model fail together for reasons of their own.
"""

from __future__ import annotations

from remediator.model import Fleet, Limits, Storm

TROUBLED = frozenset({"stalled", "stuck", "unreachable"})
SHARE = 0.3


def troubled_groups(fleet: Fleet) -> tuple[int, int]:
    """(groups with a member that is stalled, stuck or unreachable, all groups). Not seen is not in trouble."""
    groups = {member.group for member in fleet.members.values()}
    troubled = {m.group for m in fleet.members.values() if m.view is not None and m.view.verdict in TROUBLED}
    return len(troubled), len(groups)


def is_storm(troubled: int, groups: int) -> bool:
    """One group: no rule. Two or three: all of them. Four or more: more than the larger of two and 30 %."""
    if groups <= 1:
        return False
    if groups <= 3:
        return troubled == groups
    return troubled > max(2.0, SHARE * groups)


def advance(storm: Storm | None, fleet: Fleet, limits: Limits, now: float) -> Storm | None:
    """The storm after another look at the fleet; it lifts `storm_lift_seconds` after the number fell."""
    if is_storm(*troubled_groups(fleet)):
        if storm is None:
            return Storm(since=now, last_over_at=now)
        return Storm(since=storm.since, last_over_at=now, overridden=storm.overridden)
    if storm is None or now - storm.last_over_at >= limits.storm_lift_seconds:
        return None
    return storm
