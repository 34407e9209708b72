"""Restarts that were seen: each life of a server once, whichever replica saw it begin."""

from __future__ import annotations

from collections.abc import Callable

from remediator.restarts import SeenRestart
from tests.remediator.fakes import START, World

Make = Callable[..., World]


def test_a_restart_is_written_down_once(make_on_either: Make) -> None:
    """Two replicas see it, one of them a life later: one row."""
    restarts = make_on_either().parts.journal.restarts
    assert restarts.add("a", "life-1", "life-2", START, ours=False)
    assert not restarts.add("a", "life-1", "life-2", START + 1, ours=False)
    assert not restarts.add("a", "life-0", "life-2", START + 1, ours=False)
    assert restarts.add("b", "life-1", "life-2", START, ours=True)
    assert restarts.add("a", "life-2", "life-3", START + 2, ours=True)
    assert restarts.recent(1) == [SeenRestart(restarts.recent(9)[0].id, "a", "life-2", "life-3", START + 2, True)]
    assert [(seen.backend, seen.ours) for seen in restarts.recent(9)] == [("a", True), ("b", True), ("a", False)]
    assert (restarts.count_of_others("a"), restarts.count_of_others("b"), restarts.count_of_others("c")) == (1, 0, 0)
