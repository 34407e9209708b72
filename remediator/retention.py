"""Removes what is old from the journal, a little at a time, so that nobody waits for it.

Never removed: what is open; the attempts that the policy weighs; each backend's last attempts, whatever a clock that
was set wrongly says of their age; holds, budgets and storms, which are few.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, delete, exists, func, select
from sqlalchemy.engine import Connection

from remediator.database import Database
from remediator.schema import alerts, attempts, decisions, orders, requests, restarts_seen, steps

DAY_SECONDS = 86400.0
RETENTION_DAYS = 90.0
LEAST_DAYS = 2.0
"""What the policy weighs."""
PRUNED = ("alerts", "restarts_seen", "steps", "attempts", "decisions", "orders", "requests")
"""The tables from which old rows are removed."""
EVERY_SECONDS = 3600.0
BATCH = 500
"""Rows of a table that one transaction removes; other writers wait for it."""
KEPT_ATTEMPTS = 10
"""Of each backend: more than any budget looks back on."""
LOCK = 0x57A12


class Retention:
    """Removes rows that are older than `days`."""

    def __init__(self, database: Database, days: float = RETENTION_DAYS) -> None:
        self._database, self._days = database, max(days, LEAST_DAYS)
        self._due_at = -math.inf

    def tick(self, mono: float, now: float) -> Mapping[str, int]:
        """Once an hour, and again at each call until nothing is left: one batch. Rows removed, by table.

        `mono` is monotonic, `now` Unix seconds. Raises `JournalFailed`.
        """
        if mono < self._due_at:
            return {}
        removed = self.remove_batch(now)
        if not any(removed.values()):
            self._due_at = mono + EVERY_SECONDS
        return removed

    def remove_batch(self, now: float) -> Mapping[str, int]:
        """Remove at most `BATCH` old rows of each table; how many were removed. Raises `JournalFailed`."""
        before = now - self._days * DAY_SECONDS
        removed: Counter[str] = Counter()
        with self._database.write() as connection:
            if not _alone(connection):
                return removed
            self._attempts(connection, before, removed)
            self._requests(connection, before, removed)
            for table, at in ((alerts, alerts.c.received_at), (restarts_seen, restarts_seen.c.at)):
                old = select(table.c.id).where(at < before).order_by(at).limit(BATCH)
                removed[table.name] += connection.execute(delete(table).where(table.c.id.in_(old))).rowcount
        return removed

    @staticmethod
    def _attempts(connection: Connection, before: float, removed: Counter[str]) -> None:
        if ids := connection.scalars(old_attempts(before)).all():
            removed["steps"] += connection.execute(delete(steps).where(steps.c.attempt_id.in_(ids))).rowcount
            removed["attempts"] += connection.execute(delete(attempts).where(attempts.c.id.in_(ids))).rowcount

    @staticmethod
    def _requests(connection: Connection, before: float, removed: Counter[str]) -> None:
        if ids := connection.scalars(old_requests(before)).all():
            gone = delete(decisions).where(decisions.c.request_id.in_(ids))
            removed["decisions"] += connection.execute(gone).rowcount
            removed["orders"] += connection.execute(delete(orders).where(orders.c.request_id.in_(ids))).rowcount
            removed["requests"] += connection.execute(delete(requests).where(requests.c.id.in_(ids))).rowcount


def old_attempts(before: float) -> Select[Any]:
    """Ended before then, and not among the last of their backend."""
    younger = attempts.alias("younger")
    kept = (
        select(younger.c.id)
        .where(younger.c.backend == attempts.c.backend)
        .order_by(younger.c.id.desc())
        .limit(1)
        .offset(KEPT_ATTEMPTS - 1)
        .scalar_subquery()
    )
    return (
        select(attempts.c.id)
        .where(attempts.c.ended_at < before, attempts.c.claimed_at < before, attempts.c.id < kept)
        .where(attempts.c.outcome.is_not(None))
        .order_by(attempts.c.ended_at)
        .limit(BATCH)
    )


def old_requests(before: float) -> Select[Any]:
    """Ended before then, and without an attempt that is kept."""
    return (
        select(requests.c.id)
        .where(requests.c.ended_at < before, requests.c.state == "ended")
        .where(~exists().where(attempts.c.request_id == requests.c.id))
        .order_by(requests.c.ended_at)
        .limit(BATCH)
    )


def _alone(connection: Connection) -> bool:
    """Whether no other replica is at it now."""
    if connection.dialect.name != "postgresql":
        return True
    return bool(connection.execute(select(func.pg_try_advisory_xact_lock(LOCK))).scalar())
