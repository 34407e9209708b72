"""A remediator on a fake clock, closed after each test; a real PostgreSQL server for the tests that want one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import URL

from tests import realparts
from tests.remediator import postgresql
from tests.remediator.fakes import World, build


@pytest.fixture
def make_on_sqlite(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Builds worlds on a journal in a directory of the test's own."""
    yield from _builder(tmp_path / "journal.db", None)


@pytest.fixture
def make(make_on_sqlite: Callable[..., World]) -> Callable[..., World]:
    """Builds worlds for tests to which the database is all the same."""
    return make_on_sqlite


@pytest.fixture(scope="session")
def _server() -> Iterator[postgresql.Server | None]:
    if postgresql.why_not() is not None:
        yield None
        return
    server = postgresql.Server()
    yield server
    server.close()


@pytest.fixture
def server(_server: postgresql.Server | None) -> postgresql.Server:
    """A real PostgreSQL server, one for all tests."""
    realparts.need("PostgreSQL", postgresql.why_not())
    assert _server is not None
    return _server


@pytest.fixture
def make_on_postgresql(server: postgresql.Server) -> Iterator[Callable[..., World]]:
    """Builds worlds on one new database: the second one is a second replica, as different machines would run it."""
    url = server.database()
    yield from _builder(url, postgresql.PASSWORD)
    server.give_back(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def make_on_either(request: pytest.FixtureRequest) -> Callable[..., World]:
    """Builds worlds on SQLite and, in a second run of the test, on PostgreSQL."""
    name = "make_on_sqlite" if request.param == "sqlite" else "make_on_postgresql"
    made: Callable[..., World] = request.getfixturevalue(name)
    return made


def _builder(where: Path | URL, password: str | None) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def one(*arguments: Any, **named: Any) -> World:
        made.append(build(where, *arguments, password=password, **named))
        return made[-1]

    yield one
    for world in made:
        world.close()
