"""Creates the journal's tables, or brings an older journal up to date: one transaction, one process at a time.

A migration is written once and never changed: it speaks of the tables as they were in its time, not of schema.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import func, inspect, select
from sqlalchemy.engine import Connection

from remediator import schema
from remediator.errors import JournalFailed

LOCK = 0x57A11
"""The number of the advisory lock; it means nothing but this."""


def bring_up(connection: Connection, name: str) -> None:
    """Create or migrate. Raises `JournalFailed` for what is no journal, or one of a newer program."""
    if connection.dialect.name == "postgresql":
        # Released with the transaction. SQLite's writer has locked the whole file already.
        connection.execute(select(func.pg_advisory_xact_lock(LOCK)))
    tables = set(inspect(connection).get_table_names())
    if "meta" not in tables:
        if strange := tables & set(schema.metadata.tables):
            raise JournalFailed(f"{name}: is no journal, and has a table {min(strange)} of its own")
        schema.metadata.create_all(connection, checkfirst=False)
        connection.execute(schema.meta.insert().values(key="version", value=str(schema.VERSION)))
        return
    for version in range(found_version(connection, name) + 1, schema.VERSION + 1):
        MIGRATIONS[version](connection)
        connection.execute(schema.meta.update().where(schema.meta.c.key == "version").values(value=str(version)))


def check_current(connection: Connection, name: str) -> None:
    """For who only reads. Raises `JournalFailed` for everything but a journal of this version."""
    if "meta" not in inspect(connection).get_table_names():
        raise JournalFailed(f"{name}: is no journal")
    version = found_version(connection, name)
    if version < schema.VERSION:
        raise JournalFailed(f"{name}: is a journal of version {version}, which the next start of the service migrates")


def found_version(connection: Connection, name: str) -> int:
    """The journal's version. Raises `JournalFailed` when it is newer than this program."""
    found = connection.execute(select(schema.meta.c.value).where(schema.meta.c.key == "version")).scalar()
    if found is None or not found.isdecimal():
        raise JournalFailed(f"{name}: is no journal, and has a table meta of its own")
    if int(found) > schema.VERSION:
        raise JournalFailed(
            f"{name}: is a journal of version {found}; this program reads versions up to {schema.VERSION}"
        )
    return int(found)


def _to_2(connection: Connection) -> None:
    """Leases, who decided, restarts by others, and an index for everything that is looked up."""
    key = "SERIAL NOT NULL" if connection.dialect.name == "postgresql" else "INTEGER NOT NULL"
    for statement in (
        "ALTER TABLE attempts ADD COLUMN holder TEXT",
        "ALTER TABLE attempts ADD COLUMN lease_expires_at FLOAT",
        "ALTER TABLE decisions ADD COLUMN replica TEXT",
        f"CREATE TABLE restarts_seen (id {key}, backend TEXT NOT NULL, identity_before TEXT NOT NULL, "
        "identity_after TEXT NOT NULL, at FLOAT NOT NULL, ours BOOLEAN NOT NULL, PRIMARY KEY (id))",
        "CREATE UNIQUE INDEX restart_once ON restarts_seen (backend, identity_after)",
        "CREATE INDEX restarts_seen_at ON restarts_seen (at)",
        "CREATE INDEX alerts_received_at ON alerts (received_at)",
        "CREATE INDEX requests_ended_at ON requests (ended_at)",
        "CREATE INDEX decisions_request_id ON decisions (request_id)",
        "CREATE INDEX decisions_at ON decisions (at)",
        "CREATE INDEX attempts_request_id ON attempts (request_id)",
        "CREATE INDEX attempts_ended_at ON attempts (ended_at)",
        "CREATE INDEX attempts_called_at ON attempts (backend, called_at)",
        "CREATE INDEX steps_at ON steps (at)",
        # Nothing kept two storms apart before; the newest is the one that goes on.
        "UPDATE storms SET ended_at = last_over_at "
        "WHERE ended_at IS NULL AND id < (SELECT max(id) FROM storms WHERE ended_at IS NULL)",
        "CREATE UNIQUE INDEX one_storm ON storms ((ended_at IS NULL)) WHERE ended_at IS NULL",
    ):
        connection.exec_driver_sql(statement)


def _to_3(connection: Connection) -> None:
    """Restarts that a person asked for."""
    key = "SERIAL NOT NULL" if connection.dialect.name == "postgresql" else "INTEGER NOT NULL"
    for statement in (
        f"CREATE TABLE orders (id {key}, request_id INTEGER NOT NULL, backend TEXT NOT NULL, who TEXT NOT NULL, "
        "why TEXT NOT NULL, overrules TEXT NOT NULL, at FLOAT NOT NULL, PRIMARY KEY (id), "
        "FOREIGN KEY(request_id) REFERENCES requests (id))",
        "CREATE INDEX orders_request_id ON orders (request_id)",
        "CREATE INDEX orders_backend ON orders (backend)",
        "CREATE INDEX orders_at ON orders (at)",
    ):
        connection.exec_driver_sql(statement)


MIGRATIONS: Mapping[int, Callable[[Connection], None]] = {2: _to_2, 3: _to_3}
"""By the version that each leads to."""
