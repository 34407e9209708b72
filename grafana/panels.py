"""The pieces that both dashboards are made of, as plain dictionaries in Grafana's dashboard model (schema 39).

Colour is used where it judges, and is one of a palette that the colour-blind can tell apart; every colour has a word
beside it. A panel without data says in words what that means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = dict[str, Any]

SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
RED, WINE, BROWN, ROSE, GREY, PALE = "#D55E00", "#882255", "#A65628", "#CC79A7", "#999999", "#BBBBBB"
PLAIN = "text"
VERDICTS: Mapping[str, tuple[str, str]] = {
    "idle": ("idle", SKY),
    "busy": ("busy", BLUE),
    "starting": ("starting", GREEN),
    "paused": ("paused on purpose", GREY),
    "proxy": ("proxy, not measured", PALE),
    "unmeasured": ("unmeasured", "#DDCC77"),
    "blocked": ("blocked by a peer", "#B8860B"),
    "stalled": ("stalled, suspected", YELLOW),
    "failing": ("failing, answers errors", ROSE),
    "unreachable": ("unreachable", BROWN),
    "down": ("down", WINE),
    "stuck": ("STUCK, proven", RED),
}
"""Each verdict in words and its colour, from well to ill; its number in a graph is its place, from 1."""
WELL = "busy|idle"
BACKEND = 'backend=~"$backend"'


def verdict_number() -> str:
    """The verdict of each backend as its number. One of them is 1, so the greatest product is its number."""
    terms = [
        f'stallwatch_backend_verdict{{{BACKEND},verdict="{name}"}} * {number}'
        for number, name in enumerate(VERDICTS, 1)
    ]
    return f"max by (backend) ({' or '.join(terms)})"


def verdict_words() -> list[Json]:
    """The numbers as words and colours."""
    options = {
        str(number): {"text": words, "color": colour, "index": number}
        for number, (words, colour) in enumerate(VERDICTS.values(), 1)
    }
    return [{"type": "value", "options": options}]


def words(*pairs: tuple[str, str, str]) -> list[Json]:
    """Value mappings: (value, words, colour) each."""
    return [{"type": "value", "options": {v: {"text": t, "color": c, "index": n}}} for n, (v, t, c) in enumerate(pairs)]


def steps(*pairs: tuple[float | None, str]) -> Json:
    """Absolute thresholds: (from, colour) each, the first from None."""
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in pairs]}


def query(expr: str, legend: str = "", *, instant: bool = False, table: bool = False) -> Json:
    """One query; its letter is given by `panel`."""
    return {
        "datasource": SOURCE,
        "expr": expr,
        "legendFormat": legend or "__auto",
        "instant": instant,
        "range": not instant,
        "format": "table" if table else "time_series",
        "editorMode": "code",
    }


def panel(
    kind: str,
    title: str,
    description: str,
    queries: Sequence[Json],
    *,
    no_value: str,
    size: tuple[int, int],
    unit: str = "short",
    options: Json | None = None,
    custom: Json | None = None,
    overrides: Iterable[Json] = (),
    links: Iterable[Json] = (),
    transformations: Iterable[Json] = (),
    **defaults: Any,
) -> Json:
    """One panel without its place. `size` is (width of 24, height); `defaults` go to the field configuration."""
    field: Json = {
        "unit": unit,
        "noValue": no_value,
        "color": {"mode": "thresholds"},
        "thresholds": steps((None, PLAIN)),
    }
    field |= defaults
    if custom:
        field["custom"] = custom
    made: Json = {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "targets": [{**one, "refId": chr(ord("A") + number)} for number, one in enumerate(queries)],
        "fieldConfig": {"defaults": field, "overrides": list(overrides)},
        "options": options or {},
        "gridPos": {"w": size[0], "h": size[1]},
    }
    if found := list(links):
        made["links"] = found
    if found := list(transformations):
        made["transformations"] = found
    return made


def stat(title: str, description: str, expr: str, **more: Any) -> Json:
    """One number, coloured by its thresholds where it has any."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "background" if "thresholds" in more or "mappings" in more else "none",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "value",
    }
    return panel("stat", title, description, [query(expr, instant=True)], options=options, **{"size": (3, 4), **more})


def lines(title: str, description: str, queries: Sequence[Json], *, bars: bool = False, **more: Any) -> Json:
    """Curves over time, or stacked bars for things that are counted. Their colours tell series apart, not judge."""
    custom: Json = {
        "drawStyle": "bars" if bars else "line",
        "fillOpacity": 80 if bars else 0,
        "lineWidth": 1 if bars else 2,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if bars else "none", "group": "A"},
        "axisSoftMin": 0,
    }
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    more = {"size": (12, 8), "color": {"mode": "palette-classic-by-name"}, "min": 0, **more}
    return panel("timeseries", title, description, queries, options=options, custom=custom, **more)


def timeline(title: str, description: str, **more: Any) -> Json:
    """The verdict of each backend over time, in words."""
    options = {
        "mergeValues": True,
        "showValue": "auto",
        "alignValue": "left",
        "rowHeight": 0.85,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    more = {"size": (24, 9), **more}
    return panel(
        "state-timeline",
        title,
        description,
        [query(verdict_number(), "{{backend}}")],
        options=options,
        custom={"fillOpacity": 85, "lineWidth": 0},
        mappings=verdict_words(),
        no_value="no exporter watches such a backend, or it is not scraped",
        **more,
    )


def table(title: str, description: str, queries: Sequence[Json], columns: Mapping[str, str], **more: Any) -> Json:
    """Instant queries joined by their labels. `columns` maps a field to its heading, in their order; others hide."""
    hidden = {"Time": True, "__name__": True, "job": True, "instance": True}
    organize = {
        "id": "organize",
        "options": {
            "excludeByName": hidden,
            "indexByName": {name: place for place, name in enumerate(columns)},
            "renameByName": dict(columns),
        },
    }
    more = {"size": (24, 8), **more}
    return panel(
        "table",
        title,
        description,
        queries,
        options={"showHeader": True, "cellHeight": "sm", "footer": {"show": False}},
        custom={"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True},
        transformations=[{"id": "merge", "options": {}}, organize],
        **more,
    )


def column(name: str, **properties: Any) -> Json:
    """What is special about one column of a table, by its heading."""
    listed = [{"id": key.replace("__", "."), "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": listed}


def link(title: str, url: str) -> Json:
    """A link of a panel or of a cell, into a new tab."""
    return {"title": title, "url": url, "targetBlank": True}


def event(name: str, colour: str, expr: str, title: str) -> Json:
    """Marks on all graphs where a query is above nothing."""
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "expr": expr,
        "step": "30s",
        "titleFormat": title,
    }
