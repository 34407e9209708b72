"""Journals of older programs: brought up to date whole or not at all, by one process, with every row."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect
from sqlalchemy.engine import URL, Connection

from remediator import migrations, schema
from remediator.database import JournalFailed
from remediator.journal import Journal
from remediator.model import Step, Storm
from tests.remediator import postgresql

DUMPS = Path(__file__).parent / "journals"
Make = Callable[[], Path | URL]


@pytest.fixture(params=["sqlite", "postgresql"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | URL]:
    """A journal of version 1."""
    if request.param == "sqlite":
        path = tmp_path / "journal.db"
        with sqlite3.connect(path) as connection:
            connection.executescript((DUMPS / "v1.sql").read_text(encoding="utf-8"))
        connection.close()
        yield path
        return
    server: postgresql.Server = request.getfixturevalue("server")
    url = server.database()
    server.sql((DUMPS / "v1_postgresql.sql").read_text(encoding="utf-8"), str(url.database))
    yield url
    server.give_back(url)


def password(where: Path | URL) -> str | None:
    return None if isinstance(where, Path) else postgresql.PASSWORD


def look(where: Path | URL) -> Connection:
    """A connection past the journal, to be closed."""
    if isinstance(where, Path):
        return create_engine(f"sqlite:///{where}").connect()
    return create_engine(where.set(drivername="postgresql+psycopg", password=postgresql.PASSWORD)).connect()


def rows(where: Path | URL) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table."""
    found = {}
    with look(where) as connection:
        for table in inspect(connection).get_table_names():
            order = {"meta": "key", "budgets": "backend"}.get(table, "id")
            read = connection.exec_driver_sql(f"SELECT * FROM {table} ORDER BY {order}").mappings()
            found[table] = [dict(row) for row in read]
    connection.engine.dispose()
    return found


def shape(where: Path | URL) -> dict[str, Any]:
    """Tables, columns with their types and defaults, keys and indexes, as the database tells them."""
    with look(where) as connection:
        seen = inspect(connection)
        found: dict[str, Any] = {}
        for table in seen.get_table_names():
            columns = [(c["name"], str(c["type"]), c["nullable"], c["default"]) for c in seen.get_columns(table)]
            keys = [(k["constrained_columns"], k["referred_table"]) for k in seen.get_foreign_keys(table)]
            found[table] = (columns, seen.get_pk_constraint(table)["constrained_columns"], sorted(keys, key=str))
        if isinstance(where, Path):
            query = "SELECT name, replace(replace(sql, ' \n', ''), '\n', '') FROM sqlite_master WHERE type = 'index'"
        else:
            query = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
        found["indexes"] = dict(list(map(tuple, connection.exec_driver_sql(query))))
    connection.engine.dispose()
    return found


def test_every_row_is_kept(old: Path | URL) -> None:
    """Nothing that version 1 wrote is changed but its number; what is new is empty."""
    before = rows(old)
    Journal(old, password(old)).close()
    after = rows(old)
    assert after.pop("restarts_seen") == []
    assert {row["key"]: row["value"] for row in after.pop("meta")}["version"] == str(schema.VERSION)
    before.pop("meta")
    assert sum(len(found) for found in before.values()) == 19
    for table, found in before.items():
        kept = [{key: row[key] for key in old_row} for row, old_row in zip(after[table], found, strict=True)]
        assert kept == found
        assert [row[key] for row in after[table] for key in row.keys() - found[0].keys()] == [None] * (
            len(found) * (len(after[table][0]) - len(found[0]))
        )


def test_the_new_program_goes_on_where_the_old_one_ended(old: Path | URL) -> None:
    """Open attempt, open request, hold, latch and storm are what they were; the attempt can be taken up."""
    journal = Journal(old, password(old))
    (left,) = journal.ledger.left()
    assert (left.backend, left.last_step, left.calls) == ("b", Step.CALLED, 1)
    assert journal.ledger.take(left.id) is not None
    history = journal.reader.history(1_800_000_300.0)
    assert (len(history.attempts), history.latched, list(history.holds)) == (2, {"a"}, ["c"])
    assert history.storm == Storm(1_800_000_000.0, 1_800_000_100.0, overridden=True)
    assert [(r.backend, r.state) for r in journal.inbox.open()] == [("b", "acting"), ("c", "waiting")]
    assert journal.inbox.receive([], 0.0) == frozenset()
    journal.close()


def test_a_migrated_journal_is_like_a_new_one(old: Path | URL, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The migrations lead to the very tables of schema.py."""
    new = tmp_path / "new.db" if isinstance(old, Path) else request.getfixturevalue("server").database()
    for where in (old, new):
        Journal(where, password(where)).close()
    found, expected = shape(old), shape(new)
    assert {name.lower() for name in found["indexes"]} == {name.lower() for name in expected["indexes"]}
    if not isinstance(old, Path):  # SQLite keeps the very words of each statement
        assert found["indexes"] == expected["indexes"]
    assert {k: v for k, v in found.items() if k != "indexes"} == {k: v for k, v in expected.items() if k != "indexes"}


def test_a_migration_that_fails_changes_nothing(old: Path | URL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first half is taken back, and the next start does it whole."""
    before, looked = rows(old), shape(old)

    def half(connection: Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE attempts ADD COLUMN holder TEXT")
        connection.exec_driver_sql("DELETE FROM steps")
        connection.exec_driver_sql("ALTER TABLE no_such_table ADD COLUMN x TEXT")

    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", {2: half})
        with pytest.raises(JournalFailed, match="no_such_table"):
            Journal(old, password(old))
    assert (rows(old), shape(old)) == (before, looked)
    Journal(old, password(old)).close()


def test_two_storms_of_an_old_journal(old: Path | URL) -> None:
    """Nothing forbade them; the newest goes on."""
    with look(old) as connection:
        connection.exec_driver_sql(
            "INSERT INTO storms (id, since, last_over_at) VALUES (9, 1800000500.0, 1800000600.0)"
        )
        connection.commit()
    connection.engine.dispose()
    journal = Journal(old, password(old))
    assert journal.holds.storm() == Storm(1_800_000_500.0, 1_800_000_600.0)
    journal.close()


@pytest.mark.parametrize("old", ["postgresql"], indirect=True)
@pytest.mark.parametrize("fresh", [True, False], ids=["new", "old"])
def test_two_replicas_start_at_once(old: URL, server: postgresql.Server, fresh: bool) -> None:
    """One creates or migrates, the other waits for it and finds the work done."""
    where = server.database() if fresh else old
    gate, found = threading.Barrier(2), []

    def start() -> None:
        gate.wait()
        journal = Journal(where, postgresql.PASSWORD)
        found.append(journal.inbox.open())
        journal.close()

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[], []] if fresh else [len(requests) for requests in found] == [2, 2]


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("CREATE TABLE alerts (id INTEGER)", "is no journal, and has a table alerts of its own"),
        ("CREATE TABLE meta (key TEXT, value TEXT)", "is no journal, and has a table meta of its own"),
    ],
)
def test_somebody_elses_database(tmp_path: Path, statement: str, line: str) -> None:
    """It is refused and left as it was."""
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()
    looked = shape(path)
    with pytest.raises(JournalFailed) as caught:
        Journal(path)
    assert str(caught.value) == f"{path}: {line}"
    assert shape(path) == looked
