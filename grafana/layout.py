"""A dashboard around its panels: rows, places on the grid, variables, links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grafana.panels import SOURCE, Json

WIDTH = 24
TAG = "stallwatch"


def variable_datasource() -> Json:
    """Which Prometheus, or anything that speaks its language."""
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "regex": "",
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "refresh": 1,
        "current": {},
    }


def variable_labels(name: str, label: str, expr: str, *, several: bool) -> Json:
    """The values of a label; `several` allows all of them at once, as the first choice."""
    chosen: Json = {"text": ["All"], "value": ["$__all"], "selected": True} if several else {}
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": expr, "refId": name},
        "regex": "",
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        "includeAll": several,
        "multi": several,
        "current": chosen,
    }


def variable_address(name: str, label: str, default: str) -> Json:
    """An address for the links, to be written once by whoever imports the dashboard."""
    current = {"text": default, "value": default, "selected": True}
    return {"name": name, "label": label, "type": "textbox", "query": default, "hide": 0, "current": current}


def addresses() -> list[Json]:
    """Where the links of both dashboards lead."""
    return [
        variable_address("exporter_url", "Exporter", "http://127.0.0.1:9840"),
        variable_address("remediator_url", "Remediator", "http://127.0.0.1:9841"),
        variable_address("runbooks_url", "Runbooks", "https://stallwatch.example/runbooks"),
    ]


def dashboard(
    uid: str,
    title: str,
    description: str,
    rows: Mapping[str, Sequence[Json]],
    variables: Sequence[Json],
    annotations: Sequence[Json] = (),
) -> Json:
    """A whole dashboard; panels of a row stand side by side and wrap at 24 columns."""
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": [TAG],
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": 39,
        "version": 1,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "fiscalYearStartMonth": 0,
        "templating": {"list": list(variables)},
        "annotations": {"list": list(annotations)},
        "links": [
            {
                "title": "stallwatch",
                "type": "dashboards",
                "tags": [TAG],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "icon": "external link",
                "tooltip": "",
                "url": "",
            }
        ],
        "panels": _placed(rows),
    }


def _placed(rows: Mapping[str, Sequence[Json]]) -> list[Json]:
    placed: list[Json] = []
    y = 0
    for title, panels in rows.items():
        placed.append({**_row(title, y), "id": len(placed) + 1})
        y, x, tallest = y + 1, 0, 0
        for one in panels:
            width, height = one["gridPos"]["w"], one["gridPos"]["h"]
            if x + width > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            placed.append({**one, "id": len(placed) + 1, "gridPos": {"x": x, "y": y, "w": width, "h": height}})
            x, tallest = x + width, max(tallest, height)
        y += tallest
    return placed


def _row(title: str, y: int) -> dict[str, Any]:
    grid = {"x": 0, "y": y, "w": WIDTH, "h": 1}
    return {"type": "row", "title": title, "collapsed": False, "gridPos": grid, "panels": []}
