"""The durable record of requests, decisions, attempts and outcomes: its parts behind one door.

What each part writes is one short transaction; what the journal has answered survives kill -9 and loss of power.
"""

from __future__ import annotations

from pathlib import Path

from remediator.database import Database
from remediator.history import Reader
from remediator.holds import Holds
from remediator.inbox import Inbox
from remediator.ledger import Ledger


class Journal:
    """Opens the journal, creating its tables. Raises `JournalFailed`, with one line for a person."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path)
        self.inbox = Inbox(self._database)
        self.ledger = Ledger(self._database)
        self.holds = Holds(self._database)
        self.reader = Reader(self._database, self.holds)

    def check_writable(self, now: float) -> None:
        """Write something for real. Raises `JournalFailed`."""
        self._database.check_writable(now)

    def close(self) -> None:
        """Close the connections and let go of the lock."""
        self._database.close()
