"""What persons set and lift: holds for maintenance, restart budgets, the storm stop. All of it lives in the journal."""

from __future__ import annotations

from sqlalchemy import and_, exists, insert, or_, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from remediator.database import Database, Taken, insert_or
from remediator.model import Hold, Reason, Storm
from remediator.schema import attempts, budgets, holds, storms


class Holds:
    """Holds, budget latches and the storm stop. Times are Unix seconds."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def hold(self, hold: Hold) -> None:
        """Hold a backend; a hold that stands already is ended and replaced. Raises `JournalFailed`."""
        try:
            self._replace(hold)
        except Taken:  # another person held it at the same moment: the later one stands
            self._replace(hold)

    def _replace(self, hold: Hold) -> None:
        row = {"backend": hold.backend, "who": hold.who, "why": hold.why, "since": hold.since, "until": hold.until}
        with self._database.write() as connection:
            connection.execute(
                update(holds)
                .where(holds.c.backend == hold.backend, holds.c.ended_at.is_(None))
                .values(ended_at=hold.since, ended_by=hold.who)
            )
            connection.execute(insert(holds).values(**row))

    def release(self, backend: str, who: str, now: float) -> bool:
        """End the hold of a backend; whether there was one."""
        with self._database.write() as connection:
            done = connection.execute(
                update(holds)
                .where(holds.c.backend == backend, holds.c.ended_at.is_(None))
                .values(ended_at=now, ended_by=who)
            )
            return done.rowcount > 0

    def current(self, now: float) -> dict[str, Hold]:
        """The holds that stand at `now`."""
        with self._database.read() as connection:
            return holds_at(connection, now)

    def reset_budget(self, backend: str, who: str, why: str, now: float) -> None:
        """Unlatch a budget; attempts until now no longer count against it."""
        values = {"latched_at": None, "reset_at": now, "reset_by": who, "reset_why": why}
        with self._database.write() as connection:
            row = insert_or(connection, budgets).values(backend=backend, **values)
            connection.execute(row.on_conflict_do_update(index_elements=["backend"], set_=values))

    def storm(self) -> Storm | None:
        """The storm that goes on, if one does."""
        with self._database.read() as connection:
            return storm_now(connection)

    def keep_storm(self, storm: Storm | None, now: float, before: Storm | None = None) -> None:
        """Journal the storm as it stands after another look; None ends it. A person's override is kept.

        `before` is what the look began with: a storm that another replica has seen go on since is not ended.
        """
        going_on = storms.c.ended_at.is_(None)
        with self._database.write() as connection:
            if storm is None:
                which = [going_on] if before is None else [going_on, storms.c.last_over_at <= before.last_over_at]
                connection.execute(update(storms).where(*which).values(ended_at=now))
                return
            row = {"since": storm.since, "last_over_at": storm.last_over_at}
            connection.execute(insert_or(connection, storms).values(**row).on_conflict_do_nothing())
            connection.execute(
                update(storms)
                .where(going_on, storms.c.last_over_at < storm.last_over_at)
                .values(last_over_at=storm.last_over_at)
            )

    def override_storm(self, who: str, why: str, now: float) -> bool:
        """Lift the storm stop until the storm is over and another one comes; whether there was one."""
        with self._database.write() as connection:
            done = connection.execute(
                update(storms)
                .where(storms.c.ended_at.is_(None))
                .values(overridden_at=now, overridden_by=who, overridden_why=why)
            )
            return done.rowcount > 0


def holds_at(connection: Connection, now: float) -> dict[str, Hold]:
    """The holds that stand at `now`."""
    stands = (holds.c.ended_at.is_(None), or_(holds.c.until.is_(None), holds.c.until > now))
    rows = connection.execute(
        select(holds.c.backend, holds.c.who, holds.c.why, holds.c.since, holds.c.until).where(*stands)
    )
    return {row.backend: Hold(*row) for row in rows}


def storm_now(connection: Connection) -> Storm | None:
    """The storm that goes on, if one does."""
    row = connection.execute(
        select(storms.c.since, storms.c.last_over_at, storms.c.overridden_at).where(storms.c.ended_at.is_(None))
    ).first()
    return None if row is None else Storm(row.since, row.last_over_at, row.overridden_at is not None)


def overtaken(
    backend: str, group: str, now: float, newest_seen: int | None, overruled: frozenset[Reason]
) -> ColumnElement[bool]:
    """Somebody has changed what a decision was made from; `overruled` are the rungs that do not matter to it."""
    hold = exists().where(
        holds.c.backend == backend, holds.c.ended_at.is_(None), or_(holds.c.until.is_(None), holds.c.until > now)
    )
    latch = exists().where(budgets.c.backend == backend, budgets.c.latched_at.is_not(None))
    storm = exists().where(storms.c.ended_at.is_(None), storms.c.overridden_at.is_(None))
    found = [hold]
    if Reason.BUDGET_EXHAUSTED not in overruled:
        found.append(latch)
    if Reason.STORM not in overruled:
        found.append(storm)
    if newest_seen is not None:
        own = or_(attempts.c.backend == backend, attempts.c.group_name == group)
        found.append(exists().where(and_(attempts.c.id > newest_seen, own)))
    return or_(*found)
