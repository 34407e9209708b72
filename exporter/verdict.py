"""The verdict of one backend: `advance(state, observation, limits, now) -> (state, question or None)`. Pure.

One observation at a time goes in: a page, a failure, an answer. The rows of `conclude` stand in the order of
their precedence. Every doubt ends in a verdict that never restarts anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from exporter import asking
from exporter.model import (
    Answer,
    Failure,
    Limits,
    Observation,
    Page,
    Question,
    RankKey,
    Resting,
    Verdict,
)
from exporter.progress import RankState
from exporter.state import Judgement, State, in_grace, stuck_after, take_answer, take_page, take_presence, take_resting

PAGES_OF_PROOF = 3
"""A stall is suspected and proven over at least this many good pages."""
MISSES_WHEN_IDLE = 3
_BY_SEVERITY = (Verdict.IDLE, Verdict.BUSY, Verdict.STALLED, Verdict.FAILING, Verdict.BLOCKED, Verdict.STUCK)
_SEVERITY = {verdict: n for n, verdict in enumerate(_BY_SEVERITY)}


def advance(state: State, observation: Observation, limits: Limits, now: float) -> tuple[State, Question | None]:
    """Take one observation; return the new state and a question that must be sent now, or None."""
    question = None
    if isinstance(observation, Page):
        state = take_page(state, observation, limits)
    elif isinstance(observation, Failure):
        state = replace(state, last_failure=observation, trouble=state.trouble.add(observation), resting="")
    elif isinstance(observation, Answer):
        state = take_answer(state, observation)
    elif isinstance(observation, Resting):
        state = take_resting(state, observation)
    else:
        state = take_presence(state, observation)
    judgement = conclude(state, limits, now)
    may_ask = state.asking is None and judgement.verdict not in (Verdict.PROXY, Verdict.PAUSED)
    if isinstance(observation, Page) and may_ask:
        question = asking.choose(state.ranks, limits, now, starting=judgement.verdict is Verdict.STARTING)
        if question:
            asked = asking.sent(state.ranks[question.rank], question)
            state = replace(state, ranks={**state.ranks, question.rank: asked}, asking=question)
    if judgement.verdict is not state.judgement.verdict or state.since_wall is None:
        state = replace(state, since_wall=observation.wall)
    return replace(state, judgement=judgement), question


def conclude(state: State, limits: Limits, now: float) -> Judgement:
    """The table of verdicts; the first row that matches wins."""
    page, failure = state.last_page, state.last_failure
    if state.proxy:
        return Judgement(Verdict.PROXY, "proxy")
    if limits.maintenance:
        return Judgement(Verdict.PAUSED, "maintenance")
    if state.resting:
        return Judgement(Verdict.PAUSED, state.resting)
    if failure is not None:
        return _without_page(state, failure, limits, now)
    if page is None:
        return state.judgement
    if page.reading.asleep:
        return Judgement(Verdict.PAUSED, "asleep")
    if page.paused or page.reading.paused:
        return Judgement(Verdict.PAUSED, "paused")
    if in_grace(state, limits, now):
        return Judgement(Verdict.STARTING, "new_process")
    return worst(state, limits)[1]


def _without_page(state: State, failure: Failure, limits: Limits, now: float) -> Judgement:
    held = state.judgement
    if state.trouble.loading(failure, limits):
        return Judgement(Verdict.STARTING, "loading")
    found = state.trouble.conclude(failure, state.last_page is not None, _worked(state), limits)
    if found is not None:
        verdict, reason = found
        if verdict is Verdict.DOWN and in_grace(state, limits, now):
            return Judgement(Verdict.STARTING, "refused_after_restart")
        return Judgement(verdict, reason)
    if held.verdict is Verdict.STUCK:
        return Judgement(Verdict.STALLED, "stuck_but_last_reading_failed", held.rank)
    return held


def _worked(state: State) -> bool:
    return any(rank.in_flight for rank in state.ranks.values())


def worst(state: State, limits: Limits) -> tuple[RankKey | None, Judgement]:
    """Judge each rank; the backend takes the worst, so that a healthy rank never hides a frozen one."""
    judged = []
    for key, rank in state.ranks.items():
        verdict, reason = judge_rank(rank, limits, proof_of(state, key, limits))
        judged.append((_SEVERITY[verdict], rank.shown_stall_seconds, rank.misses, key, Judgement(verdict, reason, key)))
    if not judged:
        return None, state.judgement
    _, _, _, key, judgement = max(judged, key=lambda row: row[:4])
    return key, judgement


class Proof(NamedTuple):
    """What proves a rank stuck: so long a stall, and so many misses in a row; infinitely many: nothing does."""

    stall_seconds: float
    misses: float
    live: bool = True


def proof_of(state: State, key: RankKey, limits: Limits) -> Proof:
    """What would prove this rank stuck.

    Without live counters a server that works looks as if it stood, and an ask behind its queue goes unanswered: then
    nobody is convicted while work is in flight. A rank that no question can reach is convicted by its stall alone only
    where a person has opted in with `restart_unconfirmed_after_seconds`.
    """
    rank, limit = state.ranks[key], stuck_after(state, limits)
    if not state.live and rank.in_flight:
        return Proof(limit, math.inf, live=False)
    if asking.can_ask(state.ranks, key, limits):
        return Proof(limit, rank.misses_required)
    unconfirmed = limits.restart_unconfirmed_after_seconds
    if unconfirmed is not None and rank.in_flight:
        return Proof(max(limit, unconfirmed), 0)
    return Proof(limit, math.inf)


def judge_rank(rank: RankState, limits: Limits, proof: Proof) -> tuple[Verdict, str]:
    """The verdict and reason of one rank whose process runs, is awake and is past its start-up."""
    latest = rank.latest
    if latest.in_flight:
        deferred = not latest.running and 0 < latest.waiting <= latest.deferred
        suspected = rank.stalled_seconds >= limits.suspect_after_seconds and rank.still_pages >= PAGES_OF_PROOF
        if deferred and suspected and (rank.answers_only or limits.kv_peers):
            return Verdict.BLOCKED, "all_waiting_deferred"
        proven = rank.stalled_seconds >= proof.stall_seconds and rank.still_pages >= PAGES_OF_PROOF
        if proven and rank.misses >= proof.misses:
            return Verdict.STUCK, "stalled_and_unanswered" if proof.misses else "unconfirmed"
        if proven and rank.misses and not proof.live:
            return Verdict.STALLED, "low_confidence"
    elif rank.misses >= proof.misses and rank.unanswered_seconds >= proof.stall_seconds:
        return Verdict.STUCK, "idle_and_unanswered"
    elif rank.server_errors >= MISSES_WHEN_IDLE:
        return Verdict.FAILING, "answers_are_server_errors"
    if rank.misses:
        return Verdict.STALLED, "unanswered"
    if rank.stalled_seconds >= limits.suspect_after_seconds and rank.still_pages >= PAGES_OF_PROOF:
        answers = rank.answers_only and latest.in_flight
        return Verdict.STALLED, "answers_but_requests_do_not_move" if answers else "no_progress"
    return (Verdict.BUSY, "in_flight") if latest.in_flight else (Verdict.IDLE, "nothing_in_flight")


@dataclass(frozen=True, slots=True)
class Shown:
    """The gauges of one backend; None: not measurable, which is not zero."""

    stalled_seconds: float | None
    progress_rate: float | None
    restart_detected: int | None
    misses: int
    misses_required: float  # infinite where nothing can be proven, 0 where none can be had and a person opted in
    stuck_after_seconds: float


def shown(state: State, limits: Limits, now: float) -> Shown:
    """What is exported: held over a short gap, absent for a backend that cannot be measured."""
    unmeasured = state.verdict in (Verdict.PROXY, Verdict.UNMEASURED, Verdict.DOWN, Verdict.UNREACHABLE)
    if unmeasured or state.incarnation is None or not state.ranks:
        return Shown(None, None, None, 0, 1, stuck_after(state, limits))
    key, _ = worst(state, limits)
    recent = state.restarted_at is not None and now - state.restarted_at < limits.restart_hold_seconds
    if key is None:
        return Shown(0.0, state.rate, int(recent), 0, 1, stuck_after(state, limits))
    rank, proof = state.ranks[key], proof_of(state, key, limits)
    return Shown(rank.shown_stall_seconds, state.rate, int(recent), rank.misses, proof.misses, proof.stall_seconds)
