"""Who carries an attempt. A lease is a replica's name and a time by the database's clock, in the attempt's row.

With SQLite the lock on the file is the lease: no other process lives, so whatever another one held is free.

With PostgreSQL a replica writes to an attempt, and calls its driver, only while the row names it and its time is not
over; another one takes the attempt up only when that time is over; each is one conditional UPDATE, and the row decides.
No replica's own clock is asked. The time is longer than the driver's deadline and everything around the call.

One window remains. A replica can be paused, by its machine or its container, between its last look at the clocks and
the first byte of its driver's call. When it wakes up its lease is lost and the call goes out all the same. Whoever
took the attempt up has by then waited out the lease and the driver's deadline, and has read the identity again: it
calls a second time only if the server had not changed by then. So what can happen at worst is one restart of a
server that was already restarted; a pause of the length of the lease at this very instruction is needed for it.
Replicas need clocks that agree to a few seconds for the ages of steps, and the same configuration.
"""

from __future__ import annotations

import secrets
import socket

from sqlalchemy import Float, and_, cast, extract, func, or_, true
from sqlalchemy.sql.elements import ColumnElement

from remediator.schema import attempts

MARGIN_SECONDS = 60.0
"""Added to the times that a driver's call and an evidence command may take."""


class Lease:
    """The conditions of one replica. `exclusive`: the database is locked, and nobody else lives."""

    def __init__(self, *, exclusive: bool) -> None:
        self.exclusive = exclusive
        self.replica = f"{socket.gethostname()}-{secrets.token_hex(8)}"
        """Random: a process that was started again is another one."""

    def until(self, seconds: float) -> ColumnElement[float]:
        """So many seconds from now."""
        return self._now() + seconds

    def mine(self) -> ColumnElement[bool]:
        """This replica carries the attempt."""
        named = attempts.c.holder == self.replica
        return named if self.exclusive else and_(named, attempts.c.lease_expires_at > self._now())

    def free(self) -> ColumnElement[bool]:
        """This replica may take the attempt up, unless a thread of its own carries it."""
        if self.exclusive:
            return true()
        over = attempts.c.lease_expires_at <= self._now()
        return or_(attempts.c.holder.is_(None), attempts.c.holder == self.replica, over)

    def _now(self) -> ColumnElement[float]:
        if self.exclusive:
            return (func.julianday("now") - 2440587.5) * 86400.0
        # Not now(), which stands still for as long as the transaction waits.
        return cast(extract("epoch", func.clock_timestamp()), Float)
