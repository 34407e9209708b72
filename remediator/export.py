"""The journal as JSON lines, oldest first: for whoever writes down what happened.

It only reads, in one consistent look, a few rows at a time, and may run while the service does.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from sqlalchemy import Select, Table, select
from sqlalchemy.engine import URL, Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from remediator import engines, migrations
from remediator.errors import typed
from remediator.schema import alerts, attempts, budgets, decisions, holds, orders, restarts_seen, steps, storms

ROWS = 500
"""Of each kind that are held in memory."""

Event = dict[str, Any]
"""`time` (ISO, UTC), `at` (Unix seconds), `kind`, and the kind's own keys. Other times are Unix seconds."""


def export(where: Path | URL, password: str | None, out: TextIO, *, since: float, backend: str | None = None) -> int:
    """Write the events at or after `since` (Unix seconds), of one backend or of all; how many there were.

    A storm concerns every backend. Raises `JournalFailed`.
    """
    number = 0
    with _look(where, password) as connection, ExitStack() as cursors:
        for event in _events(connection, cursors, since, backend):
            out.write(json.dumps(event, separators=(",", ":")) + "\n")
            number += 1
    return number


@contextmanager
def _look(where: Path | URL, password: str | None) -> Iterator[Connection]:
    if isinstance(where, Path):
        engine = engines.sqlite_to_read(where)
        reads = engine
    else:
        engine = engines.postgresql(where, password, engines.EXPORTING)
        reads = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    name = str(where) if isinstance(where, Path) else where.render_as_string()
    try:
        with typed(), reads.connect() as connection:
            migrations.check_current(connection, name)
            yield connection
    finally:
        engine.dispose()


def _events(connection: Connection, cursors: ExitStack, since: float, backend: str | None) -> Iterator[Event]:
    """Every kind in its own order, from its own cursor, merged."""
    reading = connection.execution_options(yield_per=ROWS)

    def of(
        kind: str, at: ColumnElement[float], table: Table, shape: Callable[[RowMapping], Event] = dict, **more: Any
    ) -> Iterator[Event]:
        rows = cursors.enter_context(closing(reading.execute(_query(table, at, since, backend))))
        for row in rows.mappings():
            yield _event(kind, float(row["event_at"]), {**shape(row), **more})

    return heapq.merge(
        of("alert", alerts.c.received_at, alerts),
        of("order", orders.c.at, orders),
        of("decision", decisions.c.at, decisions),
        of("attempt", attempts.c.claimed_at, attempts, _attempt),
        of("step", steps.c.at, steps),
        of("hold", holds.c.since, holds, event="held"),
        of("hold", holds.c.ended_at, holds, event="released"),
        of("budget", budgets.c.latched_at, budgets, event="latched"),
        of("budget", budgets.c.reset_at, budgets, event="reset"),
        of("storm", storms.c.since, storms, event="began"),
        of("storm", storms.c.overridden_at, storms, event="overridden"),
        of("storm", storms.c.ended_at, storms, event="ended"),
        of("restart_seen", restarts_seen.c.at, restarts_seen),
        key=lambda event: event["at"],
    )


def _query(table: Table, at: ColumnElement[float], since: float, backend: str | None) -> Select[Any]:
    order = [at, *table.primary_key.columns]
    query = select(table, at.label("event_at")).where(at >= since).order_by(*order)
    if table is steps:
        query = query.add_columns(attempts.c.backend).join(attempts, attempts.c.id == steps.c.attempt_id)
    if backend is None or table is storms:
        return query
    return query.where((attempts if table is steps else table).c.backend == backend)


def _attempt(row: RowMapping) -> Event:
    evidence = row["evidence"]
    return {**row, "evidence": None if evidence is None else json.loads(evidence)}


def _event(kind: str, at: float, values: Event) -> Event:
    # A time that no calendar has, from a clock that was never set: the seconds tell.
    try:
        time = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError):
        time = ""
    own = {key: value for key, value in values.items() if key not in ("event_at", "at", "lease_expires_at")}
    return {"time": time, "at": at, "kind": kind, **own}
