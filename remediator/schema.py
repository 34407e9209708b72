"""The journal's tables. UNIQUE and partial UNIQUE indexes decide races, in SQLite and PostgreSQL alike."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, Integer, MetaData, Table, Text, text

VERSION = 1
"""Of these tables; a journal of another version is refused."""

metadata = MetaData()

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
Index(
    "one_open_request",
    requests.c.backend,
    requests.c.restart_asked,
    unique=True,
    sqlite_where=text("state <> 'ended'"),
    postgresql_where=text("state <> 'ended'"),
)

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
)

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
)
for name, column in (("one_open_attempt", attempts.c.backend), ("one_open_attempt_of_group", attempts.c.group_name)):
    Index(
        name,
        column,
        unique=True,
        sqlite_where=text("outcome IS NULL"),
        postgresql_where=text("outcome IS NULL"),
    )

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
Index(
    "one_hold",
    holds.c.backend,
    unique=True,
    sqlite_where=text("ended_at IS NULL"),
    postgresql_where=text("ended_at IS NULL"),
)

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
