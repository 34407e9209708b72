"""What is remembered of one backend, and how each kind of observation changes it. Pure; the verdict is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from exporter import asking
from exporter.incarnation import Change, Incarnation, judge
from exporter.model import Answer, AskResult, Failure, Limits, Page, Presence, Question, RankKey, Resting, Verdict
from exporter.progress import RankState, compare, first_sight, follow, standing_at_zero, without_clocks
from exporter.trouble import NO_TROUBLE, Trouble

NOT_YET_OBSERVED = "not_yet_observed"
"""The reason before the first reading that proves anything."""
LEARNED_FACTOR = 2.0
LEARNED_MOST = 3.0
"""A stall that ended by itself raises the limit to twice its length, at most to three times the configured one."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with the reason that led to it (a short stable word) and its worst rank, if one decided."""

    verdict: Verdict
    reason: str
    rank: RankKey | None = None


@dataclass(frozen=True, slots=True)
class State:
    """All that is remembered of one backend. Instants are monotonic; `*_wall` are Unix seconds."""

    judgement: Judgement = Judgement(Verdict.UNMEASURED, NOT_YET_OBSERVED)
    since_wall: float | None = None
    incarnation: Incarnation | None = None
    ranks: Mapping[RankKey, RankState] = field(default_factory=dict)
    last_page: Page | None = None
    last_failure: Failure | None = None
    trouble: Trouble = NO_TROUBLE
    resting: str = ""  # why its page was left alone; empty: it was read
    proxy: str = ""  # why it is taken for a proxy; empty: it is not
    learned_seconds: float = 0.0
    restarts: int = 0
    restarted_at: float | None = None
    work_total: float = 0.0
    tokens_total: float = 0.0
    rate: float | None = None
    answered_at: float | None = None
    asks: Mapping[AskResult, int] = field(default_factory=dict)
    asking: Question | None = None  # under way, even if its rank or its process is gone by now

    @property
    def verdict(self) -> Verdict:
        """The present verdict."""
        return self.judgement.verdict

    @property
    def live(self) -> bool:
        """Whether the last page's counters move while requests run."""
        return self.last_page is None or self.last_page.reading.live

    def rank_names(self) -> dict[RankKey, str]:
        """A label for each rank: its own, with the model in front where a page serves several."""
        several = len({model for model, _ in self.ranks}) > 1
        return {key: (f"{key[0]}/{key[1] or 0}" if several else key[1] or "0") for key in self.ranks}

    @property
    def stands_still(self) -> bool:
        """Whether /is_paused is worth reading: something should move on the latest page, and does not."""
        return any(not r.moved and (r.in_flight or r.misses or r.ask) for r in self.ranks.values())


def stuck_after(state: State, limits: Limits) -> float:
    """The effective limit in seconds: the configured one, raised by healthy stalls that were longer."""
    return max(limits.stuck_after_seconds, min(state.learned_seconds, LEARNED_MOST * limits.stuck_after_seconds))


def take_presence(state: State, presence: Presence) -> State:
    """A reading of /v1/models: nothing is measured through a proxy."""
    return replace(state, proxy=state.proxy or presence.why, rate=None, ranks={}, last_page=None)


def take_resting(state: State, resting: Resting) -> State:
    """It sleeps, or is let fall asleep: nothing is held against it, and no page is read."""
    eased = {key: without_clocks(rank) for key, rank in state.ranks.items()}
    return replace(state, resting=resting.why, last_failure=None, trouble=NO_TROUBLE, ranks=eased, rate=0.0)


def take_answer(state: State, answer: Answer) -> State:
    """What came of a question; what it proves is settled by a later page."""
    asks = {**state.asks, answer.result: state.asks.get(answer.result, 0) + 1}
    state = replace(state, asks=asks, asking=None)
    rank = state.ranks.get(answer.rank)
    if rank is None:
        return state
    current = rank.ask is not None and rank.ask.sent_at == answer.sent_at
    state = replace(state, ranks={**state.ranks, answer.rank: asking.answered(rank, answer)})
    if current and answer.result is AskResult.ANSWERED and state.incarnation:
        return replace(state, incarnation=replace(state.incarnation, proven=True), answered_at=answer.at)
    return state


