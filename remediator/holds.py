"""What persons set and lift: holds for maintenance, restart budgets, the storm stop. All of it lives in the journal."""

from __future__ import annotations

from sqlalchemy import insert, or_, select, update

from remediator.database import Database
from remediator.model import Hold, Storm
from remediator.schema import budgets, holds, storms


class Holds:
    """Holds, budget latches and the storm stop. Times are Unix seconds."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def hold(self, hold: Hold) -> None:
        """Hold a backend; a hold that stands already is ended and replaced."""
        with self._database.write() as connection:
            connection.execute(
                update(holds)
                .where(holds.c.backend == hold.backend, holds.c.ended_at.is_(None))
                .values(ended_at=hold.since, ended_by=hold.who)
            )
            connection.execute(
                insert(holds).values(
                    backend=hold.backend, who=hold.who, why=hold.why, since=hold.since, until=hold.until
                )
            )

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
        stands = (holds.c.ended_at.is_(None), or_(holds.c.until.is_(None), holds.c.until > now))
        with self._database.read() as connection:
            rows = connection.execute(
                select(holds.c.backend, holds.c.who, holds.c.why, holds.c.since, holds.c.until).where(*stands)
            )
            return {row.backend: Hold(*row) for row in rows}

    def reset_budget(self, backend: str, who: str, why: str, now: float) -> None:
        """Unlatch a budget; attempts until now no longer count against it."""
        values = {"latched_at": None, "reset_at": now, "reset_by": who, "reset_why": why}
        with self._database.write() as connection:
            done = connection.execute(update(budgets).where(budgets.c.backend == backend).values(**values))
            if done.rowcount == 0:
                connection.execute(insert(budgets).values(backend=backend, **values))

    def storm(self) -> Storm | None:
        """The storm that goes on, if one does."""
        with self._database.read() as connection:
            row = connection.execute(
                select(storms.c.since, storms.c.last_over_at, storms.c.overridden_at).where(storms.c.ended_at.is_(None))
            ).first()
        return None if row is None else Storm(row.since, row.last_over_at, row.overridden_at is not None)

    def keep_storm(self, storm: Storm | None, now: float) -> None:
        """Journal the storm as it stands after another look; None ends it. A person's override is kept."""
        going_on = storms.c.ended_at.is_(None)
        with self._database.write() as connection:
            if storm is None:
                connection.execute(update(storms).where(going_on).values(ended_at=now))
                return
            done = connection.execute(update(storms).where(going_on).values(last_over_at=storm.last_over_at))
            if done.rowcount == 0:
                connection.execute(insert(storms).values(since=storm.since, last_over_at=storm.last_over_at))

    def override_storm(self, who: str, why: str, now: float) -> bool:
        """Lift the storm stop until the storm is over and another one comes; whether there was one."""
        with self._database.write() as connection:
            done = connection.execute(
                update(storms)
                .where(storms.c.ended_at.is_(None))
                .values(overridden_at=now, overridden_by=who, overridden_why=why)
            )
            return done.rowcount > 0
