"""`create_app`: /metrics, health, reload, the evidence as JSON, and the pages for people."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from flask import Flask, Response, jsonify
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
from exporter.pages.routes import add_pages
from exporter.snapshot import Snapshot
from exporter.verdict import shown


def create_app(
    fleet: Fleet,
    *,
    lifecycle: bool = False,
    monotonic: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    runbooks: str | None = None,
) -> Flask:
    """The exporter's web application; `lifecycle` enables reloading over HTTP.

    `runbooks`: the address under which the runbooks are published, so that a backend's page can lead to its own.
    """
    app = Flask("stallwatch-exporter", static_folder=None)
    add_pages(app, fleet, monotonic, wall, runbooks)
    collector = SnapshotCollector(fleet.snapshots, monotonic, lambda: fleet.last_reload_successful, fleet.discovered)
    own = CollectorRegistry(auto_describe=False)  # of this process, as every exporter tells them
    ProcessCollector(registry=own)
    PlatformCollector(registry=own)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(render(collector.collect()) + generate_latest(own), content_type=CONTENT_TYPE_LATEST)

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
