"""What is old goes, a little at a time; what is open, or what the policy weighs, stays. And nothing is read whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event

from remediator import retention
from remediator.history import KEPT_SECONDS
from remediator.model import Decision, Hold, Outcome, Reason, Storm, Verb
from remediator.pending import Pending
from remediator.retention import DAY_SECONDS, KEPT_ATTEMPTS, Retention
from remediator.runner import Runner
from tests.remediator.fakes import START, World, firing

Make = Callable[..., World]
TABLES = ("alerts", "requests", "decisions", "attempts", "steps", "restarts_seen")


def counts(world: World) -> dict[str, int]:
    return {table: world.sql(f"SELECT count(*) FROM {table}") for table in TABLES}


def fill(world: World, backend: str, number: int, at: float) -> None:
    """Attempts that ended, a second apart, each with a request, an alert, a decision, two steps and a restart."""
    dialect = "postgresql" if world.parts.journal._database._engine.dialect.name == "postgresql" else "sqlite"
    if dialect == "postgresql":
        series = f"SELECT n FROM generate_series(1, {number}) AS s(n)"
    else:
        series = f"WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {number}) SELECT n FROM s"
    first = world.sql("SELECT coalesce(max(id), 0) FROM requests")
    last = world.sql("SELECT coalesce(max(id), 0) FROM attempts")
    for statement in (
        "INSERT INTO alerts (received_at, status, name, backend, restart_asked, fingerprint) "
        f"SELECT {at} + n, 'firing', 'x', '{backend}', true, 'f' FROM ({series}) AS q",
        "INSERT INTO requests (id, backend, restart_asked, state, created_at, last_alert_at, alerts, seen_stuck, "
        f"ended_at) SELECT {first} + n, '{backend}', true, 'ended', {at} + n, {at} + n, 1, true, {at} + n "
        f"FROM ({series}) AS q",
        "INSERT INTO decisions (request_id, backend, decision, reason, detail, at) "
        f"SELECT {first} + n, '{backend}', 'act', 'act', '', {at} + n FROM ({series}) AS q",
        "INSERT INTO attempts (id, request_id, backend, group_name, driver, claimed_at, called_at, calls, last_step, "
        f"outcome, ended_at) SELECT {last} + n, {first} + n, '{backend}', 'g', 'command', {at} + n, {at} + n, 1, "
        f"'called', 'failed', {at} + n FROM ({series}) AS q",
        "INSERT INTO steps (attempt_id, name, call, at, detail) "
        f"SELECT {last} + n, 'claimed', 0, {at} + n, '' FROM ({series}) AS q",
        "INSERT INTO steps (attempt_id, name, call, at, detail) "
        f"SELECT {last} + n, 'failed', 1, {at} + n, '' FROM ({series}) AS q",
        "INSERT INTO restarts_seen (backend, identity_before, identity_after, at, ours) "
        f"SELECT '{backend}', 'x', 'life-{at:.0f}-' || n, {at} + n, false FROM ({series}) AS q",
    ):
        world.sql(statement)
    if dialect == "postgresql":
        for table in ("requests", "attempts"):
            world.sql(f"SELECT setval('{table}_id_seq', (SELECT max(id) FROM {table}))")


def drain(world: World, now: float, days: float = 90.0) -> dict[str, int]:
    """Batch after batch until nothing is left; what was removed."""
    found = dict.fromkeys(TABLES, 0)
    while any((removed := Retention(world.parts.journal._database, days).remove_batch(now)).values()):
        assert max(removed.values()) <= 2 * retention.BATCH
        found = {table: found[table] + removed.get(table, 0) for table in TABLES}
    return found


def test_the_old_goes_and_the_young_stays(make_on_either: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches; each backend keeps its last attempts with their requests, and what is younger than the limit."""
    monkeypatch.setattr(retention, "BATCH", 20)
    world = make_on_either()
    fill(world, "a", 55, START)
    fill(world, "b", 30, START + 91 * DAY_SECONDS)
    removed = drain(world, START + 92 * DAY_SECONDS)
    gone = 55 - KEPT_ATTEMPTS
    assert removed == {
        "alerts": 55, "requests": gone, "decisions": gone, "attempts": gone, "steps": 2 * gone, "restarts_seen": 55,
    }  # fmt: skip
    assert counts(world) == {
        "alerts": 30,
        "requests": 30 + KEPT_ATTEMPTS,
        "decisions": 30 + KEPT_ATTEMPTS,
        "attempts": 30 + KEPT_ATTEMPTS,
        "steps": 2 * (30 + KEPT_ATTEMPTS),
        "restarts_seen": 30,
    }


