"""Two real remediators on one real PostgreSQL: the same alerts at once, one of them killed, paused, ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import realparts
from tests.faults.world import Replica, World, quiet, until
from tests.remediator import postgresql
from tests.remediator.test_alerts import one, payload

Twins = tuple[World, Replica, Replica, Callable[[str], list[tuple[Any, ...]]]]


@pytest.fixture(scope="module")
def database() -> Iterator[postgresql.Server]:
    """A server of these tests' own."""
    realparts.need("PostgreSQL", postgresql.why_not())
    server = postgresql.Server()
    yield server
    server.close()


@pytest.fixture
def twins(database: postgresql.Server, tmp_path: Path) -> Iterator[Twins]:
    """A world with two replicas, and a way to look into their journal."""
    url = database.database()
    secret = tmp_path / "password"
    secret.write_text(postgresql.PASSWORD)
    journal = {"journal_url": url.render_as_string(), "journal": {"password_file": str(secret)}}
    world = World(tmp_path, {"a": "g"}, journal=journal)
    replicas = world.replica(), world.replica()
    yield world, *replicas, lambda statement: database.sql(statement, str(url.database))
    world.close()
    database.give_back(url)


def ended(sql: Callable[[str], list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    return sql("SELECT outcome FROM attempts WHERE outcome IS NOT NULL AND outcome <> 'withdrawn'")


def expire(sql: Callable[[str], list[tuple[Any, ...]]]) -> None:
    """What a minute or two would do: the lease is over."""
    sql("UPDATE attempts SET lease_expires_at = lease_expires_at - 1000 WHERE outcome IS NULL")


def test_the_same_alerts_at_once(twins: Twins) -> None:
    """Twenty deliveries to each of them: every alert journalled, one restart."""
    world, one_replica, other, sql = twins
    for number in range(20):
        alert = {**one(backend="a"), "startsAt": f"2027-01-15T08:00:{number:02d}Z"}
        for replica in (one_replica, other):
            assert replica.request("POST", "/api/v1/alerts", payload(alert))[0] == 202
    until(lambda: ended(sql) == [("recovered",)], "it recovered", 60)
    quiet()
    assert world.a.calls == 1
    assert sql("SELECT count(*) FROM alerts") == [(40,)]


def test_one_is_paused_before_the_call_and_resumed(twins: Twins) -> None:
    """Frozen for a minute and more, until its lease was over: the other one restarts, and it stops itself."""
    world, first, second, sql = twins
    world.a.shut("evidence")
    assert first.deliver("a") == 202
    until(lambda: world.a.stands_at("evidence"), "the evidence command runs")
    ((holder,),) = sql("SELECT holder FROM attempts")
    mine, other = (first, second) if _is(first, holder, world) else (second, first)
    mine.pause()
    world.a.open("evidence")
    paused_at = time.monotonic()
    until(lambda: ended(sql) == [("recovered",)], "the other one restarts it", 180)
    assert time.monotonic() - paused_at > 60
    assert world.a.calls == 1
    mine.resume()
    quiet(2.0)
    assert world.a.calls == 1
    assert "lease lost" in world.log()
    assert other.request("GET", "/-/healthy")[0] == mine.request("GET", "/-/healthy")[0] == 200


def test_one_is_killed_during_the_call(twins: Twins) -> None:
    """The call had its effect and nobody wrote it down: the other one sees the new life, and calls nothing."""
    world, first, second, sql = twins
    world.a.shut("after")
    assert first.deliver("a") == 202
    until(lambda: world.a.stands_at("after"), "the restart command has done its work")
    ((holder,),) = sql("SELECT holder FROM attempts")
    mine = first if _is(first, holder, world) else second
    mine.kill()
    world.a.open("after")
    expire(sql)
    until(lambda: ended(sql) == [("recovered",)], "the other one ends it", 60)
    assert world.a.calls == 1


def test_one_is_ended_during_the_call(twins: Twins) -> None:
    """SIGTERM: it waits for its call and lets go, and the other one goes on at once, without waiting for a lease."""
    world, first, second, sql = twins
    world.a.shut("after")
    assert first.deliver("a") == 202
    until(lambda: world.a.stands_at("after"), "the restart command has done its work")
    ((holder,),) = sql("SELECT holder FROM attempts")
    mine = first if _is(first, holder, world) else second
    assert mine.process is not None
    mine.process.send_signal(signal.SIGTERM)
    quiet(0.5)
    world.a.open("after")
    assert mine.process.wait(20) == 0
    until(lambda: ended(sql) == [("recovered",)], "the other one ends it", 60)
    assert world.a.calls == 1


def _is(replica: Replica, holder: str, world: World) -> bool:
    """Whether a replica is the one of this name; each says its own at its start."""
    number = world.replicas.index(replica)
    return holder in (world.folder / f"log-{number}").read_text()
