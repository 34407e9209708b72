"""The journal's requests: alerts come in, one open request per backend, decisions when they change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Table, bindparam, insert, select, true, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from remediator.alerts import Alert
from remediator.database import Database
from remediator.model import Decision, Verb
from remediator.schema import alerts, budgets, decisions, requests

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
            # Another writer may have been faster since the look above: then its request is the one that counts.
            connection.execute(_insert(connection, requests).on_conflict_do_nothing(), new)
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
        return self._select(requests.c.state != "ended")

    def _select(self, which: ColumnElement[bool]) -> list[StoredRequest]:
        columns = [requests.c[name] for name in StoredRequest.__dataclass_fields__]
        with self._database.read() as connection:
            rows = connection.execute(select(*columns).where(which).order_by(requests.c.id))
            return [StoredRequest(*row) for row in rows]

    def note_identity(self, request_id: int, identity: str) -> None:
        """Keep the identity that the driver told when the request came; a later one does not replace it."""
        self._set(request_id, requests.c.identity_noted.is_(None), identity_noted=identity)

    def note_stuck(self, request_id: int) -> None:
        """The exporter has said `stuck` since the request came."""
        self._set(request_id, requests.c.seen_stuck.is_(False), seen_stuck=True)

    def _set(self, request_id: int, unless: ColumnElement[bool], **values: object) -> None:
        with self._database.write() as connection:
            connection.execute(update(requests).where(requests.c.id == request_id, unless).values(**values))

    def decided(self, request: StoredRequest, decision: Decision, now: float, *, latch: bool = False) -> None:
        """Journal a decision that differs from the one before; a refusal ends the request.

        `latch` closes the backend's budget in the same transaction, until a person resets it.
        """
        refused = decision.verb is Verb.REFUSE
        ended: dict[str, object] = {"state": "ended", "ended_at": now} if refused else {}
        with self._database.write() as connection:
            connection.execute(
                insert(decisions).values(
                    request_id=request.id,
                    backend=request.backend,
                    decision=decision.verb,
                    reason=decision.reason,
                    detail=decision.detail,
                    at=now,
                )
            )
            connection.execute(
                update(requests)
                .where(requests.c.id == request.id, requests.c.state == "waiting" if refused else true())
                .values(decision=decision.verb, reason=decision.reason, detail=decision.detail, **ended)
            )
            if latch:
                latch_budget(connection, request.backend, now)


def latch_budget(connection: Connection, backend: str, now: float) -> None:
    """Close a budget; a latch that is already there keeps its time."""
    done = connection.execute(
        update(budgets).where(budgets.c.backend == backend, budgets.c.latched_at.is_(None)).values(latched_at=now)
    )
    if done.rowcount == 0:
        connection.execute(
            _insert(connection, budgets).values(backend=backend, latched_at=now).on_conflict_do_nothing()
        )


def _insert(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that can say ON CONFLICT, which both databases spell alike."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def _open(connection: Connection) -> dict[Key, int]:
    rows = connection.execute(
        select(requests.c.id, requests.c.backend, requests.c.restart_asked).where(requests.c.state != "ended")
    )
    return {(backend, bool(asked)): id_ for id_, backend, asked in rows}
