"""What the exporter serves: metrics that promtool finds nothing wrong with, JSON as its schema says, a page."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from exporter.config import Backend, backend
from exporter.fetch import FetchFailed
from exporter.fleet import Fleet
from exporter.metrics import COUNTERS, GAUGES
from exporter.model import FailureReason, Verdict
from exporter.runtimes import builtin
from exporter.watch import Watch
from exporter.web import create_app
from tests.exporter.test_watch import Asker, Clock, Server
from tests.tools import find_tool

SCHEMA = json.loads((Path(__file__).parent.parent.parent / "docs" / "api" / "backend.schema.json").read_text())


class Site:
    """A fleet of two backends, polled by hand, and a client of its web application."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.servers = {"a": Server(steps=5, running=2), "b": Server()}
        self.watches: dict[str, Watch] = {}
        limits = {"poll_interval_seconds": 5.0}
        self.backends = [
            backend(name, f"http://127.0.0.1:1/{name}", builtin()["vllm"], limits, group="g") for name in self.servers
        ]
        self.fleet = Fleet(lambda: self.backends, self._watch)
        self.fleet._apply = lambda backends: None  # type: ignore[method-assign]
        for target in self.backends:
            self.fleet._watches[target.name] = self._watch(target)
        self.client: FlaskClient = create_app(self.fleet, lifecycle=True, monotonic=self.clock.monotonic).test_client()

    def _watch(self, target: Backend) -> Watch:
        watch = Watch(target, self.servers[target.name], Asker(), monotonic=self.clock.monotonic, wall=self.clock.wall)
        self.watches[target.name] = watch
        return watch

    def poll(self) -> None:
        """One poll of each backend, and five seconds."""
        for watch in self.watches.values():
            watch.poll()
        self.clock.now += 5

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Every sample of a scrape."""
        text = self.client.get("/metrics").get_data(as_text=True)
        return {
            (s.name, frozenset(s.labels.items())): s.value
            for family in text_string_to_metric_families(text)
            for s in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """One sample's value, or None where there is none."""
        return self.samples().get((name, frozenset(labels.items())))


@pytest.fixture
def site() -> Iterator[Site]:
    """A site after two polls."""
    made = Site()
    made.poll()
    made.poll()
    yield made
    for watch in made.watches.values():
        watch.stop()


def test_every_demanded_metric_is_there(site: Site) -> None:
    """The three gauges bare, everything else under one prefix or about this process; one verdict is 1."""
    names = {name for name, _ in site.samples()}
    optional = {"stallwatch_backend_start_time_seconds", "stallwatch_backend_last_progress_timestamp_seconds"}
    assert set(GAUGES) - names == optional
    assert {f"{name}_total" for name in COUNTERS} <= names
    assert all(n.startswith(("stallwatch_", "process_", "python_info")) or n in GAUGES for n in names)
    assert "process_cpu_seconds_total" in names
    for name in "ab":
        assert sum(site.value("stallwatch_backend_verdict", backend=name, verdict=v.value) or 0 for v in Verdict) == 1
    assert site.value("stallwatch_backend_verdict", backend="a", verdict="busy") == 1
    assert site.value("stallwatch_backend_restarts_total", backend="a") == 0
    assert site.value("stallwatch_backend_asks_total", backend="a", result="unanswered") == 0


def test_promtool_finds_nothing_wrong_with_the_metrics(site: Site) -> None:
    """The exposition passes promtool's own linter."""
    page = site.client.get("/metrics").data
    lint = subprocess.run(
        [find_tool("promtool"), "check", "metrics"], input=page, capture_output=True, check=False, timeout=30
    )
    assert (lint.returncode, lint.stdout + lint.stderr) == (0, b"")


def test_a_backend_that_cannot_be_measured_has_no_gauges(site: Site) -> None:
    """Absent is not zero: a page without series takes the measured gauges away, the others stay."""
    assert site.value("stalled_seconds", backend="a") == 5
    site.servers["a"].failure = FetchFailed(FailureReason.TIMEOUT, "no answer")
    site.poll()
    assert site.value("stalled_seconds", backend="a") == 5, "held over a short gap"
    assert site.value("stallwatch_backend_up", backend="a") == 0
    for _ in range(200):
        site.poll()
    for name in ("stalled_seconds", "engine_progress_rate", "restart_detected"):
        assert site.value(name, backend="a") is None
        assert site.value(name, backend="b") is not None
    assert site.value("stallwatch_backend_up", backend="a") == 0


def test_a_dead_loop_does_not_look_fresh(site: Site) -> None:
    """When polls no longer finish, the backend's series vanish; what it is and when it was seen stay."""
    site.clock.now += 60
    names = {name for name, labels in site.samples() if ("backend", "a") in labels}
    assert names == {"stallwatch_backend_info", "stallwatch_backend_last_observation_timestamp_seconds"}


def test_json_is_as_its_schema_says(site: Site) -> None:
    """Before, during and after trouble, and for a backend never read, the JSON fits the schema."""
    for path in ("a", "b"):
        jsonschema.validate(site.client.get(f"/api/v1/backends/{path}").get_json(), SCHEMA)
    for _ in range(60):
        site.poll()
        jsonschema.validate(site.client.get("/api/v1/backends/a").get_json(), SCHEMA)
    document = site.client.get("/api/v1/backends/a").get_json()
    assert document["verdict"] == "stalled"
    assert document["age_seconds"] == 5
    assert document["ranks"][0]["latest"]["values"]["running"] == 2


def test_the_list_holds_every_backend(site: Site) -> None:
    """All backends in one answer, without their pages."""
    answer = site.client.get("/api/v1/backends").get_json()
    assert [row["name"] for row in answer["backends"]] == ["a", "b"]
    assert all("ranks" not in row for row in answer["backends"])


def test_unknown_backend_is_404(site: Site) -> None:
    """A name that is not configured is said to be so."""
    answer = site.client.get("/api/v1/backends/x")
    assert (answer.status_code, answer.get_json()) == (404, {"error": "no backend is named 'x'"})


def test_pages_and_health(site: Site) -> None:
    """The status page names each backend with its sentence; health and readiness answer."""
    page = site.client.get("/").get_data(as_text=True)
    assert "Rank 0 has 2 running and 0 waiting" in page
    assert site.client.get("/-/healthy").status_code == 200
    assert site.client.get("/-/ready").status_code == 200


def test_reload_needs_to_be_enabled(site: Site) -> None:
    """Reloading over HTTP is off unless asked for, and is no GET."""
    assert site.client.post("/-/reload").status_code == 200
    assert site.client.get("/-/reload").status_code == 405
    closed: Any = create_app(site.fleet).test_client()
    assert closed.post("/-/reload").status_code == 403
