"""The whole chain on a real vLLM: never restarted while it works or idles, once and only once when it is frozen."""

from __future__ import annotations

import threading
import time

import pytest

from demo.parts import wait_for
from demo.traffic import Traffic
from tests.real.chain import LIMITS, Lookout, RealChain
from tests.real.times import EVENTS, Times, measure

pytestmark = pytest.mark.real

STUCK_AFTER = float(LIMITS["stuck_after_seconds"])
POLL = 1.0
SLOW = 1.0  # two cores for vLLM and five programs
FROZEN_SECONDS = 200.0  # until the outcome: found, called, vLLM started anew, answering
SETTLE_SECONDS = 15.0


def batch_job(chain: RealChain) -> Traffic:
    """Three requests in flight all the time; the fourth of the server's places is free for others."""
    return Traffic(chain.server.url, clients=3, max_tokens=400)


def assert_left_alone(chain: RealChain, identity: str) -> None:
    """No alert about the server from rules that do fire, no attempt, and the process that was there before."""
    assert "StallwatchDeadMansSwitch" in chain.firing()
    assert not [name for name in chain.firing() if name.startswith("ModelServer")]
    assert chain.actions() == []
    assert chain.server.identity() == identity


def test_an_idle_server_is_asked_answers_and_is_idle(chain: RealChain) -> None:
    """Nothing in flight: the exporter asks, vLLM answers, the verdict stays idle for longer than the limits."""
    identity = chain.server.identity()
    chain.start()
    wait_for(lambda: "answered" in chain.ask_results(), 30, "no short request was answered")
    chain.wait_for_verdict("idle", 10)
    time.sleep(2 * STUCK_AFTER)
    assert set(chain.verdicts()) <= {"starting", "idle", "busy"}
    assert chain.backend()["verdict"] == "idle"
    assert set(chain.ask_results()) == {"answered"}
    assert_left_alone(chain, identity)


def test_a_busy_server_is_never_asked(chain: RealChain) -> None:
    """Work in flight that moves is proof enough: busy throughout, and no request slot is taken."""
    identity = chain.server.identity()
    with batch_job(chain) as traffic:
        wait_for(lambda: traffic.answered, 60, "the batch job got no answer")
        chain.start()
        chain.wait_for_verdict("busy", 15)
        before = traffic.answered
        time.sleep(2 * STUCK_AFTER)
        backend = chain.backend()
        assert backend["verdict"] == "busy"
        assert traffic.answered > before
        assert traffic.failed == 0
        assert set(chain.verdicts()) <= {"starting", "busy"}
        assert chain.asked() == 0
        assert_left_alone(chain, identity)


def test_a_long_prompt_is_busy_while_every_counter_stands(chain: RealChain) -> None:
    """15,000 tokens of prompt take longer than `stuck_after_seconds`, and are work all the same."""
    identity, seen, lengths = chain.server.identity(), [], []

    def prefill() -> None:
        lengths.append(chain.server.complete("x" * 15000, max_tokens=4, timeout_seconds=300))

    chain.start()
    chain.wait_for_verdict("idle", 30)
    begun, prompt = time.time(), threading.Thread(target=prefill)
    prompt.start()
    while prompt.is_alive():
        seen.append(chain.backend())
        time.sleep(0.25)
    lasted = time.time() - begun
    assert len(lengths) == 1, "the prompt was not answered"
    assert lengths[0] >= 15000
    assert lasted > STUCK_AFTER, f"{lasted:.1f} s: this machine is so fast that the test shows nothing"
    busy = [backend for backend in seen if backend["verdict"] == "busy"]
    steps = {rank["latest"]["values"]["vllm:iteration_tokens_total_count"] for one in busy for rank in one["ranks"]}
    assert len(steps) <= 3, f"the step counter moved during the prompt: {sorted(steps)}"
    assert set(chain.verdicts(begun)) <= {"busy", "idle"}
    assert max(rank["stalled_seconds"] for one in seen for rank in one["ranks"]) < LIMITS["suspect_after_seconds"]
    # Until its first page shows work the server looks idle, and may be asked; never from then on.
    assert chain.asked(begun + 3 * POLL) == 0
    assert_left_alone(chain, identity)


def restarted_once(chain: RealChain, lookout: Lookout, frozen_at: float, identity: str) -> Times:
    """Wait for the outcome, then see that all that had to happen happened, once."""
    wait_for(chain.outcome, FROZEN_SECONDS, "no attempt ended")
    assert chain.outcome() == "recovered"
    wait_for(lambda: lookout.answered_at, 30, "the new server gives no answer")
    after = chain.server.identity()
    assert after not in {"", identity}
    verdicts = chain.verdicts(frozen_at)
    assert verdicts.index("stalled") < verdicts.index("stuck")
    times = measure(chain, lookout, frozen_at)
    time.sleep(SETTLE_SECONDS)  # Alertmanager repeats what it said, and the alert fires on for a while
    assert chain.server.identity() == after
    assert len(chain.actions()) == 1
    calls = [entry for _, entry in chain.events("remediator", "attempt step") if entry["step"] == "called"]
    assert len(calls) == 1
    assert [name for name, _ in EVENTS if name not in times] == []
    return times


def test_an_engine_frozen_at_work_is_restarted_once(chain: RealChain, times: dict[str, Times]) -> None:
    """Stalled, then stuck by one unanswered request; one restart; the batch job goes on."""
    identity = chain.server.identity()
    with batch_job(chain) as traffic:
        wait_for(lambda: traffic.answered, 60, "the batch job got no answer")
        chain.start()
        chain.wait_for_verdict("busy", 15)
        frozen_at = chain.server.freeze()
        with Lookout(chain) as lookout:
            measured = times["busy"] = restarted_once(chain, lookout, frozen_at, identity)
        assert chain.ask_results(frozen_at)[0] == "unanswered"
        limit = max(STUCK_AFTER, LIMITS["suspect_after_seconds"] + LIMITS["ask_timeout_seconds"])
        assert measured["stuck"] <= limit + 2 * POLL + SLOW
        before = traffic.answered
        wait_for(lambda: traffic.answered > before, 60, "the batch job does not go on")
        chain.wait_for_verdict("busy", 15)


def test_an_engine_frozen_while_idle_is_restarted_once(chain: RealChain, times: dict[str, Times]) -> None:
    """A page that looks idle for ever: three unanswered requests in a row prove it; one restart."""
    identity = chain.server.identity()
    chain.start()
    wait_for(lambda: "answered" in chain.ask_results(), 30, "no short request was answered")
    chain.wait_for_verdict("idle", 10)
    frozen_at = chain.server.freeze()
    with Lookout(chain) as lookout:
        measured = times["idle"] = restarted_once(chain, lookout, frozen_at, identity)
    results = [
        entry["result"] for at, entry in chain.events("exporter", "ask ended") if at < frozen_at + measured["stuck"]
    ]
    assert results[-3:] == ["unanswered"] * 3
    # A poll for each of: the last sign of life, the first request, the page that confirms its silence, the proof.
    limit = LIMITS["idle_ask_seconds"] + LIMITS["ask_timeout_seconds"] + STUCK_AFTER + 4 * POLL
    assert measured["stuck"] <= limit + SLOW
    chain.wait_for_verdict("idle", 30)
