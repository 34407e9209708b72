"""Restarts by systemd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from remediator.drivers import Description, DriverFailed
from stallwatch.settings import Seconds, Strict


class SystemdSettings(Strict):
    """Settings of the systemd driver."""

    kind: Literal["systemd"]
    unit: Annotated[str, Field(min_length=1)]
    timeout_seconds: Seconds = 120.0

    def make(self) -> SystemdDriver:
        """The driver that these settings describe."""
        return SystemdDriver(self.timeout_seconds)


@dataclass(frozen=True, slots=True)
class SystemdDriver:
    """Not written yet."""

    timeout_seconds: float
    kind: str = "systemd"
    programs: Sequence[str] = ()

    def describe(self) -> Description:
        """Identity and state now."""
        return Description(None, None, "not written yet")

    def restart(self, deadline_seconds: float) -> None:
        """Restart in one call."""
        raise DriverFailed("error", "not written yet")
