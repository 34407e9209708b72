"""Restarts by kubernetes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from remediator.drivers import Description, DriverFailed
from stallwatch.settings import Seconds, Strict


class KubernetesSettings(Strict):
    """Settings of the kubernetes driver."""

    kind: Literal["kubernetes"]
    namespace: Annotated[str, Field(min_length=1)]
    timeout_seconds: Seconds = 120.0

    def make(self) -> KubernetesDriver:
        """The driver that these settings describe."""
        return KubernetesDriver(self.timeout_seconds)


@dataclass(frozen=True, slots=True)
class KubernetesDriver:
    """Not written yet."""

    timeout_seconds: float
    kind: str = "kubernetes"
    programs: Sequence[str] = ()

    def describe(self) -> Description:
        """Identity and state now."""
        return Description(None, None, "not written yet")

    def restart(self, deadline_seconds: float) -> None:
        """Restart in one call."""
        raise DriverFailed("error", "not written yet")
