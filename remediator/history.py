"""Reads the journal: as the history that the policy wants, and as the plain data that pages and the API show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Table, func, or_, select
from sqlalchemy.engine import Connection

from remediator.database import Database
from remediator.holds import Holds
from remediator.model import History, Outcome, PastAttempt
from remediator.schema import attempts, budgets, decisions, requests, steps

KEPT_SECONDS = 2 * 86400.0
"""How far back the policy's history goes: its longest limit is a day."""

Row = dict[str, Any]


class Reader:
    """Looks at the journal; changes nothing."""

    def __init__(self, database: Database, holds: Holds) -> None:
        self._database, self._holds = database, holds

    def history(self, now: float) -> History:
        """Everything that the policy weighs."""
        columns = (
            attempts.c.backend,
            attempts.c.group_name,
            attempts.c.called_at,
            attempts.c.ended_at,
            attempts.c.outcome,
        )
        with self._database.read() as connection:
            past = tuple(
                PastAttempt(row[0], row[1], row[2], row[3], Outcome(row[4]) if row[4] else None)
                for row in connection.execute(
                    select(*columns).where(
                        or_(attempts.c.outcome.is_(None), attempts.c.claimed_at > now - KEPT_SECONDS)
                    )
                )
            )
            rows = connection.execute(select(budgets.c.backend, budgets.c.latched_at, budgets.c.reset_at)).all()
        return History(
            attempts=past,
            holds=self._holds.current(now),
            latched=frozenset(row.backend for row in rows if row.latched_at is not None),
            budget_reset_at={row.backend: row.reset_at for row in rows if row.reset_at is not None},
            storm=self._holds.storm(),
        )

    def last_calls(self) -> dict[str, float]:
        """When each backend's driver was called last."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(attempts.c.backend, func.max(attempts.c.called_at))
                .where(attempts.c.called_at.is_not(None))
                .group_by(attempts.c.backend)
            )
            return {row[0]: row[1] for row in rows}

    def recent_attempts(self, limit: int) -> list[Row]:
        """Attempts with their steps, newest first."""
        shown = [c for c in attempts.c if c.name not in ("evidence", "evidence_output")]
        with self._database.read() as connection:
            rows = connection.execute(select(*shown).order_by(attempts.c.id.desc()).limit(limit)).mappings()
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

    def open_requests(self, limit: int) -> list[Row]:
        """Requests that wait or are acted on, newest first."""
        return self._newest(requests, limit, requests.c.state != "ended")

    def recent_decisions(self, limit: int) -> list[Row]:
        """Decisions, newest first; one that repeats the one before of its request is not journalled."""
        return self._newest(decisions, limit)

    def _newest(self, table: Table, limit: int, *which: Any) -> list[Row]:
        with self._database.read() as connection:
            rows = connection.execute(select(table).where(*which).order_by(table.c.id.desc()).limit(limit))
            return [dict(row) for row in rows.mappings()]


def _steps(connection: Connection, ids: Sequence[int]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    rows = connection.execute(select(steps).where(steps.c.attempt_id.in_(ids)).order_by(steps.c.id))
    for row in rows.mappings():
        step = {"name": row["name"], "at": row["at"], "detail": row["detail"]}
        found.setdefault(row["attempt_id"], []).append(step)
    return found
