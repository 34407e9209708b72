"""A connection to PostgreSQL that does not wait for ever.

The server's own time-outs are kept by the server: one that is frozen, or whose network is gone without a word, keeps
none, and libpq would wait as long as it lasts.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg


class BoundedConnection(psycopg.Connection[Any]):
    """Gives up a wait for the server after `patience_seconds`, and the connection with it."""

    patience_seconds = 15.0

    def wait(self, gen: Generator[Any, Any, Any], *arguments: Any, **named: Any) -> Any:
        """Run one exchange with the server to its end. Raises `psycopg.OperationalError`."""
        return super().wait(self._bounded(gen), *arguments, **named)

    def _bounded(self, exchange: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        # The exchange is asked again every tenth of a second, whether or not the socket has anything to say.
        until = time.monotonic() + self.patience_seconds
        try:
            wanted = next(exchange)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() >= until:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server did not answer within {self.patience_seconds:.0f} s")
                wanted = exchange.send(ready)
        except StopIteration as end:
            return end.value
