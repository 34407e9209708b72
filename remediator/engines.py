"""How each database is opened: what is durable, what is locked, and after what time it counts as gone."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.pool import NullPool

from remediator.errors import JournalFailed

BUSY_MILLISECONDS = 5000
CONNECTIONS, POSTGRESQL_CONNECTIONS = 20, 8
CONNECT_SECONDS = 5


@dataclass(frozen=True)
class Times:
    """The server's limits in seconds; `patience` is ours, for a server that stands still and keeps none of them."""

    statement: float = 10.0
    lock: float = 5.0
    idle_in_transaction: float = 30.0
    patience: float = 15.0


MIGRATING = Times(statement=600.0, lock=600.0, idle_in_transaction=600.0, patience=620.0)
"""An index on a large table takes long, and so does waiting for another replica to make it."""
EXPORTING = Times(idle_in_transaction=3600.0)
"""Whoever reads the export may be a person with a pager."""


def lock(path: Path) -> int:
    """The lock of an SQLite journal, held as long as the descriptor is open. Raises `JournalFailed`."""
    if not path.parent.is_dir():
        raise JournalFailed(f"journal_url: the directory {path.parent} does not exist")
    name = path.with_name(path.name + ".lock")
    try:
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JournalFailed(f"{name}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise JournalFailed(f"{path}: another remediator uses this journal") from error
    return handle


def sqlite(path: Path) -> Engine:
    """WAL and synchronous FULL: what was committed survives the loss of power, and readers never wait."""
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": BUSY_MILLISECONDS / 1000, "check_same_thread": False},
        pool_size=CONNECTIONS,
        max_overflow=CONNECTIONS,
        pool_timeout=BUSY_MILLISECONDS / 1000,
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # we begin our transactions ourselves, below
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("stallwatch_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def sqlite_to_read(path: Path) -> Engine:
    """Beside the process that writes: no lock on the file, and nothing is changed."""
    if not path.is_file():
        raise JournalFailed(f"journal_url: {path} does not exist")
    url = URL.create("sqlite", database=f"{path.absolute().as_uri()}?mode=ro", query={"uri": "true"})
    engine = create_engine(url, connect_args={"timeout": BUSY_MILLISECONDS / 1000}, poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def postgresql(url: URL, password: str | None, times: Times) -> Engine:
    """READ COMMITTED: every race is decided by an index or by the WHERE of an UPDATE, which PostgreSQL looks at again
    after it has waited for the row. Nothing is prepared: a general plan could not use the partial indexes.
    """
    try:
        from remediator.bounded import BoundedConnection  # noqa: PLC0415  # the extra may be missing
    except ImportError:
        raise JournalFailed("journal_url: PostgreSQL needs an extra: pip install 'stallwatch[postgresql]'") from None
    options = {
        "statement_timeout": f"{times.statement:.0f}s",
        "lock_timeout": f"{times.lock:.0f}s",
        "idle_in_transaction_session_timeout": f"{times.idle_in_transaction:.0f}s",
        "synchronous_commit": "on",
    }
    arguments: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
        "application_name": "stallwatch-remediator",
        "client_encoding": "utf8",
        "prepare_threshold": None,
        # A server that vanished without a word: the kernel finds out.
        "tcp_user_timeout": int(times.patience * 1000),
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
    }
    if password is not None:
        arguments["password"] = password
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        connect_args=arguments,
        isolation_level="READ COMMITTED",
        use_native_hstore=False,  # it would ask the server about a type that is not used
        pool_size=POSTGRESQL_CONNECTIONS,
        max_overflow=POSTGRESQL_CONNECTIONS,
        pool_timeout=CONNECT_SECONDS,
        pool_pre_ping=True,  # a server that was started again costs nobody a failure
    )

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, positional: Any, named: Any) -> Any:
        connection = BoundedConnection.connect(*positional, **named)
        connection.patience_seconds = times.patience
        return connection

    return engine
