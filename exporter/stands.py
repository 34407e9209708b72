"""Stall clocks over a history of pages: every stand, how long it was, how it ended. Pure.

The clocks are those of the exporter. Nothing is ever asked here, so that nobody is convicted: what is counted is
suspicion, of which a real ask would have cleared an unknown part.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from statistics import median

from exporter.model import AskWhen, Limits, Page, RankKey
from exporter.page import PageError, PageParser
from exporter.progress import RankState
from exporter.state import State, in_grace
from exporter.verdict import advance

KEPT = 10
LEAST_PAGES = 5
"""So many pages of one chunk are enough to say how far apart scrapes are."""


class End(StrEnum):
    """How a stand ended. Only progress proves that the server was healthy all the time."""

    PROGRESS = "progress"
    NEW_PROCESS = "new process"
    ON_PURPOSE = "asleep or paused"
    GAP = "gap in the data"
    OPEN = "end of data"


@dataclass(frozen=True, slots=True)
class Stand:
    """For `seconds` nothing moved while work was in flight; `start`: the page on which it last moved, Unix seconds.

    `at_most_seconds` goes on to the page that shows its end: when it moved between two scrapes nobody knows.
    """

    seconds: float
    at_most_seconds: float
    start: float
    target: str
    rank: str
    running: float
    waiting: float
    end: End


@dataclass
class Reached:
    """What one limit would have suspected: stands that reached it, and prefills as long whose KV use rose."""

    limit_seconds: float
    by_end: dict[End, int] = field(default_factory=lambda: dict.fromkeys(End, 0))
    seconds: float = 0.0
    longest_seconds: float = 0.0
    prefills: int = 0

    @property
    def stands(self) -> int:
        """All stands that reached the limit."""
        return sum(self.by_end.values())


@dataclass
class Tally:
    """Counts over all targets; its size does not grow with the history."""

    limits: Sequence[float]
    reached: list[Reached] = field(init=False)
    longest: list[tuple[float, int, Stand]] = field(default_factory=list)
    stands: int = 0
    longest_healthy_seconds: float = 0.0
    prefills: int = 0
    longest_prefill_seconds: float = 0.0
    pages: int = 0
    failed_scrapes: int = 0
    unusable_pages: int = 0
    restarts: int = 0
    proxies: int = 0
    busy_seconds: float = 0.0
    first: float | None = None
    last: float | None = None
    interval_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.reached = [Reached(limit) for limit in self.limits]

    def add(self, stand: Stand) -> None:
        """Count one stand that has ended."""
        self.stands += 1
        if stand.end is End.PROGRESS:
            self.longest_healthy_seconds = max(self.longest_healthy_seconds, stand.at_most_seconds)
        for row in self.reached:
            if stand.at_most_seconds >= row.limit_seconds:
                row.by_end[stand.end] += 1
                row.seconds += stand.at_most_seconds
                row.longest_seconds = max(row.longest_seconds, stand.at_most_seconds)
        entry = (stand.at_most_seconds, -self.stands, stand)  # of two as long the earlier one is kept
        (heapq.heappush if len(self.longest) < KEPT else heapq.heappushpop)(self.longest, entry)

    def add_prefill(self, seconds: float) -> None:
        """Count one time during which only KV use rose: a long prompt, which is progress. One such page is none."""
        if not seconds:
            return
        self.prefills += 1
        self.longest_prefill_seconds = max(self.longest_prefill_seconds, seconds)
        for row in self.reached:
            row.prefills += seconds >= row.limit_seconds

    def top(self) -> list[Stand]:
        """The longest stands, the longest first."""
        return [stand for _, _, stand in sorted(self.longest, reverse=True)]


@dataclass
class Tracker:
    """One target: takes its pages in the order of time, and adds what ended to the tally."""

    target: str
    parser: PageParser
    limits: Limits
    tally: Tally
    _state: State = field(default_factory=State)
    _open: dict[RankKey, Stand] = field(default_factory=dict)
    _prefills: dict[RankKey, float] = field(default_factory=dict)
    _restarts: int = 0

    def __post_init__(self) -> None:
        self.limits = replace(self.limits, ask_when=AskWhen.NEVER)

    def take(self, scrapes: Iterable[tuple[float, bytes]]) -> None:
        """Take the pages of a chunk, each with its instant in Unix seconds; b"" is a scrape that failed."""
        listed = list(scrapes)
        self._learn_interval([wall for wall, body in listed if body])
        for wall, body in listed:
            if not body:
                self.tally.failed_scrapes += 1
                continue
            try:
                reading = self.parser.parse(body)
            except PageError:
                self.tally.unusable_pages += 1
                continue
            self.tally.pages += 1
            self.tally.first = wall if self.tally.first is None else min(wall, self.tally.first)
            self.tally.last = max(wall, self.tally.last or wall)
            self._take(Page(wall, wall, wall, reading))

    def finish(self) -> None:
        """The data ends; what stands is counted as it is."""
        self._close_all(End.OPEN)

    def _learn_interval(self, walls: Sequence[float]) -> None:
        """A gap is a matter of how often is read, and that is Prometheus's scrape interval here."""
        if len(walls) >= LEAST_PAGES:
            between = median(b - a for a, b in pairwise(walls))
            self.limits = replace(self.limits, poll_interval_seconds=between)
            self.tally.interval_seconds = max(self.tally.interval_seconds, between)

    def _take(self, page: Page) -> None:
        before = self._state
        unseen = page.at - (before.last_page.at if before.last_page else page.at)
        state, _ = advance(before, page, self.limits, page.at)
        if state.proxy:  # the exporter would measure nothing from here on; a history may be of another time
            self.tally.proxies += 1
            self._close_all(End.GAP)
            self._state, self._restarts = State(), 0
            return
        self._state = state
        if state.restarts != self._restarts:
            self.tally.restarts += state.restarts - self._restarts
            self._restarts = state.restarts
            self._close_all(End.NEW_PROCESS, min(unseen, self.limits.poll_interval_seconds))
        for key in [key for key in self._open if key not in state.ranks]:
            self._close(key, End.GAP)
        names = state.rank_names()
        for key, rank in state.ranks.items():
            self._follow(key, names[key], rank, page, unseen)
            self._follow_prefill(key, rank, page)
        if unseen <= self.limits.gap_seconds:
            self.tally.busy_seconds += unseen * any(rank.in_flight for rank in state.ranks.values())

    def _follow(self, key: RankKey, name: str, rank: RankState, page: Page, unseen: float) -> None:
        was = self._open.get(key)
        if was is not None and rank.stalled_seconds < was.seconds:
            end = self._why(rank, page)
            self._close(key, end, min(unseen, self.limits.gap_seconds) if end is End.PROGRESS else 0.0)
            was = None
        if rank.stalled_seconds > (was.seconds if was else 0.0):
            length, sample = rank.stalled_seconds, rank.latest
            start = was.start if was else page.at - length
            self._open[key] = Stand(length, length, start, self.target, name, sample.running, sample.waiting, End.OPEN)

    def _why(self, rank: RankState, page: Page) -> End:
        if rank.progress_at == page.at:
            return End.PROGRESS
        on_purpose = page.reading.asleep or page.reading.paused or in_grace(self._state, self.limits, page.at)
        return End.ON_PURPOSE if on_purpose else End.GAP

    def _follow_prefill(self, key: RankKey, rank: RankState, page: Page) -> None:
        if rank.kv_only_since is not None and rank.progress_at == page.at:
            self._prefills[key] = page.at - rank.kv_only_since
        elif rank.kv_only_since is None and key in self._prefills:
            self.tally.add_prefill(self._prefills.pop(key))

    def _close(self, key: RankKey, end: End, unseen: float = 0.0) -> None:
        stand = self._open.pop(key)
        self.tally.add(replace(stand, end=end, at_most_seconds=stand.seconds + unseen))

    def _close_all(self, end: End, unseen: float = 0.0) -> None:
        for key in list(self._open):
            self._close(key, end, unseen)
        for key in list(self._prefills):
            self.tally.add_prefill(self._prefills.pop(key))
