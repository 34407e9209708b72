"""The journal's database: short transactions, errors as one type.

SQLite: a writer takes its lock when it begins, so that it cannot fail half-way, and a file beside the journal is
locked for as long as this process lives: two remediators must not carry each other's attempts.
PostgreSQL: several remediators; lease.py says who carries what. Its server must not lose what it has committed: after
a failover to a copy that lags behind, restarts are forgotten.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from sqlalchemy import Table, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection

from remediator import engines, migrations, schema
from remediator.errors import JournalFailed, LeaseLost, Taken, typed
from remediator.lease import Lease
from remediator.turns import Turns

__all__ = ["Database", "JournalFailed", "LeaseLost", "Taken", "insert_or", "one_at_a_time", "put_meta"]


class Database:
    """Opens, creates or migrates, and locks the journal: an SQLite file or a PostgreSQL database.

    Raises `JournalFailed`. The password of a database never appears in it.
    """

    def __init__(self, where: Path | URL, password: str | None = None) -> None:
        self.lease = Lease(exclusive=isinstance(where, Path))
        self._lock: int | None = None
        self._turns = Turns(engines.BUSY_MILLISECONDS / 1000) if isinstance(where, Path) else None
        if isinstance(where, Path):
            self._lock = engines.lock(where)
            self._engine = self._reads = engines.sqlite(where)
        else:
            self._engine = engines.postgresql(where, password, engines.Times())
            self._reads = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._writes = self._engine.execution_options(stallwatch_writes=True)
        try:
            self._bring_up(where, password)
        except BaseException:
            self.close()
            raise

    def _bring_up(self, where: Path | URL, password: str | None) -> None:
        if isinstance(where, Path):
            with self.write() as connection:
                migrations.bring_up(connection, str(where))
            return
        patient = engines.postgresql(where, password, engines.MIGRATING)
        try:
            with typed(), patient.begin() as connection:
                migrations.bring_up(connection, where.render_as_string())
        finally:
            patient.dispose()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction that writes, durable when the block is left. Raises `JournalFailed` or `Taken`."""
        with self._turns.turn() if self._turns else nullcontext(), typed(), self._writes.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent look. Raises `JournalFailed`."""
        with typed(), self._reads.connect() as connection:
            yield connection

    def check_writable(self, now: float) -> None:
        """Write something for real. Raises `JournalFailed`."""
        with self.write() as connection:
            put_meta(connection, "checked_at", repr(now))

    def close(self) -> None:
        """Close the connections and let go of the lock."""
        self._engine.dispose()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def insert_or(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that can say ON CONFLICT, which both databases spell alike."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def one_at_a_time(connection: Connection, number: int) -> None:
    """Only one transaction of all replicas goes on from here until it ends; with SQLite that is so from its start."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(number)))


def put_meta(connection: Connection, key: str, value: str) -> None:
    """Set one value of the table `meta`."""
    row = insert_or(connection, schema.meta).values(key=key, value=value)
    connection.execute(row.on_conflict_do_update(index_elements=["key"], set_={"value": value}))
