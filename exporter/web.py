"""`create_app`: /metrics, a status page, health, reload, and the evidence as JSON."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from flask import Flask, Response, jsonify, render_template_string
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from exporter import evidence
from exporter.exposition import render
from exporter.fleet import Fleet
from exporter.metrics import SnapshotCollector, is_dead
from exporter.snapshot import Snapshot
from exporter.verdict import shown

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>stallwatch exporter</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
 :root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
 body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
 table { border-collapse: collapse; width: 100%; }
 th, td { text-align: left; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid #8884; vertical-align: top; }
 .stuck, .down, .unreachable, .failing { color: #c0392b; font-weight: 600; }
 .stalled, .unmeasured { color: #b9770e; font-weight: 600; }
</style>
<h1>stallwatch exporter</h1>
<table><thead><tr><th>Backend<th>Verdict<th>Stalled<th>Limit<th>Why</tr></thead><tbody>
{% for row in rows %}<tr><td><a href="api/v1/backends/{{ row.name }}">{{ row.name }}</a>
<td class="{{ row.verdict }}">{{ row.verdict }}
<td>{{ "%.0f s" % row.stalled if row.stalled is not none else "-" }}<td>{{ "%.0f s" % row.limit }}
<td>{{ row.sentence }}</tr>
{% endfor %}</tbody></table>
<p><a href="metrics">metrics</a> · <a href="api/v1/backends">evidence as JSON</a></p></html>
"""


def create_app(fleet: Fleet, *, lifecycle: bool = False, monotonic: Callable[[], float] = time.monotonic) -> Flask:
    """The exporter's web application; `lifecycle` enables reloading over HTTP."""
    app = Flask("stallwatch-exporter")
    collector = SnapshotCollector(fleet.snapshots, monotonic, lambda: fleet.last_reload_successful)
    own = CollectorRegistry(auto_describe=False)  # of this process, as every exporter tells them
    ProcessCollector(registry=own)
    PlatformCollector(registry=own)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(render(collector.collect()) + generate_latest(own), content_type=CONTENT_TYPE_LATEST)

    @app.get("/")
    def status() -> str:
        return render_template_string(PAGE, rows=[_row(snapshot, monotonic()) for snapshot in fleet.snapshots()])

    @app.get("/-/healthy")
    def healthy() -> str:
        return "stallwatch exporter is healthy.\n"

    @app.get("/-/ready")
    def ready() -> str:
        return "stallwatch exporter is ready.\n"

    @app.post("/-/reload")
    def reload() -> tuple[str, int]:
        if not lifecycle:
            return "Lifecycle API is not enabled (--web.enable-lifecycle).\n", 403
        error = fleet.reload()
        return (f"{error}\n", 500) if error else ("reloaded\n", 200)

    @app.get("/api/v1/backends")
    def backends() -> Response:
        rows = [document(s, fleet.epoch, monotonic()) for s in fleet.snapshots()]
        for row in rows:
            del row["ranks"], row["history"]
        return jsonify(backends=rows, exporter_epoch=fleet.epoch)

    @app.get("/api/v1/backends/<name>")
    def backend(name: str) -> tuple[Response, int]:
        snapshot = fleet.snapshot(name)
        if snapshot is None:
            return jsonify(error=f"no backend is named {name!r}"), 404
        return jsonify(document(snapshot, fleet.epoch, monotonic())), 200

    return app


def _row(snapshot: Snapshot, now: float) -> dict[str, object]:
    state, limits = snapshot.state, snapshot.backend.limits
    gauges = shown(state, limits, now)
    return {
        "name": snapshot.backend.name,
        "verdict": state.verdict.value,
        "stalled": gauges.stalled_seconds,
        "limit": gauges.stuck_after_seconds,
        "sentence": evidence.sentence(state, limits),
    }


def document(snapshot: Snapshot, epoch: str, now: float) -> dict[str, object]:
    """One backend as JSON: docs/api/backend.schema.json. Ages are counted here, so that no clocks are compared."""
    state, backend, limits = snapshot.state, snapshot.backend, snapshot.backend.limits
    page, life = state.last_page, state.incarnation
    progress = max((r.progress_at for r in state.ranks.values() if r.progress_at is not None), default=None)
    numbers = {k: v for k, v in dataclasses.asdict(limits).items() if k.endswith("_seconds") and v is not None}
    return {
        "name": backend.name,
        "group": backend.group,
        "runtime": backend.runtime.name,
        "url": backend.url,
        "verdict": state.verdict.value,
        "reason": state.judgement.reason,
        "sentence": evidence.sentence(state, limits),
        "since": state.since_wall,
        "observed_at": page.wall if page else None,
        "age_seconds": now - page.at if page else None,
        "loop_alive": not is_dead(snapshot, now),
        "last_progress_age_seconds": now - progress if progress is not None else None,
        "last_answer_age_seconds": now - state.answered_at if state.answered_at is not None else None,
        "ask_when": limits.ask_when.value,
        "incarnation": {
            "start_time": life.start_time if life else None,
            "exporter_epoch": epoch,
            "generation": life.generation if life else 0,
        },
        "limits": {**numbers, "effective_stuck_after_seconds": shown(state, limits, now).stuck_after_seconds},
        "ranks": evidence.ranks(state, limits),
        "history": [dataclasses.asdict(change) for change in snapshot.history],
    }
