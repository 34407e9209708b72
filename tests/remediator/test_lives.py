"""Restarts by somebody else: every change of identity is seen once, and told apart from our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from remediator.attempt import Attempt
from remediator.lives import Lives
from remediator.web import create_app
from tests.remediator.fakes import World

Make = Callable[..., World]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """One thread is enough."""
    with ThreadPoolExecutor(1) as one:
        yield one


def seen(world: World, by: str) -> float | None:
    return world.parts.metrics.registry.get_sample_value(
        "stallwatch_remediation_restarts_seen_total", {"backend": "a", "by": by}
    )


def test_first_sight_is_no_restart(make: Make, pool: ThreadPoolExecutor) -> None:
    """Nobody knows how long this life has lasted."""
    world = make()
    lives = Lives(world.parts)
    for _ in range(3):
        lives.step(pool)
    assert (seen(world, "others"), world.parts.journal.restarts.recent(9)) == (0, [])


def test_a_restart_by_somebody_else_is_counted_once(make: Make, pool: ThreadPoolExecutor) -> None:
    """A person, a crash or a second watchdog: the identity changed and no attempt of ours called."""
    world = make()
    lives = Lives(world.parts)
    lives.step(pool)
    world.driver.identity = "life-7"
    for _ in range(3):
        lives.step(pool)
    assert (seen(world, "others"), seen(world, "us")) == (1, 0)
    (found,) = world.parts.journal.restarts.recent(9)
    assert (found.identity_before, found.identity_after, found.ours) == ("life-1", "life-7", False)


def test_our_own_restart_is_ours_and_the_next_one_is_not(make: Make, pool: ThreadPoolExecutor) -> None:
    """A crash shortly after our restart is no restart of ours."""
    world = make()
    world.recovers()
    lives = Lives(world.parts)
    lives.step(pool)
    Attempt(world.parts, world.config.backends["a"], world.claimed()).begin()
    lives.step(pool)
    assert (seen(world, "us"), seen(world, "others")) == (1, 0)
    world.driver.identity = "life-9"
    lives.step(pool)
    assert (seen(world, "us"), seen(world, "others")) == (1, 1)


def test_an_identity_that_cannot_be_had_is_no_restart(make: Make, pool: ThreadPoolExecutor) -> None:
    """The daemon was away for a while; the same life is there when it is back."""
    world = make()
    lives = Lives(world.parts)
    lives.step(pool)
    for identity in (None, "life-1"):
        world.driver.identity = identity
        lives.step(pool)
    assert seen(world, "others") == 0


def test_a_restart_while_we_were_away_is_seen_at_the_next_start(make: Make, pool: ThreadPoolExecutor) -> None:
    """The last life that the journal knows is compared with the present one."""
    world = make()
    lives = Lives(world.parts)
    lives.step(pool)
    world.driver.identity = "life-2"
    lives.step(pool)
    world.reopen()
    world.driver.identity = "life-3"
    Lives(world.parts).step(pool)
    assert seen(world, "others") == 1
    assert [found.identity_after for found in world.parts.journal.restarts.recent(9)] == ["life-3", "life-2"]


def test_two_replicas_count_one_restart_once(make: Make, pool: ThreadPoolExecutor) -> None:
    """Whichever of them sees it first writes it down; the other one does not count it again."""
    world = make()
    one, other = Lives(world.parts), Lives(world.parts)
    for lives in (one, other):
        lives.step(pool)
    world.driver.identity = "life-2"
    for lives in (one, other):
        lives.step(pool)
    assert seen(world, "others") == 1


def test_restarts_are_shown(make: Make, pool: ThreadPoolExecutor) -> None:
    """On the page in words, and as data; a name that would be markup is text."""
    world = make()
    lives = Lives(world.parts)
    lives.step(pool)
    world.driver.identity = "<b>life-7</b>"
    lives.step(pool)
    web = create_app(world.parts, lambda: True).test_client()
    page = web.get("/").get_data(as_text=True)
    assert "somebody else" in page
    assert "&lt;b&gt;life-7" in page
    (shown,) = web.get("/api/v1/actions").get_json()["restarts"]
    assert (shown["backend"], shown["identity_before"], shown["ours"]) == ("a", "life-1", False)
