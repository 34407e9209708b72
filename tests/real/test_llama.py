"""A real llama-server: what works, idles or sleeps is never called stuck; a batch that never ends is."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo.parts import wait_for
from demo.traffic import Traffic
from tests.real.llama import FIRST_PORT, LIMITS, SLOTS, LlamaChain, LlamaServer, held, serving, watched

pytestmark = pytest.mark.real

STUCK_AFTER = LIMITS["stuck_after_seconds"]
UNREACHABLE_AFTER = LIMITS["unreachable_after_seconds"]
LONG = 8000  # tokens, nearly four batches
ALONE_SECONDS = 20.0
SLEEP_AFTER = 4
START_SECONDS = 30.0


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    """One server for all tests that want it awake."""
    with serving(tmp_path_factory.mktemp("llama"), FIRST_PORT) as server:
        yield server


@pytest.fixture
def chain(llama: LlamaServer) -> Iterator[LlamaChain]:
    """A new chain around it, with the server well."""
    llama.make_well()
    with watched(llama) as chain:
        yield chain


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[LlamaServer]:
    """A server that falls asleep when it has had nothing to do for four seconds."""
    with serving(tmp_path / "sleeper", FIRST_PORT + 1, "--sleep-idle-seconds", str(SLEEP_AFTER)) as server:
        yield server


def batch_job(server: LlamaServer) -> Traffic:
    """Two requests more than the server has slots."""
    return Traffic(server.url, clients=SLOTS + 2, max_tokens=400)


def during(work: Callable[[], object], look: Callable[[], object]) -> float:
    """Do the work beside the looks, five a second; returns how many seconds it took."""
    begun, worker = time.monotonic(), threading.Thread(target=work)
    worker.start()
    while worker.is_alive():
        look()
        worker.join(0.2)
    return time.monotonic() - begun


def test_an_idle_server_is_idle_and_is_not_asked(chain: LlamaChain) -> None:
    """A request would take a slot and what is cached in it, so an idle llama-server is left alone."""
    chain.start_exporter()
    chain.wait_for_verdict("idle", START_SECONDS)
    time.sleep(2 * STUCK_AFTER)
    assert chain.state()[0] == "idle"
    assert set(chain.verdicts()) == {"idle"}
    assert chain.asked() == 0


def test_a_busy_server_is_busy_and_is_not_asked(llama: LlamaServer, chain: LlamaChain) -> None:
    """More clients than slots: four run, two wait, and nobody takes a place in the queue to see whether it moves."""
    with batch_job(llama) as traffic:
        wait_for(lambda: traffic.answered, 60, "the batch job got no answer")
        chain.start_exporter()
        chain.wait_for_verdict("busy", START_SECONDS)
        before, seen = traffic.answered, set()
        for _ in range(int(10 * STUCK_AFTER)):
            seen |= {(rank["running"], rank["waiting"]) for rank in chain.backend().get("ranks", [])}
            time.sleep(0.2)
        assert (SLOTS, 2) in seen
        assert traffic.answered > before
        assert traffic.failed == 0
        assert set(chain.verdicts()) <= {"idle", "busy"}
        assert chain.state()[0] == "busy"
        assert chain.asked() == 0


def test_a_long_prompt_is_never_stuck(llama: LlamaServer, chain: LlamaChain) -> None:
    """Nothing moves within a batch. With a limit above the longest one it is a suspicion at most, asked or not."""
    moved: list[tuple[float, float]] = []

    def look() -> None:
        count = llama.decodes()
        if not moved or count != moved[-1][1]:
            moved.append((time.monotonic(), count))

    look()
    lasted = during(lambda: llama.complete("a" * LONG, max_tokens=2, timeout_seconds=300), look)
    longest = max(later - sooner for (sooner, _), (later, _) in itertools.pairwise(moved))
    assert longest > 1.5, f"batches of {longest:.1f} s: this machine is so fast that the test shows nothing"
    limits = {"suspect_after_seconds": max(1.0, longest / 4), "stuck_after_seconds": 3 * longest + 5}
    chain.start_exporter(limits)
    chain.wait_for_verdict("idle", START_SECONDS)
    begun, seen = time.time(), []
    again = during(
        lambda: llama.complete("b" * LONG, max_tokens=2, timeout_seconds=300),
        lambda: seen.append(chain.backend()),
    )
    stalled = max(rank["stalled_seconds"] for one in seen for rank in one.get("ranks", []))
    verdicts = [str(one.get("verdict")) for one in seen]
    sys.stdout.write(
        f"longest batch {longest:.1f} s, prompt {lasted:.1f} s and {again:.1f} s, longest stall {stalled:.1f} s, "
        f"asks {chain.ask_results(begun)}, verdicts {chain.verdicts()}\n"
    )
    assert "busy" in verdicts
    assert set(verdicts) <= {"idle", "busy", "stalled"}
    assert set(chain.verdicts()) <= {"idle", "busy", "stalled"}
    assert stalled > 0
    chain.wait_for_verdict("idle", START_SECONDS)


def test_a_stopped_process_is_unreachable(llama: LlamaServer, chain: LlamaChain) -> None:
    """Connections are taken, nothing is answered, not even /health: a human is told; it is well when it goes on."""
    identity = llama.identity()
    chain.start_exporter()
    chain.wait_for_verdict("idle", START_SECONDS)
    stopped_at = llama.freeze()
    chain.wait_for_verdict("unreachable", UNREACHABLE_AFTER + 15)
    assert chain.state()[1] == "timeout"
    assert time.time() - stopped_at >= UNREACHABLE_AFTER
    llama.thaw()
    chain.wait_for_verdict("idle", START_SECONDS)
    assert set(chain.verdicts()) == {"idle", "unreachable"}
    assert chain.asked() == 0
    assert llama.identity() == identity


def test_a_queue_that_hangs_is_unreachable_though_its_health_answers(llama: LlamaServer, chain: LlamaChain) -> None:
    """The threads of HTTP live on without the main one: /health is 200 and /metrics waits for ever."""
    chain.start_exporter()
    chain.wait_for_verdict("idle", START_SECONDS)
    with held(llama.process()):
        chain.wait_for_verdict("unreachable", UNREACHABLE_AFTER + 20)
        assert chain.state()[1] == "health_answers_metrics_do_not"
    chain.wait_for_verdict("idle", START_SECONDS)
    assert set(chain.verdicts()) == {"idle", "unreachable"}


def assert_stuck(llama: LlamaServer, chain: LlamaChain, held_at: float) -> None:
    """Proven by a counter that stands with requests under way, and by one short request without an answer."""
    chain.wait_for_verdict("stuck", STUCK_AFTER + LIMITS["ask_timeout_seconds"] + 15)
    took = time.time() - held_at
    first, backend = llama.decodes(), chain.backend()
    sys.stdout.write(f"stuck after {took:.1f} s: {backend['sentence']}\n")
    assert took >= STUCK_AFTER
    assert backend["reason"] == "stalled_and_unanswered"
    assert backend["ranks"][0]["running"] > 0
    assert chain.ask_results(held_at)[0] == "unanswered"
    verdicts = chain.verdicts(held_at)
    assert verdicts.index("stalled") < verdicts.index("stuck")
    assert llama.decodes() == first


def test_a_batch_that_never_ends_is_stuck_until_it_ends(llama: LlamaServer, chain: LlamaChain) -> None:
    """The page is served, its counter of batches stands: proof after the limit, withdrawn when the batch ends."""
    with batch_job(llama) as traffic:
        wait_for(lambda: traffic.answered, 60, "the batch job got no answer")
        chain.start_exporter()
        chain.wait_for_verdict("busy", START_SECONDS)
        with llama.decode_held() as held_at:
            assert_stuck(llama, chain, held_at)
        chain.wait_for_verdict("busy", START_SECONDS)
        before = traffic.answered
        wait_for(lambda: traffic.answered > before, 60, "the batch job does not go on")


def test_a_batch_that_never_ends_is_restarted_once(llama: LlamaServer, chain: LlamaChain) -> None:
    """The whole chain: alert, webhook, one restart by the supervisor, and the batch job goes on."""
    identity = llama.identity()
    with batch_job(llama) as traffic:
        wait_for(lambda: traffic.answered, 60, "the batch job got no answer")
        chain.start()
        chain.wait_for_verdict("busy", START_SECONDS)
        with llama.decode_held() as held_at:
            wait_for(chain.outcome, 120, "no attempt ended")
            sys.stdout.write(f"recovered {time.time() - held_at:.1f} s after the hold\n")
        assert chain.outcome() == "recovered"
        after = llama.identity()
        assert after not in {"", identity}
        time.sleep(2 * STUCK_AFTER)
        assert llama.identity() == after
        assert len(chain.actions()) == 1
        before = traffic.answered
        wait_for(lambda: traffic.answered > before, 60, "the batch job does not go on")
        chain.wait_for_verdict("busy", START_SECONDS)


def test_a_server_that_may_sleep_falls_asleep_and_is_not_woken(sleeper: LlamaServer) -> None:
    """Told by `sleep_idle_seconds` the exporter leaves it alone until it sleeps, and then reads only /props."""
    with watched(sleeper) as chain:
        chain.backend_settings["sleep_idle_seconds"] = SLEEP_AFTER
        chain.start_exporter()
        wait_for(lambda: chain.state() == ("paused", "asleep"), 30, "it does not fall asleep")
        asleep_at = time.monotonic()
        assert sleeper.said("server is entering sleeping state") == 1
        while time.monotonic() - asleep_at < ALONE_SECONDS:
            assert chain.state() == ("paused", "asleep")
            time.sleep(0.5)
        assert sleeper.said("server is entering sleeping state") == 1
        assert sleeper.said("server is exiting sleeping state") == 0
        assert chain.asked() == 0
        # A client wakes it, and it falls asleep again.
        sleeper.complete("Good morning.", max_tokens=2, timeout_seconds=60)
        wait_for(lambda: sleeper.said("server is entering sleeping state") == 2, 30, "it does not fall asleep again")
        wait_for(lambda: chain.state() == ("paused", "asleep"), 10, "the exporter does not see that it sleeps again")
        assert set(chain.verdicts()) <= {"idle", "busy", "paused"}


def test_a_server_of_which_the_exporter_does_not_know_that_it_may_sleep(sleeper: LlamaServer) -> None:
    """Builds differ: being read keeps older ones awake, newer ones sleep all the same. Neither is any trouble."""
    with watched(sleeper) as chain:
        chain.start_exporter()
        sleeper.complete("Good morning.", max_tokens=2, timeout_seconds=60)
        before = sleeper.said("server is entering sleeping state")
        woken = sleeper.said("server is exiting sleeping state")
        wait_for(lambda: chain.state()[0] in {"idle", "paused"}, START_SECONDS, "neither idle nor paused")
        time.sleep(ALONE_SECONDS)
        slept = sleeper.said("server is entering sleeping state") - before
        sys.stdout.write(f"fell asleep {slept} times in {ALONE_SECONDS:.0f} s of readings\n")
        assert chain.state()[0] == ("paused" if slept else "idle")
        assert set(chain.verdicts()) <= {"idle", "busy", "paused"}
        assert sleeper.said("server is exiting sleeping state") == woken
        assert chain.asked() == 0
