"""May I act? The safety ladder as one pure decision: no clock, no I/O, the standard library only.

The rungs stand in `LADDER` in the order in which they are tried; the first that says no is the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from remediator.budget import budget_remaining, called, cooldown_until
from remediator.group import is_fresh, open_in_group, others_serving, settling
from remediator.model import (
    OVERRULABLE,
    WAITS,
    Decision,
    Fleet,
    History,
    Limits,
    Member,
    Order,
    Reason,
    Request,
    Verb,
    View,
)
from remediator.storm import is_storm, troubled_groups

STUCK = "stuck"
GRACE_SECONDS = 1200.0
"""The start-up grace when the exporter names none."""


@dataclass(frozen=True, slots=True)
class _World:
    """Everything a rung may look at; `member` is looked up once."""

    request: Request
    history: History
    fleet: Fleet
    limits: Limits
    now: float

    @property
    def member(self) -> Member:
        return self.fleet.members[self.request.backend]

    @property
    def view(self) -> View | None:
        return self.member.view

    @property
    def overruled(self) -> frozenset[Reason]:
        """The rungs that a person answers for now; two attempts at once in a group are nobody's to allow."""
        order = self.request.order
        if order is None or not 0 <= self.now - order.at < self.limits.overrule_seconds:
            return frozenset()
        return order.overrules - ({Reason.GROUP_BUSY} if open_in_group(self.history, self.member.group) else set())


_Rung = Callable[[_World], str | None]
"""A rung: the sentence with which it says no, or None."""


def decide(request: Request, history: History, fleet: Fleet, limits: Limits, now: float) -> Decision:
    """Whether `request` may be acted on. `now` is Unix seconds, read once by the caller."""
    return _climb(LADDER, _World(request, history, fleet, limits, now))


def confirm(request: Request, history: History, fleet: Fleet, limits: Limits, now: float) -> Decision:
    """The rungs that can change while evidence is gathered, once more, immediately before the driver is called."""
    return _climb(CONFIRMATION, _World(request, history, fleet, limits, now))


def _climb(rungs: Iterable[tuple[Reason, _Rung]], world: _World) -> Decision:
    overruled = {}
    for reason, rung in rungs:
        no = rung(world)
        if no is None:
            continue
        if reason in OVERRULABLE and reason in world.overruled:
            overruled[reason] = no
            continue
        if reason not in WAITS:
            return Decision(Verb.REFUSE, reason, no)
        if reason in (Reason.NOT_CONFIRMED, Reason.STARTING) and _left_stuck(world):
            return Decision(Verb.REFUSE, reason, f"{no}; it was stuck and is not any more")
        if max(0.0, world.now - world.request.created_at) >= world.limits.request_expires_seconds:
            return Decision(Verb.REFUSE, reason, f"{no}; the request has waited long enough")
        return Decision(Verb.WAIT, reason, no)
    sentence = world.view.sentence if world.view else ""
    return Decision(Verb.ACT, Reason.ACT, _said(world.request.order, sentence, overruled), frozenset(overruled))


def _said(order: Order | None, sentence: str, overruled: Mapping[Reason, str]) -> str:
    """Why it is acted on: the exporter's sentence, who asked for it, and what he overruled."""
    if order is None:
        return sentence
    noes = "".join(f"; overruled {reason}: {no}" for reason, no in overruled.items())
    return f"asked for by {order.who}: {order.why}{noes}; {sentence}"


def is_proven_stuck(view: View | None, limits: Limits) -> bool:
    """Whether the exporter says `stuck` from a fresh observation."""
    return view is not None and view.verdict == STUCK and is_fresh(view, limits)


def _left_stuck(world: _World) -> bool:
    view = world.view
    return world.request.seen_stuck and view is not None and view.verdict != STUCK and is_fresh(view, world.limits)


def _unknown_backend(world: _World) -> str | None:
    if world.request.backend in world.fleet.members:
        return None
    return "no backend of this name is configured here"


def _not_opted_in(world: _World) -> str | None:
    if not world.request.restart_asked:
        return "the alert is not labelled remediation: restart"
    if STUCK not in world.member.restart_on:
        return "restart_on does not name stuck"
    return None


def _held(world: _World) -> str | None:
    hold = world.history.holds.get(world.request.backend)
    if hold is None or (hold.until is not None and world.now >= hold.until):
        return None
    return f"held by {hold.who}: {hold.why}"


def _in_progress(world: _World) -> str | None:
    if any(a.backend == world.request.backend and a.ended_at is None for a in world.history.attempts):
        return "an attempt is under way"
    return None


