"""A verdict's evidence, as a sentence a person can read and as JSON. Pure."""

from __future__ import annotations

import math

from exporter.model import FailureReason, Limits, RankKey, Sample, Verdict
from exporter.progress import AskRecord, RankState
from exporter.state import NOT_YET_OBSERVED, State
from exporter.verdict import Proof, judge_rank, proof_of

_HEALTHY_AGAIN = "No short request is sent while it moves."


def sentence(state: State, limits: Limits) -> str:
    """Say what the verdict rests on, with the values that decided it."""
    key = state.judgement.rank
    rank = state.ranks.get(key) if key is not None else None
    if rank is not None and key is not None:
        return _of_rank(state, limits, key, rank)
    return _of_backend(state, limits)


def _of_backend(state: State, limits: Limits) -> str:
    verdict, failure = state.verdict, state.last_failure
    detail = f" ({failure.detail})" if failure and failure.detail else ""
    lasted = state.trouble.until - state.trouble.since if state.trouble.since is not None else 0.0
    if verdict is Verdict.PROXY:
        return f"A proxy: {state.proxy}. Each reading may come from another server, so only /v1/models is read."
    if verdict is Verdict.PAUSED and state.resting == "left_alone":
        return "Idle, and left alone so that it can fall asleep: reading its metrics would keep it awake. Not watched."
    if verdict is Verdict.PAUSED and state.judgement.reason == "maintenance":
        return "Configured as under maintenance: whatever it does is on purpose."
    if verdict is Verdict.PAUSED:
        return f"The server says that it is {state.judgement.reason}; it stands still on purpose."
    if verdict is Verdict.DOWN:
        return f"Connections have been refused for {lasted:.0f} s (limit {limits.down_after_seconds:.0f} s)."
    if verdict is Verdict.UNREACHABLE:
        also = "/health answers, /metrics does not" if failure and failure.alive else "nothing answers"
        if failure and failure.reason is FailureReason.LOADING:
            also = f"it has said for longer than {limits.startup_grace_seconds:.0f} s that it is loading its model"
        return f"No usable page for {lasted:.0f} s: {failure.reason.value if failure else ''}{detail}; {also}."
    if verdict is Verdict.UNMEASURED:
        if failure is None or state.judgement.reason == NOT_YET_OBSERVED:
            return f"No usable page yet: {failure.reason.value if failure else 'not yet read'}{detail}."
        status = f" with status {failure.status}" if failure.status else ""
        return f"The server answers{status}, but its /metrics cannot be used: {failure.reason.value}{detail}."
    if verdict is Verdict.STARTING:
        if state.judgement.reason == "loading":
            return "The server says that it is loading its model."
        grace = f"at most {limits.startup_grace_seconds:.0f} s"
        return f"A new process that has neither worked nor answered yet; it has time to start ({grace})."
    return f"{verdict.value}: {state.judgement.reason}."


def _of_rank(state: State, limits: Limits, key: RankKey, rank: RankState) -> str:
    name = f"Rank {state.rank_names()[key]}"
    latest = rank.latest
    load = f"{latest.running:.0f} running and {latest.waiting:.0f} waiting"
    proof = proof_of(state, key, limits)
    limit = proof.stall_seconds
    silence = _silence(rank, limits)
    match state.judgement.reason:
        case "stalled_and_unanswered":
            return (
                f"{name} has stood still for {rank.stalled_seconds:.0f} s (limit {limit:.0f} s) over "
                f"{rank.still_pages} pages with {load}: no step, token, ended request or rise of KV use; {silence}."
            )
        case "idle_and_unanswered":
            return (
                f"{name} shows nothing in flight, but {silence}; the first of these was proven "
                f"{rank.unanswered_seconds:.0f} s ago (limit {limit:.0f} s) and nothing has moved since."
            )
        case "unanswered":
            return (
                f"{name} shows {load} and nothing has moved{_for(rank.shown_stall_seconds)}; {silence}. "
                f"Not proven stuck: {_lacking(rank, proof)}."
            )
        case "unconfirmed":
            return (
                f"{name} has stood still for {rank.stalled_seconds:.0f} s (limit {limit:.0f} s) over "
                f"{rank.still_pages} pages with {load}. No short request can reach it, so this is unconfirmed; "
                f"restart_unconfirmed_after_seconds says to take it as proof."
            )
        case "low_confidence":
            return (
                f"{name} has stood still for {rank.stalled_seconds:.0f} s with {load}; {silence}. Low confidence: this "
                f"build's counters move only when requests end, so that they cannot prove anything."
            )
        case "no_progress":
            asked = _doubt(rank, limits)
            return (
                f"{name} has stood still for {rank.stalled_seconds:.0f} s (suspected from "
                f"{limits.suspect_after_seconds:.0f} s) over {rank.still_pages} pages with {load}; {asked}."
            )
        case "answers_but_requests_do_not_move":
            return (
                f"{name} answers, but {latest.in_flight:.0f} requests do not move: only the short request itself "
                f"moved the page in {rank.stalled_seconds:.0f} s. A person should look."
            )
        case "all_waiting_deferred":
            how = "answers" if rank.answers_only else "has KV peers"
            return f"{name} {how}, and all {latest.waiting:.0f} waiting requests are deferred: they wait for a peer."
        case "answers_are_server_errors":
            return f"{name} is idle, and its last {rank.server_errors} answers were server errors."
        case "stuck_but_last_reading_failed":
            return f"{name} was proven stuck, but the last reading failed; a good page must come last."
        case "in_flight":
            if rank.stalled_seconds > 0:
                return f"{name} has {load}; nothing moved for {rank.stalled_seconds:.0f} s, too short to suspect."
            return f"{name} has {load}, and it moves. {_HEALTHY_AGAIN}"
        case _:
            return f"{name} has nothing in flight."


