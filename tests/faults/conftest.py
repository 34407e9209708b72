"""Worlds that are taken down after each test, with the log shown when it failed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.world import World

Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Builds worlds; `groups` maps each backend to its failure domain, one backend `a` by default."""
    made: list[World] = []

    def one(groups: dict[str, str] | None = None, **named: Any) -> World:
        folder = tmp_path / f"world-{len(made)}"
        folder.mkdir()
        made.append(World(folder, groups or {"a": "g"}, **named))
        return made[-1]

    yield one
    for world in made:
        world.close()
        sys.stdout.write(world.log())
