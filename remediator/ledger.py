"""The journal's attempts: claimed once, then a row of steps, then an outcome."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import insert, select, update
from sqlalchemy.engine import Connection, RowMapping

from remediator.database import Database, Taken
from remediator.inbox import StoredRequest
from remediator.model import Outcome, Step
from remediator.schema import attempts, requests, steps

_STEPS = frozenset(step.value for step in Step)


@dataclass(frozen=True, slots=True)
class StoredAttempt:
    """An attempt as it stands in the journal. Times are Unix seconds."""

    id: int
    request_id: int
    backend: str
    group: str
    last_step: Step
    calls: int
    called_at: float | None
    deadline_at: float | None
    identity_before: str | None
    identity_after: str | None
    driver_failure: str | None
    grace_seconds: float | None
    """The start-up grace that the saved evidence names."""
    at: Mapping[Step, float]
    """When each step was journalled last."""


class Ledger:
    """Attempts and their steps."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, request: StoredRequest, group: str, driver: str, sentence: str, now: float) -> StoredAttempt | None:
        """Open the attempt of a waiting request; None when somebody else has one in the backend or its group.

        The UNIQUE indexes decide, so that two processes may try at the same time.
        """
        try:
            with self._database.write() as connection:
                taken = connection.execute(
                    update(requests)
                    .where(requests.c.id == request.id, requests.c.state == "waiting")
                    .values(state="acting")
                )
                if taken.rowcount == 0:
                    return None
                row = {
                    "request_id": request.id,
                    "backend": request.backend,
                    "group_name": group,
                    "driver": driver,
                    "claimed_at": now,
                    "sentence": sentence,
                    "identity_before": request.identity_noted,
                    "last_step": Step.CLAIMED,
                }
                attempt_id = connection.execute(insert(attempts).values(**row).returning(attempts.c.id)).scalar_one()
                _add_step(connection, attempt_id, Step.CLAIMED, now)
                return _load(connection, attempt_id)
        except Taken:
            return None

    def step(self, attempt_id: int, step: Step, now: float, detail: str = "", **values: object) -> None:
        """Journal a step, together with what became known in it. Raises `Taken` if it stands there already."""
        with self._database.write() as connection:
            connection.execute(update(attempts).where(attempts.c.id == attempt_id).values(last_step=step, **values))
            _add_step(connection, attempt_id, step, now, detail)

    def call(self, attempt_id: int, number: int, now: float, deadline_at: float) -> None:
        """Journal, before it happens, that the driver is called for the `number`th time. Raises `Taken`."""
        with self._database.write() as connection:
            connection.execute(
                update(attempts)
                .where(attempts.c.id == attempt_id)
                .values(
                    last_step=Step.CALLED, calls=number, called_at=now, deadline_at=deadline_at, driver_failure=None
                )
            )
            _add_step(connection, attempt_id, Step.CALLED, now)

    def finish(
        self, attempt_id: int, outcome: Outcome, reason: str, detail: str, now: float, *, still_wanted: bool = False
    ) -> None:
        """Journal the outcome and end the request, or let it wait again if it is `still_wanted`."""
        with self._database.write() as connection:
            open_row = connection.execute(
                select(attempts.c.request_id).where(attempts.c.id == attempt_id, attempts.c.outcome.is_(None))
            ).scalar_one_or_none()
            if open_row is None:
                return
            connection.execute(
                update(attempts)
                .where(attempts.c.id == attempt_id)
                .values(outcome=outcome, reason=reason, detail=detail, ended_at=now)
            )
            _add_step(connection, attempt_id, outcome, now, detail)
            after = {"state": "waiting"} if still_wanted else {"state": "ended", "ended_at": now}
            connection.execute(update(requests).where(requests.c.id == open_row).values(**after))

    def get(self, attempt_id: int) -> StoredAttempt:
        """One attempt as it stands now."""
        with self._database.read() as connection:
            return _load(connection, attempt_id)

    def unfinished(self) -> list[StoredAttempt]:
        """The attempts without an outcome, oldest first."""
        with self._database.read() as connection:
            ids = connection.execute(
                select(attempts.c.id).where(attempts.c.outcome.is_(None)).order_by(attempts.c.id)
            ).scalars()
            return [_load(connection, attempt_id) for attempt_id in list(ids)]


def _add_step(connection: Connection, attempt_id: int, name: str, now: float, detail: str = "") -> None:
    calls = select(attempts.c.calls).where(attempts.c.id == attempt_id).scalar_subquery()
    connection.execute(insert(steps).values(attempt_id=attempt_id, name=name, call=calls, at=now, detail=detail))


def _load(connection: Connection, attempt_id: int) -> StoredAttempt:
    row = connection.execute(select(attempts).where(attempts.c.id == attempt_id)).mappings().one()
    found = connection.execute(
        select(steps.c.name, steps.c.at).where(steps.c.attempt_id == attempt_id).order_by(steps.c.id)
    )
    at = {Step(name): when for name, when in found if name in _STEPS}
    return StoredAttempt(
        id=row["id"],
        request_id=row["request_id"],
        backend=row["backend"],
        group=row["group_name"],
        last_step=Step(row["last_step"]),
        calls=row["calls"],
        called_at=row["called_at"],
        deadline_at=row["deadline_at"],
        identity_before=row["identity_before"],
        identity_after=row["identity_after"],
        driver_failure=row["driver_failure"],
        grace_seconds=_grace(row),
        at=at,
    )


def _grace(row: RowMapping) -> float | None:
    if row["evidence"] is None:
        return None
    limits = json.loads(row["evidence"]).get("limits")
    grace = limits.get("startup_grace_seconds") if isinstance(limits, dict) else None
    return float(grace) if isinstance(grace, int | float) and not isinstance(grace, bool) else None
