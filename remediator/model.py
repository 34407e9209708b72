"""The remediator's words as types: what the policy is asked, what it knows, what it says. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Verb(StrEnum):
    """What a decision means for its request."""

    ACT = "act"
    WAIT = "wait"
    REFUSE = "refuse"


class Reason(StrEnum):
    """The rungs of the safety ladder, in its order. The first that says no is the reason; a closed metric label."""

    UNKNOWN_BACKEND = "unknown_backend"
    NOT_OPTED_IN = "not_opted_in"
    HELD = "held"
    IN_PROGRESS = "in_progress"
    ALREADY_RESTARTED = "already_restarted"
    EVIDENCE_UNAVAILABLE = "evidence_unavailable"
    NOT_CONFIRMED = "not_confirmed"
    STARTING = "starting"
    COOLDOWN = "cooldown"
    BUDGET_EXHAUSTED = "budget_exhausted"
    GROUP_BUSY = "group_busy"
    BELOW_MINIMUM_HEALTHY = "below_minimum_healthy"
    STORM = "storm"
    ADVISE_ONLY = "advise_only"
    ACT = "act"


WAITS = frozenset(
    {
        Reason.IN_PROGRESS,
        Reason.EVIDENCE_UNAVAILABLE,
        Reason.NOT_CONFIRMED,
        Reason.STARTING,
        Reason.COOLDOWN,
        Reason.GROUP_BUSY,
        Reason.BELOW_MINIMUM_HEALTHY,
        Reason.STORM,
    }
)
"""The reasons that may pass by themselves, and leave a request waiting. The others end it."""


OVERRULABLE = frozenset(
    {
        Reason.NOT_OPTED_IN,
        Reason.NOT_CONFIRMED,
        Reason.STARTING,
        Reason.COOLDOWN,
        Reason.BUDGET_EXHAUSTED,
        Reason.GROUP_BUSY,
        Reason.BELOW_MINIMUM_HEALTHY,
        Reason.STORM,
    }
)
"""What a person who asks for a restart may answer for.

Not among them: what somebody else has decided and can take back himself (a hold, `mode: advise`), and that without
which nobody could tell afterwards what happened (an identity, an exporter, one attempt at a time).
"""


class Step(StrEnum):
    """The journalled steps of an attempt, in their order."""

    CLAIMED = "claimed"
    IDENTITY_NOTED = "identity_noted"
    EVIDENCE_SAVED = "evidence_saved"
    CONFIRMED = "confirmed"
    CALLED = "called"
    RETURNED = "returned"
    IDENTITY_CHANGED = "identity_changed"


class Outcome(StrEnum):
    """How an attempt ended. `withdrawn`: the driver was never called."""

    RECOVERED = "recovered"
    FAILED = "failed"
    UNKNOWN = "unknown"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Decision:
    """What the policy says about one request; `detail` is a sentence for a person."""

    verb: Verb
    reason: Reason
    detail: str = ""
    overruled: frozenset[Reason] = frozenset()
    """The rungs that said no, and that a person has overruled."""


@dataclass(frozen=True, slots=True)
class View:
    """What the exporter says of one backend. Ages are in seconds, counted by the exporter when it answered."""

    name: str
    group: str
    verdict: str
    reason: str = ""
    sentence: str = ""
    age_seconds: float | None = None
    last_progress_age_seconds: float | None = None
    last_answer_age_seconds: float | None = None
    ask_when: str = "doubtful"
    poll_interval_seconds: float | None = None
    startup_grace_seconds: float | None = None
    start_time: float | None = None
    wholly_stuck: bool = True
    """Every rank is stuck, so that a restart takes away nothing that still works."""
    document: Mapping[str, object] = field(default_factory=dict)
    """The exporter's answer as it came: the evidence that is kept."""


@dataclass(frozen=True, slots=True)
class Member:
    """One configured backend with the newest view of it, if there is one."""

    name: str
    group: str
    restart_on: frozenset[str]
    minimum_healthy: int | None = None
    view: View | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """All configured backends. `mode` is "restart" or "advise"."""

    mode: str
    members: Mapping[str, Member]


@dataclass(frozen=True, slots=True)
class Order:
    """A person has asked for a restart, at `at` (Unix seconds), and answers for the rungs in `overrules`."""

    who: str
    why: str
    at: float
    overrules: frozenset[Reason] = frozenset()


@dataclass(frozen=True, slots=True)
class Request:
    """A wish to restart a backend, as an alert or a person brought it. Times are Unix seconds."""

    backend: str
    restart_asked: bool
    created_at: float
    identity_noted: str | None = None
    """The driver's identity when the request came."""
    identity_now: str | None = None
    identity_detail: str = ""
    """Why the driver cannot tell the identity, when it cannot."""
    running_now: bool | None = None
    """Whether the driver says that it runs; None when it cannot tell."""
    seen_stuck: bool = False
    """The exporter has said `stuck` since the request came."""
    order: Order | None = None
    """The last person's word on it, if there is one."""


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """One attempt of the journal. `called_at` is None when the driver was never called."""

    backend: str
    group: str
    called_at: float | None
    ended_at: float | None
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class Hold:
    """Maintenance: nothing is restarted until it is released or `until` (Unix seconds) has passed."""

    backend: str
    who: str
    why: str
    since: float
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Storm:
    """Many failure domains in trouble at once. `overridden`: a person has lifted this one."""

    since: float
    last_over_at: float
    overridden: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """What the journal knows: attempts of the last day and open ones, holds, latches, the storm."""

    attempts: tuple[PastAttempt, ...] = ()
    holds: Mapping[str, Hold] = field(default_factory=dict)
    latched: frozenset[str] = frozenset()
    budget_reset_at: Mapping[str, float] = field(default_factory=dict)
    storm: Storm | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Every limit of the policy, each with the accident it prevents."""

    cooldown_seconds: float = 1800.0
    """A restart that does not help must not be repeated at once: loading weights is a load of its own."""
    cooldown_forgotten_after_seconds: float = 21600.0
    """The cooldown doubles with each attempt until the backend has made progress for so long."""
    budget_attempts: int = 3
    """A poison request returns after each restart; a person has to look."""
    budget_window_seconds: float = 21600.0
    daily_budget_attempts: int = 4
    """The slow form of the same: once every few hours, for ever."""
    request_expires_seconds: float = 3600.0
    """An old alert must not restart what has long been something else."""
    overrule_seconds: float = 300.0
    """What a person has seen when he overruled something is soon not what is."""
    group_settle_seconds: float = 300.0
    """The peer of a restarted server often stumbles over the restart."""
    minimum_healthy: int = 1
    """Restarting a half-stuck server must not take away the last that serves. Only in groups of two or more."""
    storm_lift_seconds: float = 600.0
    """Many at once have one cause, and it is not the servers."""
    fresh_polls: float = 3.0
    """An observation older than so many polls proves nothing."""
