"""The chain on real parts: a frozen server is restarted exactly once; a healthy one that looks dead, never.

Prometheus, Alertmanager, the exporter and the remediator are real processes; the server is simulated, listens
for real, and is itself held against recordings of a real one (tests/demo).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from demo.chain import NAME, Chain
from demo.parts import Parts, get, wait_for

pytestmark = pytest.mark.e2e

PROOF_SECONDS = 60.0
"""Enough for suspicion (5 s), proof (10 s), asks (3 s each), alerting and a slow machine."""
HEALTHY_SECONDS = 30.0
"""Three times the limit for stuck: whoever would be restarted wrongly would be by then."""


@pytest.fixture
def parts() -> Iterator[Parts]:
    """A folder and processes that end with the test."""
    with Parts() as made:
        yield made


def start(parts: Parts, *server: str) -> Chain:
    """The whole chain over a simulated server that starts in two seconds."""
    chain = Chain(parts)
    chain.start_backend("--start-seconds", "2", *server)
    chain.start_exporter()
    chain.start_remediator()
    chain.start_alertmanager()
    chain.start_prometheus()
    wait_for(lambda: chain.backend().get("verdict") in ("busy", "idle"), 30, "no verdict on the healthy server")
    return chain


def until(chain: Chain, condition: Callable[[], Any], what: str, seconds: float = PROOF_SECONDS) -> Any:
    """Wait, and show what the chain said when it did not come."""
    try:
        return wait_for(condition, seconds, what)
    except Exception as error:
        said = {part: list(chain.logged(part))[-20:] for part in ("exporter", "remediator")}
        raise AssertionError(f"{error}\n{json.dumps(said, indent=1)}\n{json.dumps(chain.backend())}") from error


def ended(chain: Chain) -> list[Mapping[str, Any]]:
    """The attempts that have an outcome."""
    return [attempt for attempt in chain.actions() if attempt.get("outcome")]


def restarted_once(chain: Chain, before: str) -> None:
    """One attempt, recovered, another process that works, and no second restart while everything goes on."""
    until(chain, lambda: ended(chain), "no attempt ended")
    until(chain, lambda: chain.backend().get("verdict") in ("busy", "idle"), "the backend is not well again")
    time.sleep(5)  # scrapes and repeated notifications that could cause a second restart come every second
    assert [attempt["outcome"] for attempt in chain.actions()] == ["recovered"]
    after = chain.identity()
    assert after != before
    document = chain.backend()
    assert document["incarnation"]["generation"] == 1
    # It works: seen by its own counters, since a request of ours would queue behind the traffic.
    assert document["last_progress_age_seconds"] < 30


def untouched(chain: Chain, before: str) -> None:
    """The same process, no attempt, and `stuck` at no time."""
    assert chain.identity() == before
    assert chain.actions() == []
    assert "ModelServerStuck" not in chain.firing()
    assert not [e for e in chain.logged("exporter") if e.get("event") == "verdict" and e.get("verdict") == "stuck"]


def test_frozen_while_busy(parts: Parts) -> None:
    """Four requests in flight, the engine freezes: one restart, a recovered backend, and nobody was asked before."""
    chain = start(parts)
    chain.start_traffic()
    until(chain, lambda: chain.backend().get("verdict") == "busy", "not busy")
    before, asked = chain.identity(), len(chain.backend()["ranks"][0]["asks"])
    time.sleep(5)
    assert len(chain.backend()["ranks"][0]["asks"]) == asked, "a busy server was asked"
    chain.fault("freeze")
    restarted_once(chain, before)


def test_frozen_while_idle(parts: Parts) -> None:
    """Nothing in flight, the engine freezes: the page looks idle for ever, and still it is found and restarted once."""
    chain = start(parts)
    before = chain.identity()
    chain.fault("freeze")
    restarted_once(chain, before)


def test_long_chunked_prefill(parts: Parts) -> None:
    """A prefill of 30 s moves no counter, only KV use: nothing is asked, nothing is restarted."""
    chain = start(parts)
    before = chain.identity()
    chain.fault(f"prefill?seconds={HEALTHY_SECONDS:.0f}")
    until(chain, lambda: chain.backend().get("verdict") == "busy", "the prefill is not seen")
    asks = chain.backend()["ranks"][0]["asks"]
    deadline = time.monotonic() + HEALTHY_SECONDS - 5
    while time.monotonic() < deadline:
        assert chain.backend()["verdict"] == "busy"
        time.sleep(0.5)
    assert chain.backend()["ranks"][0]["asks"] == asks
    untouched(chain, before)


def test_phantom_work_after_a_mass_abort(parts: Parts) -> None:
    """The page shows 106 running on an idle, healthy engine: one short request clears it, nothing is restarted."""
    chain = start(parts)
    before = chain.identity()
    chain.fault("phantom?running=106&waiting=15&kv=0.904")
    until(chain, lambda: chain.backend()["ranks"][0]["running"] == 106, "the phantom is not seen")
    until(chain, lambda: chain.backend()["ranks"][0]["running"] == 0, "the phantom is not cleared")
    assert chain.backend()["ranks"][0]["asks"][-1]["result"] == "answered"
    time.sleep(5)
    untouched(chain, before)


def test_dead_exporter(parts: Parts) -> None:
    """The exporter dies after the server froze and before the proof: no restart, and its absence is an alert."""
    chain = start(parts)
    chain.start_traffic()
    until(chain, lambda: chain.backend().get("verdict") == "busy", "not busy")
    before = chain.identity()
    chain.fault("freeze")
    until(chain, lambda: chain.backend().get("verdict") == "stalled", "not suspected")
    assert chain.exporter is not None
    chain.exporter.stop()
    time.sleep(HEALTHY_SECONDS)
    untouched(chain, before)


def test_everything_ends(tmp_path: Path) -> None:
    """Leaving the chain ends every process it started, the restarted server too, and removes its folder."""
    with Parts() as parts:
        chain = start(parts)
        folder, address = parts.folder, chain.backend_url
        assert get(f"{address}/health").status_code == 200
    assert not folder.exists()
    for part in parts.started:
        assert not part.running()
    with pytest.raises(OSError, match=r"refused|Connection"):
        get(f"{address}/health")


def test_the_backend_has_the_name_of_the_alert(parts: Parts) -> None:
    """What Prometheus shows is labelled as the remediator expects it."""
    chain = start(parts)

    def shown() -> Any:
        url = f"http://127.0.0.1:{chain.ports.prometheus}/api/v1/query?query=stalled_seconds"
        return get(url).json()["data"]["result"]

    (series,) = until(chain, shown, "stalled_seconds is not in Prometheus")
    assert series["metric"]["backend"] == NAME