def test_what_is_open_stays(make_on_either: Make) -> None:
    """A year later: the open attempt with its request and steps, a waiting request, holds, latches, the storm."""
    world = make_on_either({"a": "g", "b": "h"})
    fill(world, "a", 40, START - 10 * 365 * DAY_SECONDS)
    now = world.clock.time()
    world.claimed()
    world.alert("b")
    holds = world.parts.journal.holds
    holds.hold(Hold("a", "ada", "weights", now, None))
    holds.reset_budget("a", "ada", "x", now)
    holds.keep_storm(Storm(now, now), now)
    before = world.parts.journal.reader.history(now)
    drain(world, now + 365 * DAY_SECONDS, days=2.0)
    after = world.parts.journal.reader.history(now)
    assert (after.holds, after.storm, after.budget_reset_at) == (before.holds, before.storm, before.budget_reset_at)
    assert [attempt.outcome for attempt in after.attempts] == [None]
    assert {request.backend for request in world.parts.journal.inbox.open()} == {"a", "b"}
    assert world.steps() == ["claimed"]


def test_what_the_policy_weighs_stays(make_on_either: Make) -> None:
    """Whatever the limit: two days is the least, and the history before and after is the same."""
    world = make_on_either()
    now = START + 50 * DAY_SECONDS
    fill(world, "a", 30, START)
    fill(world, "a", 30, now - KEPT_SECONDS + 10)
    before = world.parts.journal.reader.history(now)
    assert len(before.attempts) == 30
    drain(world, now, days=0.001)
    assert world.parts.journal.reader.history(now).attempts == before.attempts


def test_a_clock_that_is_wrong_forgets_no_budget(make_on_either: Make) -> None:
    """The year 2099 for a moment: the last attempts of each backend are still there afterwards."""
    world = make_on_either()
    fill(world, "a", 4, START)
    before = world.parts.journal.reader.history(START + 60)
    drain(world, START + 70 * 365 * DAY_SECONDS)
    assert world.parts.journal.reader.history(START + 60).attempts == before.attempts
    assert world.parts.journal.reader.last_calls() == {"a": START + 4}


