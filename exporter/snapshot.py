"""What one backend looks like now: published whole by its loop, read by the metrics and the web."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporter.config import Backend
from exporter.state import State


@dataclass(frozen=True)
class Change:
    """One change of verdict, with the evidence it rested on."""

    at: float | None
    verdict: str
    reason: str
    sentence: str
    rank: Mapping[str, object] | None = None  # the rank that decided, with the pages compared and its asks


@dataclass(frozen=True)
class Snapshot:
    """What one backend looks like now; published whole, read by the metrics and the web."""

    backend: Backend
    state: State
    taken_at: float  # monotonic
    up: bool = False
    polls: int = 0
    poll_failures: Mapping[str, int] = field(default_factory=dict)
    poll_duration_seconds: float = 0.0
    polled_at: float | None = None  # monotonic, when the last poll finished
    history: tuple[Change, ...] = ()
