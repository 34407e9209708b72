"""A remediator on a fake clock, closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.remediator.fakes import World, build


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Builds worlds on a journal in a directory of the test's own."""
    made: list[World] = []

    def one(*arguments: Any, **named: Any) -> World:
        made.append(build(tmp_path / "journal.db", *arguments, **named))
        return made[-1]

    yield one
    for world in made:
        world.close()
