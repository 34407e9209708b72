"""Restarts that were seen, ours and those of somebody else: each new life of a server once."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import false, func, select

from remediator.database import Database, insert_or
from remediator.schema import restarts_seen


@dataclass(frozen=True, slots=True)
class SeenRestart:
    """A server's identity changed. `at` is Unix seconds; `ours`: this journal holds the attempt that did it."""

    id: int
    backend: str
    identity_before: str
    identity_after: str
    at: float
    ours: bool


class Restarts:
    """The table of restarts that were seen."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, backend: str, identity_before: str, identity_after: str, at: float, *, ours: bool) -> bool:
        """Write a restart down; False when this life of the server is known already. Raises `JournalFailed`."""
        with self._database.write() as connection:
            row = insert_or(connection, restarts_seen).values(
                backend=backend, identity_before=identity_before, identity_after=identity_after, at=at, ours=ours
            )
            added = row.on_conflict_do_nothing().returning(restarts_seen.c.id)
            return connection.execute(added).first() is not None

    def recent(self, limit: int) -> list[SeenRestart]:
        """Newest first. Raises `JournalFailed`."""
        columns = [restarts_seen.c[name] for name in SeenRestart.__dataclass_fields__]
        with self._database.read() as connection:
            rows = connection.execute(select(*columns).order_by(restarts_seen.c.id.desc()).limit(limit))
            return [SeenRestart(*row) for row in rows]

    def last_identities(self) -> dict[str, str]:
        """The newest life of each backend of which a beginning was seen. Raises `JournalFailed`."""
        newest = select(func.max(restarts_seen.c.id)).group_by(restarts_seen.c.backend)
        with self._database.read() as connection:
            rows = connection.execute(
                select(restarts_seen.c.backend, restarts_seen.c.identity_after).where(restarts_seen.c.id.in_(newest))
            )
            return {row[0]: row[1] for row in rows}

    def count_of_others(self, backend: str) -> int:
        """How many restarts of a backend were not ours. Raises `JournalFailed`."""
        with self._database.read() as connection:
            found = connection.execute(
                select(func.count()).where(restarts_seen.c.backend == backend, restarts_seen.c.ours == false())
            )
            return int(found.scalar_one())
