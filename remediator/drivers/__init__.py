"""What a way to restart a backend has to offer. A driver never decides, sleeps between tries or retries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import Field

FailureReason = Literal[
    "not_found",
    "renamed",
    "replaced",
    "ambiguous",
    "stopped",
    "no_permission",
    "unavailable",
    "will_not_stop",
    "start_limit",
    "not_schedulable",
    "exit_status",
    "deadline",
    "error",
]
"""Why a driver failed; a closed metric label.

`renamed`: what was configured goes by another name now. `replaced`: another life than the one that was proven stuck
runs there now. `ambiguous`: the name fits several. `stopped`: it does not
run, or is paused: somebody may have wanted that, and a restart would undo it. `unavailable`: the daemon or API behind
the driver cannot be reached. `will_not_stop`: the old process does not die. `start_limit`: the service manager
refuses, because it was started too often. `not_schedulable`: a new one would find no place beside the
old one. The rest says what it is.
"""
Command = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
"""A program and its arguments. No shell reads it."""


@dataclass(frozen=True, slots=True)
class Description:
    """What the driver sees now. `identity` names one life of the server process; None when it cannot be told."""

    identity: str | None
    running: bool | None
    detail: str = ""


class DriverFailed(Exception):
    """The restart was not carried out, or nobody can tell. The text is one line for a person."""

    def __init__(self, reason: FailureReason, detail: str) -> None:
        super().__init__(detail)
        self.reason: FailureReason = reason
        self.detail = detail


class Driver(Protocol):
    """One way to restart one backend."""

    @property
    def kind(self) -> str:
        """The name of the driver as the configuration spells it; a metric label."""

    @property
    def timeout_seconds(self) -> float:
        """How long one restart call may take."""

    @property
    def programs(self) -> Sequence[str]:
        """The programs on this machine that the driver needs, to warn of a missing one before it is needed."""

    def describe(self) -> Description:
        """Identity and state now, within ten seconds. Never raises."""

    def restart(self, deadline_seconds: float, identity: str | None = None) -> None:
        """Restart in one call that returns within `deadline_seconds`. Raises `DriverFailed`.

        With an `identity` only that life is ended: if another one is there by now, nothing is done (`replaced`).
        """


def check_same(wanted: str | None, found: str | None) -> None:
    """Raise `DriverFailed` if a life was meant and another one, or none, is there."""
    if wanted is not None and found != wanted:
        there = f"{found} runs" if found else "no life can be seen"
        raise DriverFailed("replaced", f"{there} where {wanted} was to be restarted; nothing was done")
