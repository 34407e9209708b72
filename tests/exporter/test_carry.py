"""A backend that vanishes from discovery and comes back: what protects it stays, what is held against it does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from exporter.carry import carried
from exporter.config import Backend, backend
from exporter.fleet import KEPT_SECONDS, Fleet
from exporter.model import Question
from exporter.runtimes import builtin
from exporter.watch import Watch
from tests.exporter.test_watch import LIMITS, Asker, Clock, Server, join

BORN = 1_795_000_000.0


class ByHand(Watch):
    """A watch that the test polls."""

    def start(self, delay_seconds: float = 0.0) -> None:
        """No loop."""


class Site:
    """A fleet whose list the test changes; one server at each address."""

    def __init__(self) -> None:
        self.clock, self.servers, self.asker = Clock(), dict[str, Born](), Asker()
        self.asker.release.set()
        self.listed: Sequence[Backend] = ()
        self.fleet = Fleet(lambda: self.listed, self._watch, self.clock.monotonic)
        self.fleet.start()

    def _watch(self, target: Backend) -> Watch:
        server = self.servers.setdefault(target.url, Born())
        return ByHand(target, server, self.asker, monotonic=self.clock.monotonic, wall=self.clock.wall)

    def list(self, *backends: Backend) -> None:
        """What discovery says from now on."""
        self.listed = backends
        self.fleet.update(lambda: self.listed)

    def watch(self, name: str = "a") -> Watch:
        """The present watch of a name."""
        return self.fleet._watches[name]

    def poll(self, seconds: int, *, moving: bool = False) -> None:
        """A poll a second; `moving` lets each server work meanwhile."""
        for _ in range(seconds):
            for server in self.servers.values():
                server.steps += 10 * moving
            for watch in self.fleet._watches.values():
                watch.poll()
            join("ask-")
            self.clock.now += 1


class Born(Server):
    """A server whose page tells since when it runs."""

    born = BORN

    def page(self, timeout_seconds: float, max_bytes: int) -> bytes:
        return super().page(timeout_seconds, max_bytes) + f"process_start_time_seconds {self.born}\n".encode()


def at(port: int, name: str = "a", **limits: float) -> Backend:
    """A backend on this port."""
    return backend(name, f"http://h:{port}", builtin()["vllm"], {**LIMITS, **limits})


@pytest.fixture
def stuck() -> Site:
    """A fleet in which the server of a is frozen with work in flight, and found stuck."""
    site = Site()
    site.list(at(1))
    server = site.servers["http://h:1"]
    server.running = 2
    site.poll(3, moving=True)
    site.poll(20)
    assert site.watch().snapshot.state.verdict == "stuck"
    return site


def test_an_unchanged_backend_keeps_its_very_watch(stuck: Site) -> None:
    """A list that grows and shrinks beside it does not touch it: it is stuck all along."""
    kept = stuck.watch()
    stuck.list(at(1), at(2, "b"))
    stuck.list(at(1))
    assert stuck.watch() is kept
    assert kept.snapshot.state.verdict == "stuck"


def test_nothing_is_held_against_a_backend_that_was_away(stuck: Site) -> None:
    """Frozen before and after, with equal pages: it is stuck again only after a whole proof of its own."""
    stuck.list()
    stuck.clock.now += 30
    stuck.list(at(1))
    assert stuck.watch().snapshot.state.verdict == "unmeasured"
    stuck.poll(1)
    state = stuck.watch().snapshot.state
    assert state.verdict == "busy"
    assert state.ranks["tiny", "0"].stalled_seconds == 0
    assert state.ranks["tiny", "0"].misses == 0
    stuck.poll(9)
    assert stuck.watch().snapshot.state.verdict != "stuck"
    stuck.poll(8)
    assert stuck.watch().snapshot.state.verdict == "stuck"


def test_what_protects_it_stays(stuck: Site) -> None:
    """When it was asked, how often, how it was restarted, what its limit became, what it did."""
    before = stuck.watch().snapshot
    taught = dataclasses.replace(before.state, learned_seconds=25.0, restarts=3)
    stuck.watch().snapshot = dataclasses.replace(before, state=taught)
    stuck.list()
    stuck.clock.now += KEPT_SECONDS - 1
    stuck.list(at(1))
    after = stuck.watch().snapshot
    assert (after.state.learned_seconds, after.state.restarts) == (25.0, 3)
    assert (after.state.asks, after.state.work_total) == (before.state.asks, before.state.work_total)
    key = ("tiny", "0")
    assert after.state.ranks[key].last_ask_at == before.state.ranks[key].last_ask_at
    assert after.history == before.history
    assert after.state.incarnation == before.state.incarnation


def test_it_is_not_asked_again_too_soon(stuck: Site) -> None:
    """Vanishing and coming back all the time does not make questions more frequent than their spacing."""
    for _ in range(6):  # each long enough for a suspicion
        asked = len(stuck.asker.asked)
        last = stuck.watch().snapshot.state.ranks["tiny", "0"].last_ask_at
        assert last is not None
        stuck.list()
        stuck.list(at(1))
        left = stuck.watch().configured.limits.ask_spacing_seconds - (stuck.clock.now - last)
        stuck.poll(max(0, int(left)))
        assert len(stuck.asker.asked) == asked
        stuck.poll(12)


def test_a_question_under_way_counts(stuck: Site) -> None:
    """A question that hangs while its backend vanishes has been sent; its answer reaches nobody."""
    stuck.servers["http://h:1"].steps += 10
    stuck.poll(1)
    stuck.asker.release.clear()
    watch = stuck.watch()
    for _ in range(30):
        watch.poll()
        stuck.clock.now += 1
        if watch.snapshot.state.asking:
            break
    question = watch.snapshot.state.asking
    assert question is not None
    stuck.list()
    stuck.list(at(1))
    state = stuck.watch().snapshot.state
    assert state.asking is None
    assert state.ranks["tiny", "0"].last_ask_at == question.sent_at
    assert state.ranks["tiny", "0"].ask is None
    stuck.asker.release.set()
    join("ask-")
    assert stuck.watch().snapshot.state is state


def test_a_question_to_one_rank_counts_for_all(stuck: Site) -> None:
    """Two questions at a time to one server are one too many, whichever rank was asked."""
    state = stuck.watch().snapshot.state
    other = dataclasses.replace(state.ranks["tiny", "0"], last_ask_at=None)
    asking = Question(("tiny", "0"), stuck.clock.now, 3.0, named=True)
    before = dataclasses.replace(state, ranks={**state.ranks, ("tiny", "1"): other}, asking=asking)
    after = carried(before, stuck.clock.now, moved=False, same_kind=True, away=True)
    assert {rank.last_ask_at for rank in after.ranks.values()} == {stuck.clock.now}


def test_a_restart_in_between_is_seen(stuck: Site) -> None:
    """The process that comes back is another one: its start time says so."""
    stuck.list()
    stuck.clock.now += 600
    stuck.servers["http://h:1"].born += 500
    stuck.servers["http://h:1"].steps = 0
    stuck.list(at(1))
    stuck.poll(1)
    state = stuck.watch().snapshot.state
    assert (state.restarts, state.verdict) == (1, "starting")
    assert state.incarnation is not None
    assert state.incarnation.generation == 1


@pytest.mark.parametrize("later", [-5000.0, 0.0, 5000.0])
def test_another_address_is_another_process(stuck: Site, later: float) -> None:
    """A pod that takes over the name, whether it is younger or older: a new generation, no proxy, nothing compared."""
    stuck.servers["http://h:2"] = new = Born(steps=1, running=1)
    new.born = BORN + later
    stuck.list(at(2))
    stuck.poll(1)
    state = stuck.watch().snapshot.state
    assert (state.verdict, state.proxy, state.restarts) == ("starting", "", 1)
    assert state.incarnation is not None
    assert (state.incarnation.generation, state.incarnation.start_time) == (1, new.born)
    new.steps += 5
    stuck.poll(1)
    assert stuck.watch().snapshot.state.verdict == "busy"


def test_after_an_hour_it_is_a_stranger(stuck: Site) -> None:
    """Nothing is kept for longer, and nothing is kept without bound."""
    stuck.list()
    stuck.clock.now += KEPT_SECONDS + 1
    stuck.list(at(1))
    assert stuck.watch().snapshot.state.incarnation is None
    stuck.list()
    stuck.clock.now += KEPT_SECONDS + 1
    stuck.list()
    assert stuck.fleet._gone == {}


def test_new_limits_are_no_absence(stuck: Site) -> None:
    """A reload with another limit keeps the process and its counters, and begins every proof anew."""
    before = stuck.watch().snapshot.state
    stuck.list(at(1, stuck_after_seconds=20))
    stuck.poll(2)
    state = stuck.watch().snapshot.state
    assert state.incarnation is not None
    assert before.incarnation is not None
    assert state.incarnation.generation == before.incarnation.generation
    assert (state.restarts, state.verdict, state.work_total) == (0, "busy", before.work_total)


def test_what_was_a_proxy_is_looked_at_anew(stuck: Site) -> None:
    """A backend that is no longer configured as a proxy is measured."""
    stuck.list(dataclasses.replace(at(1), proxy=True))
    stuck.poll(1)
    assert stuck.watch().snapshot.state.verdict == "proxy"
    stuck.list(at(1))
    stuck.poll(1, moving=True)
    assert stuck.watch().snapshot.state.verdict == "busy"