def _lacking(rank: RankState, proof: Proof) -> str:
    if rank.misses >= proof.misses:
        return f"that takes a stand of {proof.stall_seconds:.0f} s"
    return f"{rank.misses} of {proof.misses:g} misses, limit {proof.stall_seconds:.0f} s"


def _for(seconds: float) -> str:
    return f" for {seconds:.0f} s" if seconds >= 1 else ""


def _silence(rank: RankState, limits: Limits) -> str:
    times = "1 short request got" if rank.misses == 1 else f"{rank.misses} short requests in a row got"
    return f"{times} not one byte in {limits.ask_timeout_seconds:.0f} s"


def _doubt(rank: RankState, limits: Limits) -> str:
    if rank.ask is not None:
        return "one short request is under way"
    if rank.answered_unmoved:
        return "a short request was answered, but this page did not move: another server may have answered"
    if limits.ask_when.value == "never":
        return "it is never asked, so nothing can be proven"
    return f"the last short request: {rank.asks[-1].result.replace('_', ' ')}" if rank.asks else "not yet asked"


def ranks(state: State, limits: Limits) -> list[dict[str, object]]:
    """Each rank as JSON: its clocks, the values of the two pages compared last, its asks and what came of them."""
    names = state.rank_names()
    return [_rank(names[key], key, rank, state, limits) for key, rank in sorted(state.ranks.items())]


def deciding_rank(state: State, limits: Limits) -> dict[str, object] | None:
    """The rank that the verdict rests on, as JSON; None where no rank decided."""
    key = state.judgement.rank
    rank = state.ranks.get(key) if key is not None else None
    return _rank(state.rank_names()[key], key, rank, state, limits) if key is not None and rank is not None else None


def _rank(name: str, key: RankKey, rank: RankState, state: State, limits: Limits) -> dict[str, object]:
    proof = proof_of(state, key, limits)
    verdict, reason = judge_rank(rank, limits, proof)
    return {
        "rank": name,
        "model": key[0],
        "verdict": verdict.value,
        "reason": reason,
        "stalled_seconds": round(rank.shown_stall_seconds, 3),
        "still_pages": rank.still_pages,
        "running": rank.latest.running,
        "waiting": rank.latest.waiting,
        "misses": rank.misses,
        "misses_required": proof.misses if math.isfinite(proof.misses) else None,
        "previous": _page(rank.previous, rank.previous_wall),
        "latest": _page(rank.latest, rank.latest_wall),
        "asks": [_ask(ask) for ask in rank.asks],
    }


def _page(sample: Sample | None, wall: float | None) -> dict[str, object] | None:
    if sample is None:
        return None
    values: dict[str, object] = {**sample.steps, **sample.tokens, **sample.ended}
    values.update(running=sample.running, waiting=sample.waiting, deferred=sample.deferred, kv_use=sample.kv_use)
    return {"at": wall, "values": values}


def _ask(ask: AskRecord) -> dict[str, object]:
    sent_at = None if ask.wall is None else ask.wall - (ask.at - ask.sent_at)
    return {"sent_at": sent_at, "at": ask.wall, "result": ask.result}