def test_once_an_hour_until_nothing_is_left(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch a round while there is something to remove, then an hour of rest."""
    monkeypatch.setattr(retention, "BATCH", 20)
    world = make()
    fill(world, "a", 50, START - 200 * DAY_SECONDS)
    keep = world.parts.journal.retention
    removed = [keep.tick(mono, START).get("alerts") for mono in (0.0, 10.0, 20.0, 30.0, 3000.0)]
    assert removed == [20, 20, 10, 0, None]
    fill(world, "b", 5, START - 200 * DAY_SECONDS)
    assert keep.tick(3700.0, START)["alerts"] == 5


def test_the_loop_removes(make: Make) -> None:
    """Nobody has to ask for it."""
    world = make()
    world.parts.journal.inbox.receive([firing("a", status="resolved")], world.clock.time() - 100 * DAY_SECONDS)
    world.clock.at(5.0, world.parts.stop.set)
    Pending(world.parts, Runner(world.parts)).run()
    assert counts(world)["alerts"] == 0


def test_two_replicas_do_not_do_it_twice(make_on_postgresql: Make) -> None:
    """While one removes, the other goes on with its work."""
    first, second = make_on_postgresql(), make_on_postgresql()
    fill(first, "a", 30, START)
    now = START + 365 * DAY_SECONDS
    with first.parts.journal._database.write() as connection:
        assert retention._alone(connection)
        assert not any(second.parts.journal.retention.remove_batch(now).values())
    assert second.parts.journal.retention.remove_batch(now)["alerts"] == 30


def full(world: World, number: int) -> World:
    """A journal with so many past actions of a hundred backends, the last 300 of today; one is open, one waits."""
    fill(world, "old", number, START - number - 300.0)
    for statement in (
        "UPDATE attempts SET backend = 'b' || (id - id / 100 * 100)",
        f"UPDATE attempts SET claimed_at = claimed_at - 20 * {DAY_SECONDS} WHERE id <= {number - 300}",
        "ANALYZE",
    ):
        world.sql(statement)
    world.claimed()
    world.alert("b")
    return world


@pytest.mark.parametrize(
    ("make_on_either", "number"), [("sqlite", 100_000), ("postgresql", 30_000)], indirect=["make_on_either"]
)
def test_no_table_is_read_whole(make_on_either: Make, number: int) -> None:
    """By the plans that the database makes for the very statements that are run every round, scrape and page."""
    world = full(make_on_either({"a": "g", "b": "h"}), number)
    journal = world.parts.journal
    plans = _Plans(journal._database._engine)
    history = journal.reader.history(START)
    assert len(history.attempts) == 301
    calls = journal.reader.last_calls()
    journal.reader.recent_attempts(50)
    journal.reader.recent_decisions(50)
    journal.reader.open_requests(50)
    (waiting,) = journal.inbox.waiting()
    assert waiting.backend == "b"
    assert len(journal.inbox.open()) == 2
    assert len(journal.ledger.unfinished()) == len(journal.ledger.left()) == 1
    journal.inbox.receive([firing("a"), firing("b")], START)
    (attempt,) = journal.ledger.unfinished()
    journal.ledger.finish(attempt.id, Outcome.FAILED, "exit_status", "", START)
    journal.inbox.decided(waiting, Decision(Verb.WAIT, Reason.COOLDOWN), START)
    journal.ledger.claim(waiting, "h", "command", "", START, newest_seen=history.newest_attempt)
    journal.retention.remove_batch(START - 30 * DAY_SECONDS)
    journal.restarts.recent(50)
    statements = plans.stop()
    assert len(statements) > 20
    assert {statement: bad for statement in statements if (bad := plans.reads_whole(*statement))} == {}
    # The check finds a statement that does read a table whole.
    assert plans.reads_whole("SELECT count(*) FROM steps WHERE detail = 'x'", ())
    assert plans.reads_whole("SELECT id FROM decisions ORDER BY detail LIMIT 5", ())
    assert len(calls) == 100
    assert calls["b7"] == world.sql("SELECT max(called_at) FROM attempts WHERE backend = 'b7'")


SMALL = frozenset({"meta", "holds", "budgets", "storms", "names", "anon_1"})
"""Tables that stay small, and parts of statements. A waiting or open row stands in a partial index."""


class _Plans:
    """Notes every statement that the journal runs, and asks the database for its plan."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._seen: dict[str, Any] = {}
        event.listen(engine, "before_cursor_execute", self._note)

    def _note(self, _c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        if statement.lstrip().upper().startswith(("SELECT", "WITH", "UPDATE", "DELETE")):
            self._seen[statement] = parameters[0] if many else parameters

    def stop(self) -> list[tuple[str, Any]]:
        event.remove(self._engine, "before_cursor_execute", self._note)
        return list(self._seen.items())

    def reads_whole(self, statement: str, parameters: Any) -> list[str]:
        """The lines of the plan in which a table that grows is read from end to end."""
        with self._engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                rows = connection.exec_driver_sql("EXPLAIN QUERY PLAN " + statement, parameters)
                lines = [row[3] for row in rows]
                return [line for line in lines if _sqlite_reads_whole(line, lines, statement)]
            rows = connection.exec_driver_sql("EXPLAIN " + statement, parameters)
            lines = [row[0] for row in rows]
            return [line for line in lines if "Seq Scan on " in line and _table(line) not in SMALL]


def _sqlite_reads_whole(line: str, lines: list[str], statement: str) -> bool:
    words = [*line.split(), ""]
    small = words[1] in SMALL or words[1].startswith("(") or "USING INDEX one_open" in line
    if words[0] != "SCAN" or small or "CONSTANT ROW" in line:
        return False
    # From the newest on, until there are enough.
    sorts = any("TEMP B-TREE" in other for other in lines)
    return sorts or "LIMIT" not in statement or "WHERE" in statement


def _table(line: str) -> str:
    return line.split("Seq Scan on ")[1].split(maxsplit=1)[0]
