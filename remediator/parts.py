"""What the loop of decisions and the attempts work with, handed in so that tests can bring their own."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Protocol

from remediator.clock import Clock
from remediator.config import Config
from remediator.evidence import Sight
from remediator.journal import Journal
from remediator.metrics import Metrics
from remediator.model import View


class Evidence(Protocol):
    """What the exporters say."""

    def fleet(self) -> Sight:
        """Every backend in short."""

    def read(self, name: str) -> View:
        """One backend in full, read now. Raises `Unavailable`."""


@dataclass(frozen=True)
class Parts:
    """The world of one remediator."""

    config: Config
    journal: Journal
    evidence: Evidence
    clock: Clock
    metrics: Metrics
    stop: threading.Event = field(default_factory=threading.Event)
    """Set once, when the program is to end."""
    wake: threading.Event = field(default_factory=threading.Event)
    """Set by the webhook: there may be a new request."""
