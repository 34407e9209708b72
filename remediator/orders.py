"""The journal's orders: a person asks for a restart, and may overrule rungs of the ladder, with who and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert, select, text

from remediator.database import Database, one_at_a_time
from remediator.inbox import LOCK
from remediator.model import Order, Reason
from remediator.schema import REQUEST_IS_OPEN, orders, requests

SEPARATOR = ","


class Orders:
    """Orders and the requests that they belong to."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def place(self, backend: str, order: Order) -> int:
        """Journal an order with the backend's open request, or open one; its request's id. Raises `JournalFailed`.

        An order that comes while the request is acted on stands there and changes nothing.
        """
        with self._database.write() as connection:
            one_at_a_time(connection, LOCK)  # an alert may open the request at the same moment
            waiting = connection.execute(
                select(requests.c.id).where(
                    text(REQUEST_IS_OPEN), requests.c.backend == backend, requests.c.restart_asked
                )
            ).scalar_one_or_none()
            if waiting is None:
                row = {"backend": backend, "restart_asked": True, "state": "waiting", "alerts": 0}
                opened = insert(requests).values(**row, created_at=order.at, last_alert_at=order.at)
                waiting = connection.execute(opened.returning(requests.c.id)).scalar_one()
            connection.execute(
                insert(orders).values(
                    request_id=waiting,
                    backend=backend,
                    who=order.who,
                    why=order.why,
                    overrules=SEPARATOR.join(sorted(order.overrules)),
                    at=order.at,
                )
            )
            return int(waiting)

    def of(self, request_ids: Sequence[int]) -> dict[int, Order]:
        """The last order of each of these requests that has one. Raises `JournalFailed`."""
        if not request_ids:
            return {}
        with self._database.read() as connection:
            rows = connection.execute(
                select(orders).where(orders.c.request_id.in_(request_ids)).order_by(orders.c.id)
            ).all()
        return {row.request_id: Order(row.who, row.why, row.at, _reasons(row.overrules)) for row in rows}

    def recent(self, limit: int, backend: str | None = None) -> list[dict[str, Any]]:
        """Orders, newest first, each with what was decided on its request last. Raises `JournalFailed`."""
        decided = [requests.c[name] for name in ("state", "decision", "reason", "detail")]
        query = select(orders, *decided).join(requests, requests.c.id == orders.c.request_id)
        if backend is not None:
            query = query.where(orders.c.backend == backend)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(orders.c.id.desc()).limit(limit)).mappings()
            return [{**row, "overrules": sorted(_reasons(row["overrules"]))} for row in rows]


def _reasons(text_: str) -> frozenset[Reason]:
    known = {reason.value: reason for reason in Reason}  # a newer program may have known more of them
    return frozenset(known[word] for word in text_.split(SEPARATOR) if word in known)
