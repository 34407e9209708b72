"""One backend as a row of the table: what is known of it now, from a snapshot. Pure."""

from __future__ import annotations

from functools import cached_property

from exporter import evidence
from exporter.metrics import is_dead
from exporter.model import Verdict
from exporter.pages.words import LOOKS, SEVERITY, Look
from exporter.progress import AskRecord
from exporter.snapshot import Snapshot
from exporter.verdict import Shown, shown


class Row:
    """One backend, now. Durations are seconds; None: not known or not measured."""

    def __init__(self, snapshot: Snapshot, now: float, wall: float) -> None:
        state, backend = snapshot.state, snapshot.backend
        self._snapshot, self._now = snapshot, now
        self.name, self.group, self.url, self.runtime = backend.name, backend.group, backend.url, backend.runtime.name
        self.verdict: Verdict = state.verdict
        self.gauges: Shown = shown(state, backend.limits, now)
        self.suspect_seconds = backend.limits.suspect_after_seconds
        self.since = state.since_wall
        self.since_seconds = None if state.since_wall is None else wall - state.since_wall
        self.read_at = state.last_page.wall if state.last_page else None
        self.read_seconds = now - state.last_page.at if state.last_page else None
        self.dead = is_dead(snapshot, now)
        measured = self.gauges.stalled_seconds is not None
        ranks = state.ranks.values()
        self.running = sum(rank.latest.running for rank in ranks) if measured else None
        self.waiting = sum(rank.latest.waiting for rank in ranks) if measured else None
        self.started_at = state.incarnation.start_time if state.incarnation else None
        self.asking = state.asking is not None
        asks = [rank.asks[-1] for rank in ranks if rank.asks]
        self.ask: AskRecord | None = max(asks, key=lambda ask: ask.at, default=None)
        self.asks_seconds = None if self.ask is None else now - self.ask.at
        self.never_asked = backend.limits.ask_when.value == "never"
        self.age_seconds, self.age_is_least = _age(snapshot, now, wall)
        self.gone = self.verdict is Verdict.DOWN

    @property
    def look(self) -> Look:
        """How its verdict is shown."""
        return LOOKS[self.verdict]

    @property
    def own_group(self) -> bool:
        """Whether it has a group that is more than its own name."""
        return self.group != self.name

    @property
    def severity(self) -> tuple[int, float, str]:
        """How bad it is, the worst first; what a dead loop last said is worth no more than not being measured."""
        level = SEVERITY[self.verdict]
        if self.dead:
            level = min(level, SEVERITY[Verdict.UNMEASURED])
        share = (self.gauges.stalled_seconds or 0.0) / self.gauges.stuck_after_seconds
        return level, -share, self.name

    @cached_property
    def sentence(self) -> str:
        """Why, in words."""
        return evidence.sentence(self._snapshot.state, self._snapshot.backend.limits)

    @property
    def silence_seconds(self) -> float:
        """How long ago its last poll finished, or its watching began."""
        snapshot = self._snapshot
        return self._now - (snapshot.polled_at if snapshot.polled_at is not None else snapshot.taken_at)

    @property
    def unit(self) -> str:
        """What its work rate counts."""
        samples = [rank.latest for rank in self._snapshot.state.ranks.values()]
        if any(sample.steps for sample in samples):
            return "steps/s"
        return "tokens/s" if any(sample.tokens for sample in samples) else "requests/s"

    def has(self, text: str) -> bool:
        """Whether one of its names holds the text, whatever its case."""
        models = [model for model, _ in self._snapshot.state.ranks]
        return any(text in word.casefold() for word in (self.name, self.group, self.runtime, self.url, *models))


def _age(snapshot: Snapshot, now: float, wall: float) -> tuple[float | None, bool]:
    """How long its process runs (or ran, when it was last read), and whether that is only the least that is known."""
    life, page = snapshot.state.incarnation, snapshot.state.last_page
    if life is None:
        return None, False
    if snapshot.state.verdict is Verdict.DOWN and page is not None:
        now, wall = page.at, page.wall if page.wall is not None else wall
    if life.start_time is None:
        return now - life.seen_at, True
    return max(0.0, wall - life.start_time), False
