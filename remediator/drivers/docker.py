"""Restarts by docker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from remediator.drivers import Description, DriverFailed
from stallwatch.settings import Seconds, Strict


class DockerSettings(Strict):
    """Settings of the docker driver."""

    kind: Literal["docker"]
    container: Annotated[str, Field(min_length=1)] | None = None
    timeout_seconds: Seconds = 120.0

    def make(self) -> DockerDriver:
        """The driver that these settings describe."""
        return DockerDriver(self.timeout_seconds)


@dataclass(frozen=True, slots=True)
class DockerDriver:
    """Not written yet."""

    timeout_seconds: float
    kind: str = "docker"
    programs: Sequence[str] = ()

    def describe(self) -> Description:
        """Identity and state now."""
        return Description(None, None, "not written yet")

    def restart(self, deadline_seconds: float) -> None:
        """Restart in one call."""
        raise DriverFailed("error", "not written yet")