def _already_restarted(world: _World) -> str | None:
    before, now = world.request.identity_noted, world.request.identity_now
    if before is not None and now is not None and before != now:
        return f"the identity was {before} when the request came and is {now} now"
    return None


def _evidence_unavailable(world: _World) -> str | None:
    if world.view is None:
        return "no exporter tells anything about it"
    if world.request.identity_noted is None or world.request.identity_now is None:
        # Without an identity nobody could tell afterwards whether it was restarted.
        return f"the driver cannot tell its identity: {world.request.identity_detail or 'no reason given'}"
    return None


def _not_confirmed(world: _World) -> str | None:
    view = world.view
    assert view is not None
    if view.verdict not in (STUCK, "starting"):
        return f"the exporter says {view.verdict}"
    if not is_fresh(view, world.limits):
        age = "of unknown age" if view.age_seconds is None else f"{view.age_seconds:.0f} s old"
        return f"the exporter's last observation is {age}"
    if world.request.running_now is False:
        # What does not run cannot be stuck: somebody stopped it, or the driver's settings name something else.
        return "the driver says that it does not run, and the exporter reads it"
    return None


def _starting(world: _World) -> str | None:
    view = world.view
    assert view is not None
    if view.verdict == "starting":
        return "the exporter says starting"
    if view.last_progress_age_seconds is not None or view.last_answer_age_seconds is not None:
        return None
    grace = view.startup_grace_seconds if view.startup_grace_seconds is not None else GRACE_SECONDS
    births = [view.start_time, *(a.called_at for a in called(world.history.attempts, world.request.backend))]
    born = max((at for at in births if at is not None), default=None)
    if born is not None and world.now - born < grace:
        return f"it has done nothing yet and is within its start-up grace of {grace:.0f} s"
    return None


def _cooldown(world: _World) -> str | None:
    until = cooldown_until(world.history.attempts, world.request.backend, world.limits, world.now)
    if until is not None and world.now < until:
        return f"{until - world.now:.0f} s of the cooldown are left"
    return None


def _budget_exhausted(world: _World) -> str | None:
    if budget_remaining(world.history, world.request.backend, world.limits, world.now) > 0:
        return None
    return "the restart budget is used up, until a person resets it"


def _group_busy(world: _World) -> str | None:
    if (under_way := open_in_group(world.history, world.member.group)) is not None:
        return f"an attempt on {under_way.backend} of the same group is under way"
    if (last := settling(world.history, world.member.group, world.limits, world.now)) is not None:
        return f"the group settles after the restart of {last.backend}"
    return None


def _below_minimum_healthy(world: _World) -> str | None:
    if world.view is None or world.view.wholly_stuck:
        # It serves nothing, so that restarting it takes nothing away.
        return None
    serving, wanted = others_serving(world.fleet, world.member, world.limits)
    if serving >= wanted:
        return None
    return f"a part of it still works, and only {serving} of the {wanted} others that must be healthy are"


def _storm(world: _World) -> str | None:
    storm = world.history.storm
    if storm is not None and storm.overridden:
        return None
    troubled, groups = troubled_groups(world.fleet)
    if storm is None and not is_storm(troubled, groups):
        return None
    return f"{troubled} of {groups} groups are in trouble at once"


def _advise_only(world: _World) -> str | None:
    return None if world.fleet.mode == "restart" else "mode is advise: it would be restarted now"


LADDER: tuple[tuple[Reason, _Rung], ...] = (
    (Reason.UNKNOWN_BACKEND, _unknown_backend),
    (Reason.NOT_OPTED_IN, _not_opted_in),
    (Reason.HELD, _held),
    (Reason.IN_PROGRESS, _in_progress),
    (Reason.ALREADY_RESTARTED, _already_restarted),
    (Reason.EVIDENCE_UNAVAILABLE, _evidence_unavailable),
    (Reason.NOT_CONFIRMED, _not_confirmed),
    (Reason.STARTING, _starting),
    (Reason.COOLDOWN, _cooldown),
    (Reason.BUDGET_EXHAUSTED, _budget_exhausted),
    (Reason.GROUP_BUSY, _group_busy),
    (Reason.BELOW_MINIMUM_HEALTHY, _below_minimum_healthy),
    (Reason.STORM, _storm),
    (Reason.ADVISE_ONLY, _advise_only),
)
"""The safety ladder, in its order."""

CONFIRMATION = tuple(
    (reason, rung)
    for reason, rung in LADDER
    if reason
    in (
        Reason.UNKNOWN_BACKEND,
        Reason.HELD,
        Reason.ALREADY_RESTARTED,
        Reason.EVIDENCE_UNAVAILABLE,
        Reason.NOT_CONFIRMED,
        Reason.STARTING,
    )
)
