"""Same process, new process, or a proxy with several behind it? Pure.

Counters of two processes are never compared. Series named `*_sum` never count: a real vLLM let one fall
without a restart. Multi-process servers publish no start time, so falling counters are the second witness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from exporter.model import RankKey, Reading, Sample
from exporter.progress import compare, standing_at_zero

START_TIME_JITTER_SECONDS = 5.0
"""Start times derived from boot time and ticks wander by a second or two."""
PROXY_WINDOW_SECONDS = 60.0
"""No model server is started, serves a page and is replaced within this time without refusing a connection."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of a server process. `began_at` (monotonic) is when its grace began."""

    generation: int
    start_time: float | None
    seen_at: float
    began_at: float
    proven: bool  # has made progress or answered


class Change(Enum):
    """How a page relates to the incarnation seen before."""

    SAME = auto()
    NEW = auto()
    PROXY = auto()


def judge(
    known: Incarnation, before: Mapping[RankKey, Sample], reading: Reading, *, refused: bool, at: float
) -> tuple[Change, str]:
    """Return the change and, for a proxy or a new process, the reason in words.

    `before` holds each rank's last sample; `refused` says that a connection was refused since then.
    """
    change, why = _compare(known, before, reading, refused)
    if change is Change.NEW and not refused and known.generation > 0 and at - known.seen_at < PROXY_WINDOW_SECONDS:
        return Change.PROXY, f"two new processes within {PROXY_WINDOW_SECONDS:.0f} s without a refused connection"
    return change, why


def _compare(
    known: Incarnation, before: Mapping[RankKey, Sample], reading: Reading, refused: bool
) -> tuple[Change, str]:
    pairs = [(before[key], sample) for key, sample in reading.samples.items() if key in before]
    movements = [compare(old, new) for old, new in pairs]
    if known.start_time is not None and reading.start_time is not None:
        later = reading.start_time - known.start_time
        if later > START_TIME_JITTER_SECONDS:
            return Change.NEW, f"the start time moved by {later:.0f} s"
        if later < -START_TIME_JITTER_SECONDS:
            return Change.PROXY, f"the start time went back by {-later:.0f} s"
        if any(m.fell for m in movements):
            return Change.PROXY, "counters fell under an unchanged start time"
        return Change.SAME, ""
    if any(m.halved for m in movements):
        return Change.NEW, "a counter fell below half"
    if refused and (any(m.fell for m in movements) or _all_zero(new for _, new in pairs)):
        return Change.NEW, "connections were refused, and the counters begin anew"
    return Change.SAME, ""


def _all_zero(samples: Iterable[Sample]) -> bool:
    listed = list(samples)
    return bool(listed) and all(standing_at_zero(sample) for sample in listed)