def take_page(state: State, page: Page, limits: Limits) -> State:
    """A good page: first sight, the same process, a new one, or the discovery of a proxy."""
    known, reading = state.incarnation, page.reading
    refused = state.trouble.refused
    state = replace(state, last_page=page, last_failure=None, trouble=NO_TROUBLE, resting="")
    if known is None:
        return _first_page(state, page, limits)
    before = {key: rank.latest for key, rank in state.ranks.items()}
    change, why = judge(known, before, reading, refused=refused, at=page.at)
    if change is Change.PROXY:
        return replace(state, proxy=why, ranks={}, rate=None)
    if change is Change.NEW:
        return _new_process(state, page)
    known = replace(known, start_time=reading.start_time or known.start_time)
    return _same_process(replace(state, incarnation=known), page, limits)


def _first_page(state: State, page: Page, limits: Limits) -> State:
    start_time = page.reading.start_time
    age = max(0.0, page.wall - start_time) if page.wall is not None and start_time is not None else None
    untouched = all(standing_at_zero(sample) for sample in page.reading.samples.values())
    proven = not (untouched and age is not None and age < limits.startup_grace_seconds)
    incarnation = Incarnation(0, start_time, page.at, page.at - (age or 0.0), proven)
    return replace(state, incarnation=incarnation, ranks=_seen_first(page), rate=0.0)


def _new_process(state: State, page: Page) -> State:
    generation = (state.incarnation.generation if state.incarnation else 0) + 1
    incarnation = Incarnation(generation, page.reading.start_time, page.at, page.at, proven=False)
    samples = page.reading.samples.values()
    return replace(
        state,
        incarnation=incarnation,
        ranks=_seen_first(page),
        restarts=state.restarts + 1,
        restarted_at=page.at,
        answered_at=None,
        rate=0.0,  # counters of two processes are never compared
        work_total=state.work_total + sum(sample.work for sample in samples),
        tokens_total=state.tokens_total + sum(sum(sample.tokens.values()) for sample in samples),
    )


def _seen_first(page: Page) -> dict[RankKey, RankState]:
    return {k: first_sight(s, page.began_at, page.at, page.wall) for k, s in page.reading.samples.items()}


def _same_process(state: State, page: Page, limits: Limits) -> State:
    assert state.incarnation is not None
    reading = page.reading
    ranks: dict[RankKey, RankState] = {}
    work = tokens = 0.0
    rates = []
    learned, moved = state.learned_seconds, False
    for key, sample in reading.samples.items():
        old = state.ranks.get(key)
        if old is None:
            ranks[key] = first_sight(sample, page.began_at, page.at, page.wall)
            continue
        movement = compare(old.latest, sample)
        work, tokens = work + movement.work, tokens + movement.tokens
        if page.at > old.latest_at:
            rates.append(movement.work / (page.at - old.latest_at))
        new = follow(old, sample, page.began_at, page.at, page.wall, limits)
        ended_by_itself = new.progress_at == page.at
        silent = new.ask is not None and new.ask.answer is not None and new.ask.answer.result is AskResult.UNANSWERED
        new = asking.settle(new, page.began_at, page.at, page.wall, live=reading.live)
        moved = moved or new.progress_at == page.at
        ended_by_itself = ended_by_itself or (silent and new.progress_at == page.at)  # no byte: it moved nothing
        if ended_by_itself and old.stalled_seconds >= limits.suspect_after_seconds:
            learned = max(
                learned, LEARNED_FACTOR * (old.stalled_seconds + min(page.at - old.latest_at, limits.gap_seconds))
            )
        ranks[key] = new
    state = replace(
        state,
        incarnation=replace(state.incarnation, proven=state.incarnation.proven or moved),
        ranks=ranks,
        rate=sum(rates) if rates else state.rate,
        work_total=state.work_total + work,
        tokens_total=state.tokens_total + tokens,
        learned_seconds=learned,
    )
    on_purpose = page.paused or reading.paused or reading.asleep
    if on_purpose or in_grace(state, limits, page.at):
        keep_ask = not on_purpose
        eased = {k: replace(without_clocks(r), ask=r.ask if keep_ask else None) for k, r in ranks.items()}
        return replace(state, ranks=eased)
    return state


def in_grace(state: State, limits: Limits, now: float) -> bool:
    """Whether the process is new, has neither worked nor answered, and still has time to start."""
    known = state.incarnation
    return known is not None and not known.proven and now - known.began_at < limits.startup_grace_seconds
