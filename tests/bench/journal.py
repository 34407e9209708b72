"""The remediator's journal: the time of a decision with a long past, and what an action adds to the file."""

from __future__ import annotations

import contextlib
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

from sqlalchemy import insert

from remediator import policy
from remediator.attempt import Attempt
from remediator.schema import attempts, requests
from stallwatch import logs
from tests.remediator.fakes import START, World, build, view

PAST_ACTIONS = 100_000
ROUNDS = 50
ACTIONS = 200


def decisions() -> dict[str, float]:
    """Seconds for the history and the decision, and for claiming, with no past action and with 100,000."""
    found: dict[str, float] = {}
    for past in (0, PAST_ACTIONS):
        with tempfile.TemporaryDirectory() as folder:
            world = build(Path(folder) / "journal.db")
            _past(world, past)
            times = [_decide(world) for _ in range(ROUNDS)]
            found[f"decision s, {past:,} past actions"] = statistics.median(times)
            world.close()
    return found


def growth() -> dict[str, float]:
    """Bytes that one whole action (alert, decision, attempt with its steps and evidence) adds."""
    logs.configure("error")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        world = build(path)
        world.exporters.says["a"] = lambda: view("stuck" if world.driver.calls == 0 else "busy")
        _act(world)
        before = _size(path)
        for _ in range(ACTIONS):
            world.driver.calls, world.driver.identity = 0, "life-1"
            _act(world)
        grown = _size(path) - before
        world.close()
    return {"journal bytes per action": grown / ACTIONS}


def _act(world: World) -> None:
    Attempt(world.parts, world.config.backends["a"], world.claimed()).begin()
    world.clock.pass_by(60.0)


def _size(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # what waits to be moved would count twice
    return sum(each.stat().st_size for each in path.parent.glob("journal.db*"))


def _past(world: World, count: int) -> None:
    """So many attempts, the youngest a minute old, spread over three years; a few hundred are within the window."""
    rows = [
        {
            "id": n + 1,
            "request_id": n + 1,
            "backend": f"b{n % 40}",
            "group_name": f"g{n % 40}",
            "driver": "command",
            "claimed_at": START - 60.0 - 946.0 * (count - n),
            "called_at": START - 50.0 - 946.0 * (count - n),
            "ended_at": START - 40.0 - 946.0 * (count - n),
            "calls": 1,
            "last_step": "identity_changed",
            "outcome": "recovered",
            "reason": "proven",
        }
        for n in range(count)
    ]
    asked = [
        {
            "id": row["id"],
            "backend": row["backend"],
            "restart_asked": True,
            "state": "ended",
            "created_at": row["claimed_at"],
            "last_alert_at": row["claimed_at"],
            "alerts": 1,
            "ended_at": row["ended_at"],
        }
        for row in rows
    ]
    with world.parts.journal.ledger._database.write() as connection:
        if rows:
            connection.execute(insert(requests), asked)
            connection.execute(insert(attempts), rows)


def _decide(world: World) -> float:
    began = time.monotonic()
    journal, now = world.parts.journal, world.clock.time()
    journal.inbox.waiting()
    policy.decide(
        policy.Request("a", restart_asked=True, created_at=now),
        journal.reader.history(now),
        policy.Fleet("restart", {"a": policy.Member("a", "g", frozenset({"stuck"}))}),
        world.config.limits,
        now,
    )
    return time.monotonic() - began
