"""One backend with its evidence: what its page shows, from a snapshot. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from exporter import evidence
from exporter.model import AskResult, Verdict
from exporter.pages.row import Row
from exporter.pages.words import ASKS, LIMITS, LOOKS, NUMBERS, Look
from exporter.snapshot import Change, Snapshot


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """One value on the two pages compared. `tone` and `note` say what became of it; both empty: it stood."""

    name: str
    counter: bool
    before: float | None
    after: float | None
    tone: str = ""
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """One short request: when it ended, how long it took, and what came of it in words."""

    at: float | None
    took_seconds: float | None
    tone: str
    result: str


@dataclasses.dataclass(frozen=True, slots=True)
class RankView:
    """One rank: its verdict, the two pages compared (times in Unix seconds), its asks with the newest first."""

    name: str
    model: str
    verdict: str
    look: Look
    reason: str
    stalled_seconds: float
    still_pages: int
    misses: int
    misses_required: int | None
    before_at: float | None
    after_at: float | None
    compared: bool
    values: list[Value]
    asks: list[Ask]


@dataclasses.dataclass(frozen=True, slots=True)
class ChangeView:
    """One change of verdict with the rank that decided it, if one did."""

    change: Change
    look: Look
    rank: RankView | None


class BackendView:
    """Everything that the page of one backend shows."""

    def __init__(self, snapshot: Snapshot, now: float, wall: float) -> None:
        state, limits = snapshot.state, snapshot.backend.limits
        self.row = Row(snapshot, now, wall)
        self.reason = state.judgement.reason
        failure = state.last_failure
        self.failed = " ".join(failure.reason.value.split("_")) if failure is not None else ""
        self.ask_when = limits.ask_when.value
        self.ranks = [rank_view(rank) for rank in evidence.ranks(state, limits)]
        self.history = [_change(change) for change in reversed(snapshot.history)]
        moved = [rank for rank in state.ranks.values() if rank.progress_at is not None]
        latest = max(moved, key=lambda rank: rank.progress_at or 0.0, default=None)
        self.moved_seconds = now - latest.progress_at if latest and latest.progress_at is not None else None
        self.answered_seconds = now - state.answered_at if state.answered_at is not None else None
        self.restarts = state.restarts
        self.restarted_seconds = now - state.restarted_at if state.restarted_at is not None else None
        self.polls, self.poll_seconds = snapshot.polls, snapshot.poll_duration_seconds
        self.failures = {reason: count for reason, count in sorted(snapshot.poll_failures.items()) if count}
        self.asks = {ASKS[result].split(":")[0]: count for result, count in state.asks.items() if count}
        self.learned = self.row.gauges.stuck_after_seconds > limits.stuck_after_seconds
        numbers: dict[str, float | None] = {
            **dataclasses.asdict(limits),
            "effective_stuck_after_seconds": self.row.gauges.stuck_after_seconds,
        }
        self.limits = [(key, text, numbers[key]) for key, text in LIMITS.items() if numbers.get(key) is not None]


def _change(change: Change) -> ChangeView:
    return ChangeView(change, LOOKS[Verdict(change.verdict)], rank_view(change.rank) if change.rank else None)


def rank_view(rank: Mapping[str, Any]) -> RankView:
    """A rank as `evidence` gives it, with its two pages laid side by side."""
    previous, latest = rank["previous"], rank["latest"]
    before = previous["values"] if previous else {}
    after = latest["values"] if latest else {}
    names = [*after, *(name for name in before if name not in after)]
    both = previous is not None and latest is not None
    return RankView(
        rank["rank"],
        rank["model"],
        rank["verdict"],
        LOOKS[Verdict(rank["verdict"])],
        rank["reason"],
        rank["stalled_seconds"],
        rank["still_pages"],
        rank["misses"],
        rank["misses_required"],
        previous["at"] if previous else None,
        latest["at"] if latest else None,
        both,
        [_value(name, before.get(name), after.get(name), both) for name in names],
        [_ask(ask) for ask in reversed(rank["asks"])],
    )


def _value(name: str, before: float | None, after: float | None, both: bool) -> Value:
    """Compare one value; only a counter that rose is work, and a rise of KV use a sign of it."""
    title, counter = NUMBERS.get(name, name), name not in NUMBERS
    if not both or before == after:
        return Value(title, counter, before, after)
    if before is None or after is None:
        return Value(title, counter, before, after, "note", "appeared" if before is None else "vanished")
    if name == "kv_use":
        return Value(title, counter, before, after, *(("good", "rose") if after > before else ("note", "fell")))
    if not counter:
        return Value(title, counter, before, after, "note", "changed; no progress by itself")
    return Value(title, counter, before, after, *(("good", "moved") if after > before else ("warn", "fell")))


def _ask(ask: Mapping[str, Any]) -> Ask:
    result = AskResult(ask["result"])
    tone = {AskResult.ANSWERED: "good", AskResult.UNANSWERED: "bad", AskResult.SERVER_ERROR: "bad"}.get(result, "note")
    known = ask["at"] is not None and ask["sent_at"] is not None
    return Ask(ask["at"], ask["at"] - ask["sent_at"] if known else None, tone, ASKS[result])
