"""The stall clock of one rank: what counts as progress, and for how long nothing did. Pure.

Measured on vLLM 0.32: counters stand still during a whole chunked prefill and only KV use rises, so a rise of
KV use above its maximum since the last counter movement is progress. A frozen engine cannot raise KV use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

from exporter.model import Answer, Limits, Sample

KV_FALL = 0.02
"""A fall of KV use by this much, or to half, means other requests: a new reference."""
RISES_AFTER_FALL = 3
"""After such a fall only the third successive rise counts: an oscillation is not progress."""
ASK_STEPS = 2
ASK_ENDED = 1
ASK_TOKENS = 200
"""The most that one short request explains: movement beyond it is work of others. Tokens count where no steps do."""
KEPT_ASKS = 10


@dataclass(frozen=True, slots=True)
class Movement:
    """What changed in the counters between two samples of one rank; rises only, except `fell` and `halved`."""

    steps: float = 0.0
    tokens: float = 0.0
    ended: float = 0.0
    fell: bool = False
    halved: bool = False
    reshaped: bool = False  # series appeared or vanished: the pages cannot be compared in full

    @property
    def any(self) -> bool:
        """Whether any counter rose."""
        return self.steps > 0 or self.tokens > 0 or self.ended > 0

    @property
    def work(self) -> float:
        """Units of work: steps, else tokens, else ended requests."""
        return self.steps or self.tokens or self.ended

    @property
    def explained_by_ask(self) -> bool:
        """Whether one short request could have caused all of it."""
        small = self.steps <= ASK_STEPS if self.steps else self.tokens <= ASK_TOKENS
        return small and self.ended <= ASK_ENDED


def _rise(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    return sum(max(0.0, value - before[name]) for name, value in after.items() if name in before)


def compare(before: Sample, after: Sample) -> Movement:
    """Compare two samples of one rank series by series; a series on one page only is not compared."""
    fell = halved = False
    for old, new in ((before.steps, after.steps), (before.tokens, after.tokens)):
        for name, value in new.items():
            was = old.get(name, value)
            if value < was:
                fell = True
                halved = halved or value < was / 2
    reshaped = before.steps.keys() != after.steps.keys() or before.tokens.keys() != after.tokens.keys()
    return Movement(
        _rise(before.steps, after.steps),
        _rise(before.tokens, after.tokens),
        _rise(before.ended, after.ended),
        fell,
        halved,
        reshaped,
    )


def standing_at_zero(sample: Sample) -> bool:
    """Whether the rank has done no work at all."""
    return not any(chain(sample.steps.values(), sample.tokens.values(), sample.ended.values()))


@dataclass(frozen=True, slots=True)
class KvTrack:
    """KV use since the counters last moved: its reference (maximum), and rises still needed after a fall."""

    reference: float | None = None
    last: float | None = None
    rises_needed: int = 0

    def follow(self, kv: float | None, counters_moved: bool) -> tuple[KvTrack, bool]:
        """Take the next page's KV use; return the new track and whether it is progress."""
        if kv is None:
            return KvTrack(), False
        if self.reference is None or self.last is None or counters_moved:
            return KvTrack(kv, kv), False
        if kv <= self.reference - KV_FALL or kv <= self.reference / 2 < self.reference:
            return KvTrack(kv, kv, RISES_AFTER_FALL), False
        if kv > self.reference:
            needed = max(0, self.rises_needed - 1)
            return KvTrack(kv, kv, needed), needed == 0
        needed = RISES_AFTER_FALL if self.rises_needed and kv < self.last else self.rises_needed
        return KvTrack(self.reference, kv, needed), False


@dataclass(frozen=True, slots=True)
class AskRecord:
    """One ask as evidence keeps it; `wall` is the Unix time of its end, None in a replay without a clock."""

    sent_at: float
    at: float
    wall: float | None
    result: str


@dataclass(frozen=True, slots=True)
class OpenAsk:
    """An ask whose meaning is not settled: the sample it was sent on, and its answer once there is one."""

    reference: Sample
    sent_at: float
    answer: Answer | None = None
    moved_beyond: bool = False  # progress was seen that the ask does not explain


