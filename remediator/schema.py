"""The journal's tables. UNIQUE and partial UNIQUE indexes decide races, in SQLite and PostgreSQL alike.

A change here is a change of `VERSION` and a migration in migrations.py; new columns stand last, as a migration
leaves them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, Integer, MetaData, Table, text
from sqlalchemy import Text as AnyText
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import TypeDecorator

VERSION = 3
"""Of these tables; an older journal is migrated at the start, a newer one is refused."""

metadata = MetaData()


class Text(TypeDecorator[str]):
    """Text that both databases can hold: PostgreSQL refuses NUL, and neither driver can write a lone surrogate."""

    impl = AnyText
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """What is written."""
        return None if value is None else str(value).replace("\0", "").encode("utf-8", "replace").decode("utf-8")


def _partial(name: str, *columns: ColumnElement[Any], where: str, unique: bool = True) -> None:
    Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


REQUEST_IS_OPEN, ATTEMPT_IS_OPEN = "state <> 'ended'", "outcome IS NULL"
"""As the partial indexes say it. A query must say it in the same words for its index to be used."""

meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

alerts = Table(
    "alerts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("received_at", Float, nullable=False),
    Column("status", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("backend", Text, nullable=False),
    Column("restart_asked", Boolean, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("starts_at", Float),
    Column("ends_at", Float),
)
Index("alerts_received_at", alerts.c.received_at)

requests = Table(
    "requests",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("backend", Text, nullable=False),
    Column("restart_asked", Boolean, nullable=False),
    Column("state", Text, nullable=False),  # waiting, acting, ended
    Column("created_at", Float, nullable=False),
    Column("last_alert_at", Float, nullable=False),
    Column("alerts", Integer, nullable=False),
    Column("identity_noted", Text),
    Column("seen_stuck", Boolean, nullable=False, server_default=text("false")),
    Column("decision", Text),
    Column("reason", Text),
    Column("detail", Text),
    Column("ended_at", Float),
)
# An alert without the label must not take the place of one with it, so that both may be open.
_partial("one_open_request", requests.c.backend, requests.c.restart_asked, where=REQUEST_IS_OPEN)
Index("requests_ended_at", requests.c.ended_at)

decisions = Table(
    "decisions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("request_id", ForeignKey("requests.id"), nullable=False),
    Column("backend", Text, nullable=False),
    Column("decision", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("at", Float, nullable=False),
    Column("replica", Text),  # who decided
)
Index("decisions_request_id", decisions.c.request_id)
Index("decisions_at", decisions.c.at)

attempts = Table(
    "attempts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("request_id", ForeignKey("requests.id"), nullable=False),
    Column("backend", Text, nullable=False, index=True),
    Column("group_name", Text, nullable=False),
    Column("driver", Text, nullable=False),
    Column("claimed_at", Float, nullable=False, index=True),
    Column("called_at", Float),
    Column("calls", Integer, nullable=False, server_default="0"),
    Column("deadline_at", Float),  # when the last call must have returned
    Column("identity_before", Text),
    Column("identity_after", Text),
    Column("driver_failure", Text),  # the driver's reason, when its last call failed
    Column("sentence", Text, nullable=False, server_default=""),
    Column("evidence", Text),  # the exporter's document, JSON
    Column("evidence_output", Text),  # what the evidence command printed
    Column("last_step", Text, nullable=False),
    Column("outcome", Text),
    Column("reason", Text),
    Column("detail", Text),
    Column("ended_at", Float),
    Column("holder", Text),  # the replica that carries it; see lease.py
    Column("lease_expires_at", Float),  # by the database's clock
)
_partial("one_open_attempt", attempts.c.backend, where=ATTEMPT_IS_OPEN)
_partial("one_open_attempt_of_group", attempts.c.group_name, where=ATTEMPT_IS_OPEN)
Index("attempts_request_id", attempts.c.request_id)
Index("attempts_ended_at", attempts.c.ended_at)
Index("attempts_called_at", attempts.c.backend, attempts.c.called_at)

steps = Table(
    "steps",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("attempt_id", ForeignKey("attempts.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("call", Integer, nullable=False),  # how many calls had begun, this one included
    Column("at", Float, nullable=False),
    Column("detail", Text, nullable=False),
)
# Two processes that believe they carry the same attempt cannot both journal its call.
Index("step_once", steps.c.attempt_id, steps.c.name, steps.c.call, unique=True)
Index("steps_at", steps.c.at)

holds = Table(
    "holds",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("backend", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("since", Float, nullable=False),
    Column("until", Float),
    Column("ended_at", Float),
    Column("ended_by", Text),
)
_partial("one_hold", holds.c.backend, where="ended_at IS NULL")

budgets = Table(
    "budgets",
    metadata,
    Column("backend", Text, primary_key=True),
    Column("latched_at", Float),
    Column("reset_at", Float),
    Column("reset_by", Text),
    Column("reset_why", Text),
)

storms = Table(
    "storms",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("since", Float, nullable=False),
    Column("last_over_at", Float, nullable=False),
    Column("overridden_at", Float),
    Column("overridden_by", Text),
    Column("overridden_why", Text),
    Column("ended_at", Float),
)
# There is nothing to tell two open storms apart by: the index is on what they have in common.
_partial("one_storm", storms.c.ended_at.is_(None), where="ended_at IS NULL")

restarts_seen = Table(
    "restarts_seen",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("backend", Text, nullable=False),
    Column("identity_before", Text, nullable=False),
    Column("identity_after", Text, nullable=False),
    Column("at", Float, nullable=False),
    Column("ours", Boolean, nullable=False),
)
# One life of a server begins once, whichever replica sees it first.
Index("restart_once", restarts_seen.c.backend, restarts_seen.c.identity_after, unique=True)
Index("restarts_seen_at", restarts_seen.c.at)


# A person's word on a request: who asks for the restart, why, and which rungs of the ladder that person overrules.
orders = Table(
    "orders",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("request_id", ForeignKey("requests.id"), nullable=False),
    Column("backend", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("overrules", Text, nullable=False),  # reasons, with commas between them
    Column("at", Float, nullable=False),
)
Index("orders_request_id", orders.c.request_id)
Index("orders_backend", orders.c.backend)
Index("orders_at", orders.c.at)


def in_order(table: Table) -> ColumnElement[int]:
    """Oldest first, for the few rows that a partial index finds.

    Not the key itself: SQLite would rather read the whole table in its order than sort three rows.
    """
    return table.c.id + 0
