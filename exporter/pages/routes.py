"""`add_pages`: `/`, `/backends/<name>`, and what is said of an address that is none."""

from __future__ import annotations

from collections.abc import Callable

from flask import Flask, Response, request
from werkzeug.exceptions import NotFound

from exporter.fleet import Fleet
from exporter.model import Verdict
from exporter.pages.backend import BackendView
from exporter.pages.table import COLUMNS, Wish, table
from exporter.pages.words import LOOKS
from stallwatch import __version__, ui

PROGRAM = "stallwatch exporter"


def add_pages(
    app: Flask, fleet: Fleet, monotonic: Callable[[], float], wall: Callable[[], float], runbooks: str | None = None
) -> None:
    """Add the pages to `app`; `runbooks` is the address before an alert's `Name.md`, None if it is not known."""
    ui.add_to(app, "exporter.pages")

    def page(template: str, status: int = 200, **values: object) -> Response:
        return ui.page(template, status, program=PROGRAM, version=__version__, at=wall(), **values)

    @app.get("/")
    def status() -> Response:
        shown = table(fleet.snapshots(), Wish.of(request.args), monotonic(), wall())
        reloaded = fleet.last_reload_successful
        return page("table.html", table=shown, columns=COLUMNS, verdicts=list(LOOKS), looks=LOOKS, reloaded=reloaded)

    @app.get("/backends/<name>")
    def one_backend(name: str) -> Response:
        snapshot = fleet.snapshot(name)
        if snapshot is None:
            return page("missing.html", 404, what=f"No backend is named {name[:200]}.")
        view = BackendView(snapshot, monotonic(), wall())
        return page("backend.html", view=view, row=view.row, runbook=_runbook(runbooks, view.row.verdict))

    @app.errorhandler(404)
    def missing(error: NotFound) -> Response | NotFound:
        if request.path.startswith(("/api/", "/static/", "/-/")):
            return error  # for programs, which want no page
        return page("missing.html", 404, what="There is no such page.")


def _runbook(runbooks: str | None, verdict: Verdict) -> str | None:
    alert = LOOKS[verdict].alert
    return f"{runbooks.rstrip('/')}/{alert}.md" if runbooks and alert else None
