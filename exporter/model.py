"""The words of the exporter as types.

Durations are seconds on the monotonic clock (`at`, `began_at`); displayed instants are Unix seconds (`wall`).
Only the standard library is used here, and neither clock is read: time is always an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum


class FailureReason(StrEnum):
    """Why one reading of a backend gave no usable page. A closed list: it is a metric label."""

    REFUSED = "refused"
    TIMEOUT = "timeout"
    RESET = "reset"
    HTTP_ERROR = "http_error"
    LOADING = "loading"
    UNPARSABLE = "unparsable"
    MISSING_SERIES = "missing_series"
    EMPTY = "empty"
    TOO_LARGE = "too_large"


class AskResult(StrEnum):
    """What came of one short request. A closed list: it is a metric label.

    Only `UNANSWERED` (connected, written in full, not one byte back by the deadline) can become a miss.
    """

    ANSWERED = "answered"
    UNANSWERED = "unanswered"
    SERVER_ERROR = "server_error"
    REJECTED = "rejected"  # 4xx: configuration or load, never a sign about the engine
    FAILED = "failed"  # refused, reset, or never sent: says nothing


class Verdict(StrEnum):
    """The closed list of verdicts, in their order of precedence."""

    PROXY = "proxy"
    PAUSED = "paused"
    DOWN = "down"
    UNREACHABLE = "unreachable"
    UNMEASURED = "unmeasured"
    STARTING = "starting"
    BLOCKED = "blocked"
    STUCK = "stuck"
    FAILING = "failing"
    STALLED = "stalled"
    BUSY = "busy"
    IDLE = "idle"


class AskWhen(StrEnum):
    """When a short request may be sent at all."""

    DOUBTFUL = "doubtful"  # idle, or standing still
    STALLED = "stalled"  # only while work stands still
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Limits:
    """Thresholds of one backend; every duration in seconds.

    The defaults are vLLM's; each runtime file may name others, the configuration overrides both.
    `ask_when` and `names_ranks` say which questions are possible at all.
    """

    poll_interval_seconds: float = 5.0
    poll_timeout_seconds: float = 5.0
    suspect_after_seconds: float = 60.0
    stuck_after_seconds: float = 180.0
    ask_timeout_seconds: float = 30.0
    idle_ask_seconds: float = 300.0
    startup_grace_seconds: float = 1200.0
    down_after_seconds: float = 60.0
    unreachable_after_seconds: float = 300.0
    restart_hold_seconds: float = 300.0
    long_prefill_seconds: float = 900.0
    restart_unconfirmed_after_seconds: float | None = None  # a stall that no question can prove is stuck from here on
    ask_when: AskWhen = AskWhen.DOUBTFUL
    names_ranks: bool = False  # a request can name the rank that shall serve it
    kv_peers: bool = False  # its requests may wait for the KV cache of another server
    maintenance: bool = False  # somebody works on it: whatever it does is on purpose

    @property
    def gap_seconds(self) -> float:
        """Two good pages further apart than this leave a gap, which proves nothing.

        At least the suspicion limit, so that a slow poll interval is not all gaps; recordings of healthy
        servers have gaps of 2 to 6 s at one poll a second.
        """
        return max(self.suspect_after_seconds, 2 * self.poll_interval_seconds + self.poll_timeout_seconds)

    @property
    def ask_spacing_seconds(self) -> float:
        """Least time between two asks of one rank: 60 s at the default time-out of 30 s, scaled with it."""
        return 2 * self.ask_timeout_seconds


LIMIT_KEYS = tuple(f.name for f in fields(Limits) if f.name.endswith("_seconds"))
"""Every limit that a runtime, a file or a flag may set, with its unit in its name."""

RankKey = tuple[str, str]
"""(model name, rank label); either may be empty when the page has no such label."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one page says of one rank.

    `steps`, `tokens` and `ended` map a series (name and its other labels) to its counter value;
    `running`, `waiting`, `deferred` are requests; `kv_use` is 0..1 or None where the page has none.
    """

    steps: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, float] = field(default_factory=dict)
    ended: Mapping[str, float] = field(default_factory=dict)
    running: float = 0.0
    waiting: float = 0.0
    deferred: float = 0.0
    kv_use: float | None = None

    @property
    def in_flight(self) -> float:
        """Requests running or waiting."""
        return self.running + self.waiting

    @property
    def work(self) -> float:
        """Units of work ever done: steps, or tokens where the runtime counts no steps, or else ended requests."""
        return sum((self.steps or self.tokens or self.ended).values())


@dataclass(frozen=True, slots=True)
class Reading:
    """A page after parsing, before it has a time: the result of `page.parse`."""

    samples: Mapping[RankKey, Sample]
    start_time: float | None = None
    asleep: bool = False
    paused: bool = False
    live: bool = True
    """False: its counters move only when requests end, so that a stand of them means little."""


@dataclass(frozen=True, slots=True)
class Page:
    """A good reading of /metrics: begun at `began_at`, complete at `at` (monotonic seconds)."""

    began_at: float
    at: float
    wall: float | None
    reading: Reading
    paused: bool = False  # /is_sleeping or /is_paused said so


@dataclass(frozen=True, slots=True)
class Failure:
    """A reading that gave no usable page; `alive` tells whether /health or /v1/models answered, None if not asked."""

    began_at: float
    at: float
    wall: float | None
    reason: FailureReason
    detail: str = ""
    status: int | None = None
    alive: bool | None = None


@dataclass(frozen=True, slots=True)
class Presence:
    """What /v1/models of a proxy said; its /metrics is never read."""

    at: float
    wall: float | None
    alive: bool
    detail: str = ""
    why: str = "configured as a proxy"


@dataclass(frozen=True, slots=True)
class Resting:
    """Its page was left alone: it said that it sleeps, or it is idle and shall be able to fall asleep."""

    began_at: float
    at: float
    wall: float | None
    why: str = "asleep"


@dataclass(frozen=True, slots=True)
class Question:
    """One short request to be sent now. `named` says whether the rank must be named in the request."""

    rank: RankKey
    sent_at: float
    deadline_seconds: float
    named: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question, at `at` (monotonic). `deadline_at` bounds the page that may prove a miss."""

    rank: RankKey
    sent_at: float
    at: float
    wall: float | None
    result: AskResult
    detail: str = ""


Observation = Page | Failure | Presence | Resting | Answer
