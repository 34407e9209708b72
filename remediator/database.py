"""The journal's database: one engine, short transactions, errors as one type.

SQLite runs in WAL mode with synchronous FULL: what was committed survives the loss of power, and readers never wait
for the writer. A writer takes its lock when it begins, so that it cannot fail half-way. A file beside the journal is
locked for as long as this process lives: two remediators must not carry each other's attempts.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, event, insert, select, update
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from remediator import schema

BUSY_MILLISECONDS = 5000
CONNECTIONS = 20


class JournalFailed(Exception):
    """The journal cannot be read or written now; the text is one line."""


class Taken(Exception):
    """A UNIQUE index says that somebody else was first."""


class Database:
    """Opens, creates and locks the journal. Raises `JournalFailed`."""

    def __init__(self, path: Path) -> None:
        self._lock = _lock(path)
        self._engine = _engine(path)
        try:
            with self.write() as connection:
                schema.metadata.create_all(connection)
                _check_version(connection, path)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction that writes, durable when the block is left. Raises `JournalFailed` or `Taken`."""
        with _typed_errors(), self._engine.execution_options(stallwatch_writes=True).begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent look. Raises `JournalFailed`."""
        with _typed_errors(), self._engine.connect() as connection:
            yield connection

    def check_writable(self, now: float) -> None:
        """Write something for real. Raises `JournalFailed`."""
        with self.write() as connection:
            put_meta(connection, "checked_at", repr(now))

    def close(self) -> None:
        """Close the connections and let go of the lock."""
        self._engine.dispose()
        os.close(self._lock)


def put_meta(connection: Connection, key: str, value: str) -> None:
    """Set one value of the table `meta`."""
    done = connection.execute(update(schema.meta).where(schema.meta.c.key == key).values(value=value))
    if done.rowcount == 0:
        connection.execute(insert(schema.meta).values(key=key, value=value))


@contextmanager
def _typed_errors() -> Iterator[None]:
    try:
        yield
    except IntegrityError as error:
        raise Taken(_one_line(error)) from error
    except SQLAlchemyError as error:
        raise JournalFailed(_one_line(error)) from error


def _one_line(error: SQLAlchemyError) -> str:
    # The driver's own words: SQLAlchemy would add the statement with everything that was to be written.
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split()) or type(cause).__name__


def _lock(path: Path) -> int:
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


def _engine(path: Path) -> Engine:
    engine = create_engine(
        f"sqlite:///{path}",
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


def _check_version(connection: Connection, path: Path) -> None:
    found = connection.execute(select(schema.meta.c.value).where(schema.meta.c.key == "version")).scalar()
    if found is None:
        put_meta(connection, "version", str(schema.VERSION))
    elif found != str(schema.VERSION):
        raise JournalFailed(f"{path}: is a journal of version {found}; this program reads version {schema.VERSION}")
