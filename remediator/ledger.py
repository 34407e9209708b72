"""The journal's attempts: claimed once, then a row of steps, then an outcome.

Whatever is written to an attempt is written only while this process holds its lease, and prolongs it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, insert, or_, select, text, update
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from remediator.database import Database, LeaseLost, Taken
from remediator.holds import overtaken
from remediator.inbox import StoredRequest
from remediator.lease import MARGIN_SECONDS
from remediator.model import Outcome, Reason, Step
from remediator.schema import ATTEMPT_IS_OPEN, attempts, in_order, requests, steps

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
        self._database, self._lease = database, database.lease

    def claim(
        self,
        request: StoredRequest,
        group: str,
        driver: str,
        sentence: str,
        now: float,
        *,
        newest_seen: int | None = None,
        overruled: frozenset[Reason] = frozenset(),
    ) -> StoredAttempt | None:
        """Open the attempt of a waiting request; None when somebody else has one in the backend or its group.

        The UNIQUE indexes decide, so that two processes may try at the same time. `newest_seen` is the youngest
        attempt that the decision weighed: a decision from before another one's attempt, hold, latch or storm is void,
        unless a person overruled just that latch or storm.
        """
        try:
            with self._database.write() as connection:
                current = ~overtaken(request.backend, group, now, newest_seen, overruled)
                taken = connection.execute(
                    update(requests)
                    .where(requests.c.id == request.id, requests.c.state == "waiting", current)
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
                    "holder": self._lease.replica,
                    "lease_expires_at": self._lease.until(MARGIN_SECONDS),
                }
                attempt_id = connection.execute(insert(attempts).values(**row).returning(attempts.c.id)).scalar_one()
                _add_step(connection, attempt_id, Step.CLAIMED, now)
                return _load(connection, attempt_id)
        except Taken:
            return None

    def take(self, attempt_id: int, lease_seconds: float = MARGIN_SECONDS) -> StoredAttempt | None:
        """Take up an open attempt that nobody carries any more; None while somebody does, or when it has ended."""
        with self._database.write() as connection:
            if not self._update(connection, attempt_id, self._lease.free(), lease_seconds, holder=self._lease.replica):
                return None
            return _load(connection, attempt_id)

    def renew(self, attempt_id: int, lease_seconds: float) -> None:
        """Prolong the lease while nothing is journalled. Raises `LeaseLost`."""
        if not self._lease.exclusive:
            with self._database.write() as connection:
                self._carry(connection, attempt_id, lease_seconds)

    def release(self, attempt_id: int) -> None:
        """Let another replica take the attempt up at once."""
        if not self._lease.exclusive:
            with self._database.write() as connection:
                self._update(connection, attempt_id, self._lease.mine(), 0.0)

    def step(
        self,
        attempt_id: int,
        step: Step,
        now: float,
        detail: str = "",
        *,
        lease_seconds: float = MARGIN_SECONDS,
        **values: object,
    ) -> None:
        """Journal a step, together with what became known in it.

        Raises `Taken` if it stands there already, `LeaseLost` if somebody else carries the attempt.
        """
        with self._database.write() as connection:
            self._carry(connection, attempt_id, lease_seconds, last_step=step, **values)
            _add_step(connection, attempt_id, step, now, detail)

    def call(
        self,
        attempt_id: int,
        number: int,
        now: float,
        deadline_at: float,
        *,
        lease_seconds: float | None = None,
    ) -> None:
        """Journal, before it happens, that the driver is called for the `number`th time. Raises as `step` does."""
        seconds = deadline_at - now + MARGIN_SECONDS if lease_seconds is None else lease_seconds
        values = {"calls": number, "called_at": now, "deadline_at": deadline_at, "driver_failure": None}
        with self._database.write() as connection:
            self._carry(connection, attempt_id, seconds, last_step=Step.CALLED, **values)
            _add_step(connection, attempt_id, Step.CALLED, now)

    def finish(
        self, attempt_id: int, outcome: Outcome, reason: str, detail: str, now: float, *, still_wanted: bool = False
    ) -> None:
        """Journal the outcome and end the request, or let it wait again if it is `still_wanted`.

        The first outcome stands. Raises `LeaseLost`.
        """
        with self._database.write() as connection:
            open_row = connection.execute(
                select(attempts.c.request_id).where(attempts.c.id == attempt_id, attempts.c.outcome.is_(None))
            ).scalar_one_or_none()
            if open_row is None:
                return
            self._carry(connection, attempt_id, 0.0, outcome=outcome, reason=reason, detail=detail, ended_at=now)
            _add_step(connection, attempt_id, outcome, now, detail)
            after = {"state": "waiting"} if still_wanted else {"state": "ended", "ended_at": now}
            connection.execute(update(requests).where(requests.c.id == open_row).values(**after))

    def get(self, attempt_id: int) -> StoredAttempt:
        """One attempt as it stands now."""
        with self._database.read() as connection:
            return _load(connection, attempt_id)

    def called_on(self, backend: str, identity: str) -> bool:
        """Whether an attempt called the driver while the backend had this identity. Raises `JournalFailed`."""
        did = or_(attempts.c.driver_failure.is_(None), attempts.c.driver_failure != "replaced")
        wanted = (attempts.c.backend == backend, attempts.c.identity_before == identity, attempts.c.calls > 0, did)
        with self._database.read() as connection:
            return connection.execute(select(attempts.c.id).where(*wanted).limit(1)).first() is not None

    def unfinished(self) -> list[StoredAttempt]:
        """The attempts without an outcome, oldest first."""
        return self._all(_open())

    def left(self) -> list[StoredAttempt]:
        """The open attempts that this process may take up, unless it carries them already; oldest first."""
        return self._all(_open().where(self._lease.free()))

    def _all(self, ids: Select[Any]) -> list[StoredAttempt]:
        with self._database.read() as connection:
            return [_load(connection, attempt_id) for attempt_id in connection.scalars(ids).all()]

    def _carry(self, connection: Connection, attempt_id: int, lease_seconds: float, **values: object) -> None:
        if not self._update(connection, attempt_id, self._lease.mine(), lease_seconds, **values):
            raise LeaseLost(f"attempt {attempt_id} is carried by another replica, or its lease has run out")

    def _update(
        self, connection: Connection, attempt_id: int, which: ColumnElement[bool], seconds: float, **values: object
    ) -> bool:
        done = connection.execute(
            update(attempts)
            .where(attempts.c.id == attempt_id, attempts.c.outcome.is_(None), which)
            .values(lease_expires_at=self._lease.until(seconds), **values)
        )
        return done.rowcount > 0


def _open() -> Select[Any]:
    return select(attempts.c.id).where(text(ATTEMPT_IS_OPEN)).order_by(in_order(attempts))


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
