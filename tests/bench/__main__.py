"""`make bench`: what one poll costs, step by step, next to a full parse of the same page, in one run.

The machine is noisy, so every figure stands beside the full parse as a ratio. Each later figure is a function in
BENCHES. Writes a table to standard output and the same as JSON to `build/bench.json`.
"""

from __future__ import annotations

import gzip
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from demo.vllm import Options, Server
from exporter.fetch import Fetcher
from exporter.model import Limits, Page
from exporter.page import PageParser
from exporter.runtimes import builtin
from exporter.state import State
from exporter.verdict import advance
from tests.bench.blackbox import beside_blackbox
from tests.bench.journal import decisions, growth
from tests.bench.scale import fleet
from tests.bench.webhook import deliveries

ROOT = Path(__file__).parent.parent.parent
ROUNDS, REPEATS = 7, 60


def recorded(name: str, line: int) -> bytes:
    """The page on one line of a recording."""
    with gzip.open(ROOT / "tests" / "recordings" / f"{name}.jsonl.gz", "rt") as file:
        return str(json.loads(file.readlines()[line])["body"]).encode()


def cpu_seconds(action: Callable[[], object]) -> float:
    """CPU seconds of this process for one call: the median over rounds of the mean over repeats."""
    action()
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(REPEATS):
            action()
        rounds.append((time.process_time() - began) / REPEATS)
    return statistics.median(rounds)


def one_poll(page: bytes) -> dict[str, float]:
    """CPU seconds of the steps of one poll of this page, without the network."""
    parser, limits = PageParser(builtin()["vllm"]), Limits()
    reading = parser.parse(page)
    clock = [0.0]

    def step(state: list[State], parse: bool) -> None:
        clock[0] += 5
        seen = parser.parse(page) if parse else reading
        state[0], _ = advance(state[0], Page(clock[0], clock[0], clock[0], seen), limits, clock[0])

    judged, together = [State()], [State()]
    return {
        "filter": cpu_seconds(lambda: parser._wanted.findall(b"\n" + page)),
        "filter and parse": cpu_seconds(lambda: parser.parse(page)),
        "advance": cpu_seconds(lambda: step(judged, False)),
        "filter, parse and advance": cpu_seconds(lambda: step(together, True)),
        "full parse by prometheus_client": cpu_seconds(
            lambda: [list(family.samples) for family in text_string_to_metric_families(page.decode())]
        ),
    }


def one_fetch() -> dict[str, float]:
    """CPU seconds of one GET of a simulated vLLM's page over a kept connection; the server is another thread's work."""
    with Server(Options()) as server:
        fetcher = Fetcher(server.url)

        def fetch_with_server() -> None:
            fetcher.page(5, 8_000_000)

        began = time.thread_time()
        for _ in range(200):
            fetch_with_server()
        cost = (time.thread_time() - began) / 200
        fetcher.close()
    return {"fetch": cost}


BENCHES: dict[str, Callable[[], dict[str, float]]] = {
    "vLLM page": lambda: one_poll(recorded("02-busy-decode", 10)),
    "vLLM page with two ranks": lambda: one_poll(recorded("10-dp2-one-frozen", 3)),
    "fetch": one_fetch,
    "whole processes": lambda: beside_blackbox(recorded("02-busy-decode", 10)),
}
FLEETS: dict[str, Callable[[], dict[str, float]]] = {
    "100 backends": lambda: fleet(100, recorded("02-busy-decode", 10)),
    "1,000 backends": lambda: fleet(1000, recorded("02-busy-decode", 10)),
    "1,000 backends, 4 shards": lambda: fleet(1000, recorded("02-busy-decode", 10), shards=4),
    "webhook": deliveries,
    "decisions": decisions,
    "journal": growth,
}


def main() -> int:
    """Run every bench; print the table and write the JSON."""
    results = {name: bench() for name, bench in BENCHES.items()}
    yardstick = results["vLLM page"]["full parse by prometheus_client"]
    print(f"{'bench':<26} {'step':<34} {'CPU ms':>8} {'of a full parse':>16}")
    for name, rows in results.items():
        for step, seconds in rows.items():
            print(f"{name:<26} {step:<34} {seconds * 1000:>8.3f} {seconds / yardstick:>15.1%}")
    for name, measure in FLEETS.items():
        results[name] = measure()
        print(f"{name:<26} " + "  ".join(f"{what}: {value:.3g}" for what, value in results[name].items()))
    target = ROOT / "build" / "bench.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