@dataclass(frozen=True, slots=True)
class RankState:
    """What is known of one rank in the present incarnation. Instants are monotonic, `*_wall` Unix seconds."""

    latest: Sample
    latest_began_at: float
    latest_at: float
    latest_wall: float | None
    first_seen_at: float
    alive_at: float
    previous: Sample | None = None
    previous_wall: float | None = None
    stalled_seconds: float = 0.0
    still_pages: int = 1
    moved: bool = False
    kv: KvTrack = KvTrack()
    kv_only_since: float | None = None
    progress_at: float | None = None
    progress_wall: float | None = None
    ask: OpenAsk | None = None
    asks: tuple[AskRecord, ...] = ()
    last_ask_at: float | None = None
    misses: int = 0
    unanswered_seconds: float = 0.0
    fruitless: int = 0
    server_errors: int = 0
    answers_only: bool = False  # answered, but the other requests do not move
    answered_unmoved: bool = False  # answered, but this page did not move: proof of nothing

    @property
    def in_flight(self) -> float:
        """Requests running or waiting on the latest page."""
        return self.latest.in_flight

    @property
    def shown_stall_seconds(self) -> float:
        """The stall clock, or for an idle rank with misses the time since its first miss was proven."""
        return self.unanswered_seconds if self.misses and not self.in_flight else self.stalled_seconds

    @property
    def misses_required(self) -> int:
        """Misses that proof needs: one where work stands still, three where nothing is in flight."""
        return 1 if self.in_flight else 3


def first_sight(sample: Sample, began_at: float, at: float, wall: float | None) -> RankState:
    """A rank seen for the first time in this incarnation."""
    kv = KvTrack(sample.kv_use, sample.kv_use) if sample.kv_use is not None else KvTrack()
    return RankState(sample, began_at, at, wall, first_seen_at=at, alive_at=at, kv=kv)


def follow(
    rank: RankState, sample: Sample, began_at: float, at: float, wall: float | None, limits: Limits
) -> RankState:
    """Take the next good page of the same incarnation into the rank's clocks; asks are settled elsewhere."""
    movement = compare(rank.latest, sample)
    kv, kv_progress = rank.kv.follow(sample.kv_use, movement.any)
    seen = replace(
        rank,
        latest=sample,
        latest_began_at=began_at,
        latest_at=at,
        latest_wall=wall,
        previous=rank.latest,
        previous_wall=rank.latest_wall,
        kv=kv,
        moved=movement.any or kv_progress,
    )
    if movement.any or kv_progress:
        if rank.ask and not kv_progress and sample.in_flight:
            since_ask = compare(rank.ask.reference, sample)
            if since_ask.explained_by_ask and not rank.ask.moved_beyond:
                # Held: the ask may be all that moved; settling decides. The engine lives, so no miss of before counts.
                return replace(seen, misses=0, unanswered_seconds=0.0)
        return _progressed(seen, at, wall, kv_only=not movement.any)
    # A page that began before the last one ended proves no time.
    proven = max(0.0, began_at - (rank.latest_at if rank.still_pages == 1 else rank.latest_began_at))
    if movement.reshaped or (proven > limits.gap_seconds and not _same(rank.latest, sample)):
        return replace(seen, stalled_seconds=0.0, still_pages=1, unanswered_seconds=0.0, misses=0)
    if proven > limits.gap_seconds:
        proven = 0.0
    stands = rank.in_flight > 0 and sample.in_flight > 0
    return replace(
        seen,
        stalled_seconds=rank.stalled_seconds + (proven if stands else 0.0),
        still_pages=rank.still_pages + 1,
        unanswered_seconds=rank.unanswered_seconds + (proven if rank.misses else 0.0),
    )


def progressed(rank: RankState, at: float, wall: float | None) -> RankState:
    """The rank did work that nothing explains away: every clock and every miss starts anew."""
    return _progressed(rank, at, wall, kv_only=False)


def _progressed(rank: RankState, at: float, wall: float | None, *, kv_only: bool) -> RankState:
    return replace(
        rank,
        stalled_seconds=0.0,
        still_pages=1,
        unanswered_seconds=0.0,
        misses=0,
        fruitless=0,
        server_errors=0,
        answers_only=False,
        answered_unmoved=False,
        alive_at=at,
        progress_at=at,
        progress_wall=wall,
        kv_only_since=(rank.kv_only_since or at) if kv_only else None,
        ask=replace(rank.ask, moved_beyond=True) if rank.ask else None,
    )


def without_clocks(rank: RankState) -> RankState:
    """The same rank with nothing held against it: asleep, paused or starting servers stand still on purpose."""
    return replace(
        rank, stalled_seconds=0.0, still_pages=1, unanswered_seconds=0.0, misses=0, ask=None, answers_only=False
    )


def _same(before: Sample, after: Sample) -> bool:
    return replace(before, deferred=0.0) == replace(after, deferred=0.0)
