"""The durable record of requests, decisions, attempts and outcomes: its parts behind one door.

What each part writes is one short transaction; what the journal has answered survives kill -9 and loss of power.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import URL

from remediator.database import Database
from remediator.history import Reader
from remediator.holds import Holds
from remediator.inbox import Inbox
from remediator.ledger import Ledger
from remediator.orders import Orders
from remediator.restarts import Restarts
from remediator.retention import RETENTION_DAYS, Retention


class Journal:
    """Opens the journal: an SQLite file, or a PostgreSQL database that several replicas share.

    Its tables are created or migrated. Raises `JournalFailed`, with one line for a person.
    """

    def __init__(self, where: Path | URL, password: str | None = None, retention_days: float = RETENTION_DAYS) -> None:
        self._database = Database(where, password)
        self.inbox = Inbox(self._database)
        self.ledger = Ledger(self._database)
        self.orders = Orders(self._database)
        self.holds = Holds(self._database)
        self.reader = Reader(self._database)
        self.restarts = Restarts(self._database)
        self.retention = Retention(self._database, retention_days)

    @property
    def replica(self) -> str:
        """This process's name in leases and decisions."""
        return self._database.lease.replica

    def check_writable(self, now: float) -> None:
        """Write something for real. Raises `JournalFailed`."""
        self._database.check_writable(now)

    def close(self) -> None:
        """Close the connections and let go of the lock."""
        self._database.close()
