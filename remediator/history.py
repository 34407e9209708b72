"""Reads the journal: as the history that the policy wants, and as the plain data that pages and the API show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select, text, union_all
from sqlalchemy.engine import Connection

from remediator.database import Database
from remediator.holds import holds_at, storm_now
from remediator.model import History, Outcome, PastAttempt
from remediator.schema import ATTEMPT_IS_OPEN, REQUEST_IS_OPEN, attempts, budgets, decisions, in_order, requests, steps

KEPT_SECONDS = 2 * 86400.0
"""How far back the policy's history goes: its longest limit is a day."""

Row = dict[str, Any]
HIDDEN = frozenset({"evidence", "evidence_output", "holder", "lease_expires_at"})
"""Columns of an attempt that lists do not show."""


@dataclass(frozen=True, slots=True)
class Seen(History):
    """A history, and the youngest attempt that there was when it was read: a claim must find no younger one."""

    newest_attempt: int = 0


class Reader:
    """Looks at the journal; changes nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def history(self, now: float) -> Seen:
        """Everything that the policy weighs, in one consistent look."""
        with self._database.read() as connection:
            past = tuple(
                PastAttempt(row[0], row[1], row[2], row[3], Outcome(row[4]) if row[4] else None)
                for row in connection.execute(past_attempts(now - KEPT_SECONDS))
            )
            rows = connection.execute(select(budgets.c.backend, budgets.c.latched_at, budgets.c.reset_at)).all()
            return Seen(
                attempts=past,
                holds=holds_at(connection, now),
                latched=frozenset(row.backend for row in rows if row.latched_at is not None),
                budget_reset_at={row.backend: row.reset_at for row in rows if row.reset_at is not None},
                storm=storm_now(connection),
                newest_attempt=connection.execute(select(func.max(attempts.c.id))).scalar() or 0,
            )

    def last_calls(self) -> dict[str, float]:
        """When each backend's driver was called last."""
        with self._database.read() as connection:
            return {row[0]: row[1] for row in connection.execute(last_calls()) if row[1] is not None}

    def recent_attempts(self, limit: int, backend: str | None = None) -> list[Row]:
        """Attempts with their steps, newest first; of one backend or of all."""
        query = select(*(c for c in attempts.c if c.name not in HIDDEN))
        if backend is not None:
            query = query.where(attempts.c.backend == backend)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(attempts.c.id.desc()).limit(limit)).mappings()
            found = [dict(row) for row in rows]
            taken = _steps(connection, [row["id"] for row in found])
        for row in found:
            row["group"] = row.pop("group_name")
            row["steps"] = taken.get(row["id"], [])
        return found

    def evidence(self, attempt_id: int) -> Row | None:
        """What was saved before an attempt called: the exporter's document, and the output of the evidence command."""
        with self._database.read() as connection:
            row = connection.execute(
                select(attempts.c.evidence, attempts.c.evidence_output).where(attempts.c.id == attempt_id)
            ).first()
        if row is None:
            return None
        return {"exporter": json.loads(row[0]) if row[0] else None, "output": row[1]}

    def open_requests(self, limit: int | None, backend: str | None = None) -> list[Row]:
        """Requests that wait or are acted on, newest first; of one backend or of all."""
        newest = select(requests).where(text(REQUEST_IS_OPEN)).order_by(in_order(requests).desc())
        if backend is not None:
            newest = newest.where(requests.c.backend == backend)
        return self._rows(newest.limit(limit))

    def recent_decisions(self, limit: int) -> list[Row]:
        """Decisions, newest first; one that repeats the one before of its request is not journalled."""
        return self._rows(select(decisions).order_by(decisions.c.id.desc()).limit(limit))

    def _rows(self, query: Select[Any]) -> list[Row]:
        with self._database.read() as connection:
            rows = connection.execute(query)
            return [{key: value for key, value in row.items() if key != "replica"} for row in rows.mappings()]


def past_attempts(since: float) -> Select[Any]:
    """The open attempts, and those that were claimed after `since`: each part by its own index."""
    columns = [attempts.c[name] for name in ("backend", "group_name", "called_at", "ended_at", "outcome")]
    still_open = select(*columns).where(text(ATTEMPT_IS_OPEN))
    ended = select(*columns).where(attempts.c.outcome.is_not(None), attempts.c.claimed_at > since)
    return select(union_all(still_open, ended).subquery())


def last_calls() -> Select[Any]:
    """One look into the index for each backend, from name to name, however many attempts there are."""
    first = select(func.min(attempts.c.backend).label("backend")).cte("names", recursive=True)
    after = select(func.min(attempts.c.backend)).where(attempts.c.backend > first.c.backend).scalar_subquery()
    names = first.union_all(select(after).where(first.c.backend.is_not(None)))
    last = select(func.max(attempts.c.called_at)).where(attempts.c.backend == names.c.backend).scalar_subquery()
    return select(names.c.backend, last).where(names.c.backend.is_not(None))


def _steps(connection: Connection, ids: Sequence[int]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    rows = connection.execute(select(steps).where(steps.c.attempt_id.in_(ids)).order_by(steps.c.id))
    for row in rows.mappings():
        step = {"name": row["name"], "at": row["at"], "detail": row["detail"]}
        found.setdefault(row["attempt_id"], []).append(step)
    return found
