"""A real Prometheus with the project's rules, filled by both programs' own collectors from recordings of a real vLLM.

gb10-a freezes while busy and stays stuck; gb10-b's engine is killed and comes back. Each scrape shows the next poll,
so a minute of the recordings passes in a few seconds. The remediator's counters are moved as an attempt moves them.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import requests
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from demo.parts import Parts, find_program, free_port, get, wait_for
from exporter.config import backend
from exporter.metrics import SnapshotCollector
from exporter.recording import Step
from exporter.runtimes import builtin
from exporter.watch import Snapshot
from remediator.config import load
from remediator.journal import Journal
from remediator.metrics import JournalCollector, Metrics
from remediator.model import Decision, Reason, Verb
from tests.exporter.test_recordings import LIMITS, steps
from tests.tools import ROOT

AGES = {
    "stallwatch_backend_last_observation_timestamp_seconds",
    "stallwatch_backend_last_progress_timestamp_seconds",
}
FROZEN, KILLED = "gb10-a", "gb10-b"
PLAYED = {FROZEN: ("05-freeze-while-busy", 4, 28), KILLED: ("08-killed-engine", 40, 64)}
"""For each backend its recording, and the first and last poll that are shown. The last one stays."""


class Replayed(Collector):
    """The exporter's series after one more poll at each scrape, with times of now."""

    def __init__(self) -> None:
        self.polls = 0
        for recording, _, _ in PLAYED.values():
            steps(recording)  # replayed before the first scrape, which would else time out

    def collect(self) -> Iterator[Metric]:
        snapshots = [self._snapshot(name) for name in PLAYED]
        self.polls += 1
        ages = {s.backend.name: s.taken_at - s.state.last_page.at for s in snapshots if s.state.last_page}
        now = max(s.taken_at for s in snapshots)
        for family in SnapshotCollector(lambda: snapshots, lambda: now, lambda: True).collect():
            if family.name in AGES:  # the recordings have no wall clock
                family.samples = [
                    Sample(family.name, {"backend": name}, time.time() - age) for name, age in ages.items()
                ]
            yield family

    def _snapshot(self, name: str) -> Snapshot:
        recording, first, last = PLAYED[name]
        step: Step = steps(recording)[min(first + self.polls, last)]
        state = step.state
        times = [it.at for it in (state.last_page, state.last_failure) if it is not None]
        limits = {"poll_interval_seconds": 1.0, "stuck_after_seconds": LIMITS.stuck_after_seconds}
        watched = backend(name, "http://127.0.0.1:8000", builtin()["vllm"], limits, group="gb10")
        good = state.last_page is not None and state.last_failure is None
        seen = steps(recording)[first : min(first + self.polls, last) + 1]
        failed = Counter(one.state.last_failure.reason.value for one in seen if one.state.last_failure)
        # Polled when it is shown: one of two recordings is ahead of the other.
        return Snapshot(
            watched, state, max(times), up=good, polls=self.polls, poll_failures=failed, polled_at=float("inf")
        )


@dataclass
class Scene:
    """Where everything is, and the way to ask."""

    prometheus: str
    parts: Parts
    labels: Mapping[str, str] = field(default_factory=lambda: {FROZEN: "gb10", KILLED: "gb10"})

    def query(self, expr: str) -> list[Any]:
        """The instant value now. A query that Prometheus refuses is an error with its words."""
        return self._ask("query", {"query": expr})

    def range(self, expr: str, seconds: float = 60, step: float = 1) -> list[Any]:
        """The values of the last seconds."""
        now = time.time()
        return self._ask("query_range", {"query": expr, "start": now - seconds, "end": now, "step": step})

    def _ask(self, what: str, parameters: Mapping[str, Any]) -> list[Any]:
        with requests.Session() as session:
            session.trust_env = False
            answer = session.post(f"{self.prometheus}/api/v1/{what}", data=parameters, timeout=10).json()
        assert answer["status"] == "success", (parameters["query"], answer)
        result: list[Any] = answer["data"]["result"]
        return result

    def alerts(self) -> dict[str, Mapping[str, Any]]:
        """What fires, by name and backend."""
        answer = get(f"{self.prometheus}/api/v1/alerts").json()["data"]["alerts"]
        return {
            f"{alert['labels']['alertname']} {alert['labels'].get('backend', '')}".strip(): alert
            for alert in answer
            if alert["state"] == "firing"
        }


@contextmanager
def served(pages: Mapping[str, Callable[[], bytes]]) -> Iterator[int]:
    """One small server on loopback; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages[self.path]()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError):  # Prometheus is ended in the middle of a scrape
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def playing() -> Iterator[Scene]:
    """Start it, and wait until both recordings have come to their ends."""
    with Parts() as parts:
        replayed = Replayed()
        watched = CollectorRegistry(auto_describe=False)
        watched.register(replayed)
        metrics, journal = _remediator(parts.folder)
        try:
            pages = {
                "/exporter": lambda: generate_latest(watched),
                "/remediator": lambda: generate_latest(metrics.registry),
            }
            with served(pages) as port:
                scene = Scene(_prometheus(parts, port), parts)
                wait_for(lambda: replayed.polls > 6, 30, "Prometheus does not scrape")
                _act(metrics)
                wait_for(lambda: replayed.polls > 30, 60, "Prometheus does not scrape")
                wait_for(lambda: f"ModelServerStuck {FROZEN}" in scene.alerts(), 30, "the rules find nothing")
                yield scene
        finally:
            journal.close()


def _remediator(folder: Path) -> tuple[Metrics, Journal]:
    content = yaml.safe_load((ROOT / "config" / "remediator.yml").read_text())
    (example,) = content["backends"]
    content["backends"] = [{**copy.deepcopy(example), "name": name, "group": "gb10"} for name in PLAYED]
    path = folder / "remediator.yml"
    path.write_text(yaml.safe_dump(content))
    config = load(path)
    journal = Journal(folder / "journal.db")
    metrics = Metrics(config)
    metrics.registry.register(JournalCollector(config, journal, time.time))
    return metrics, journal


def _act(metrics: Metrics) -> None:
    """What one attempt, one refusal, and a restart by somebody else leave behind."""
    metrics.decided(FROZEN, Decision(Verb.ACT, Reason.ACT))
    metrics.decided(FROZEN, Decision(Verb.WAIT, Reason.COOLDOWN))
    metrics.attempts.labels(FROZEN, "command").inc()
    metrics.restarts_seen.labels(FROZEN, "us").inc()
    metrics.restarts_seen.labels(KILLED, "others").inc()
    metrics.webhook_requests.labels("202").inc()


def _prometheus(parts: Parts, port: int) -> str:
    content = yaml.safe_load((ROOT / "config" / "prometheus.yml").read_text())
    content["global"] = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"}
    content["rule_files"] = [str(ROOT / "rules" / "alerts" / "*.yml"), str(ROOT / "rules" / "recording.yml")]
    del content["alerting"]
    for job in content["scrape_configs"]:
        job["metrics_path"] = "/" + job["job_name"].removeprefix("stallwatch-")
        job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    path = parts.folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(content))
    address = f"127.0.0.1:{free_port()}"
    argv = [find_program("prometheus"), f"--config.file={path}", f"--storage.tsdb.path={parts.folder / 'tsdb'}"]
    parts.start("prometheus", [*argv, f"--web.listen-address={address}"], f"http://{address}/-/ready")
    return f"http://{address}"
