"""The journal's requests: alerts come in, one open request per backend, decisions when they change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import and_, bindparam, exists, func, insert, or_, select, text, true, update
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from remediator.alerts import Alert
from remediator.database import Database, insert_or, one_at_a_time
from remediator.model import Decision, Verb
from remediator.schema import REQUEST_IS_OPEN, alerts, budgets, decisions, in_order, requests

LOCK = 0x57A13
DISAGREE_SECONDS = 600.0
"""Two replicas that see the world differently write it down so often, and not in turns every round."""

Key = tuple[str, bool]
"""What one open request stands for: the backend's name, and whether the alert asked for a restart."""


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A request as it stands in the journal. Times are Unix seconds."""

    id: int
    backend: str
    restart_asked: bool
    state: str
    created_at: float
    alerts: int
    identity_noted: str | None
    seen_stuck: bool
    decision: str | None
    reason: str | None


class Inbox:
    """Requests and decisions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def receive(self, received: Sequence[Alert], now: float) -> frozenset[str]:
        """Journal every alert of one delivery in one transaction; the backends for which a request was opened.

        An alert for a backend whose request is still open is counted on that request and opens none.
        """
        if not received:
            return frozenset()
        counts: dict[Key, int] = {}
        for alert in received:
            if alert.status == "firing":
                key = (alert.backend, alert.restart_asked)
                counts[key] = counts.get(key, 0) + 1
        with self._database.write() as connection:
            connection.execute(insert(alerts), [{**asdict(alert), "received_at": now} for alert in received])
            return self._count(connection, counts, now)

    def _count(self, connection: Connection, counts: dict[Key, int], now: float) -> frozenset[str]:
        if not counts:
            return frozenset()
        # Two replicas with the same alerts in another order would wait for each other's rows in turn.
        one_at_a_time(connection, LOCK)
        before = _open(connection)
        new = [
            {
                "backend": backend,
                "restart_asked": asked,
                "state": "waiting",
                "created_at": now,
                "last_alert_at": now,
                "alerts": number,
            }
            for (backend, asked), number in counts.items()
            if (backend, asked) not in before
        ]
        known = [{"key": before[key], "more": number} for key, number in counts.items() if key in before]
        if new:
            connection.execute(insert(requests), new)
        if known:
            connection.execute(
                update(requests)
                .where(requests.c.id == bindparam("key"))
                .values(alerts=requests.c.alerts + bindparam("more"), last_alert_at=now),
                known,
            )
        return frozenset(backend for backend, asked in counts if (backend, asked) not in before)

    def waiting(self) -> list[StoredRequest]:
        """The requests that wait for a decision, oldest first."""
        return self._select(requests.c.state == "waiting")

    def open(self) -> list[StoredRequest]:
        """The requests that wait or are being acted on, oldest first."""
        return self._select(true())

    def _select(self, which: ColumnElement[bool]) -> list[StoredRequest]:
        columns = [requests.c[name] for name in StoredRequest.__dataclass_fields__]
        with self._database.read() as connection:
            rows = connection.execute(select(*columns).where(text(REQUEST_IS_OPEN), which).order_by(in_order(requests)))
            return [StoredRequest(*row) for row in rows]

    def note_identity(self, request_id: int, identity: str) -> str:
        """Keep the identity that the driver told when the request came; the one that is kept, which was the first."""
        noted = func.coalesce(requests.c.identity_noted, identity)
        with self._database.write() as connection:
            row = update(requests).where(requests.c.id == request_id).values(identity_noted=noted)
            return str(connection.execute(row.returning(requests.c.identity_noted)).scalar_one())

    def note_stuck(self, request_id: int) -> None:
        """The exporter has said `stuck` since the request came."""
        with self._database.write() as connection:
            connection.execute(
                update(requests)
                .where(requests.c.id == request_id, requests.c.seen_stuck.is_(False))
                .values(seen_stuck=True)
            )

    def decided(self, request: StoredRequest, decision: Decision, now: float, *, latch: bool = False) -> bool:
        """Journal a decision that differs from the one before; a refusal ends the request. Whether it was journalled.

        The database compares: another replica may have decided the same, or ended or claimed the request, by now.
        `latch` closes the backend's budget in the same transaction, until a person resets it.
        """
        said = {"decision": decision.verb, "reason": decision.reason, "detail": decision.detail}
        ended: dict[str, object] = {"state": "ended", "ended_at": now} if decision.verb is Verb.REFUSE else {}
        state = "acting" if decision.verb is Verb.ACT else "waiting"
        unless = self._repeats(request.id, decision, now) if decision.verb is Verb.WAIT else ~true()
        with self._database.write() as connection:
            done = connection.execute(
                update(requests)
                .where(requests.c.id == request.id, requests.c.state == state, ~unless)
                .values(**said, **ended)
            )
            if done.rowcount == 0:
                return False
            row = {"request_id": request.id, "backend": request.backend, "at": now, **said}
            connection.execute(insert(decisions).values(replica=self._database.lease.replica, **row))
            if latch:
                latch_budget(connection, request.backend, now)
            return True

    def _repeats(self, request_id: int, decision: Decision, now: float) -> ColumnElement[bool]:
        """The request's last decision says the same; or this replica's own last does, and another one's since."""
        same = and_(requests.c.decision == decision.verb, requests.c.reason == decision.reason)
        own = (
            select(decisions.c.id)
            .where(decisions.c.request_id == request_id, decisions.c.replica == self._database.lease.replica)
            .order_by(decisions.c.id.desc())
            .limit(1)
            .scalar_subquery()
        )
        repeated = exists().where(
            decisions.c.id == own,
            decisions.c.decision == decision.verb,
            decisions.c.reason == decision.reason,
            decisions.c.at > now - DISAGREE_SECONDS,
        )
        return or_(func.coalesce(same, ~true()), repeated)


def latch_budget(connection: Connection, backend: str, now: float) -> None:
    """Close a budget. A latch that is there keeps its time; a reset that came after the decision stands."""
    row = insert_or(connection, budgets).values(backend=backend, latched_at=now)
    connection.execute(
        row.on_conflict_do_update(
            index_elements=["backend"],
            set_={"latched_at": now},
            where=and_(budgets.c.latched_at.is_(None), or_(budgets.c.reset_at.is_(None), budgets.c.reset_at <= now)),
        )
    )


def _open(connection: Connection) -> dict[Key, int]:
    rows = connection.execute(
        select(requests.c.id, requests.c.backend, requests.c.restart_asked).where(text(REQUEST_IS_OPEN))
    )
    return {(backend, bool(asked)): id_ for id_, backend, asked in rows}
