"""Every query of the dashboards on a real Prometheus: it gives data, or its emptiness has a reason that stands here."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from grafana.build import dashboards
from tests.grafana.scene import FROZEN, KILLED, Scene, playing

VALUES = {"$__rate_interval": "20s", "$__range": "1m", "$__interval": "1s", "[1m]": "[20s]"}


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with playing() as played:
        yield played


def filled(expr: str, backend: str) -> str:
    """The query as Grafana sends it, with its variables filled in."""
    for name, value in VALUES.items():
        expr = expr.replace(name, value)
    expr = expr.replace("$backend", backend).replace("$group", ".*")
    assert "$" not in expr, expr
    return expr


QUERIES = [
    pytest.param(name, target["expr"], target["instant"], id=f"{name}: {panel['title']} {target['refId']}")
    for name, made in dashboards().items()
    for panel in made["panels"]
    for target in panel.get("targets", [])
]
MAY_BE_EMPTY = {
    "max by (backend) (stallwatch_remediation_last_action_timestamp_seconds": "no attempt is in the journal",
    "sum by (reason) (increase(stallwatch_backend_poll_failures_total": "a frozen engine's pages are all read",
}
"""Beginnings of queries that give nothing here, and why; the panel says it in words."""


@pytest.mark.parametrize(("name", "expr", "instant"), QUERIES)
def test_every_query_of_a_panel_gives_data(scene: Scene, name: str, expr: str, instant: bool) -> None:
    """A query that is refused, or finds nothing though everything happened, would be an empty panel for ever."""
    backend = f"{FROZEN}|{KILLED}" if "overview" in name else FROZEN
    asked = filled(expr, backend)
    found = scene.query(asked) if instant else scene.range(asked)
    if reason := next((why for start, why in MAY_BE_EMPTY.items() if expr.startswith(start)), None):
        assert found == [], f"it has data, so it may no longer be empty: {reason}"
        return
    assert found, asked


@pytest.mark.parametrize("name", dashboards())
def test_every_annotation_marks_something(scene: Scene, name: str) -> None:
    """Restarts by us, by others, and new processes are marks on the graphs."""
    for annotation in dashboards()[name]["annotations"]["list"]:
        asked = filled(annotation["expr"], f"{FROZEN}|{KILLED}")
        assert scene.range(asked), annotation["name"]


@pytest.mark.parametrize("name", dashboards())
def test_every_variable_has_values(scene: Scene, name: str) -> None:
    """Groups and backends can be chosen."""
    for variable in dashboards()[name]["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert match
            found = scene.query(filled(match.group(1), ""))
            values = {series["metric"][match.group(2)] for series in found}
            assert values == ({"gb10"} if variable["name"] == "group" else {FROZEN, KILLED})


def test_the_verdicts_are_shown_as_they_are(scene: Scene) -> None:
    """The number behind the words is that of the one verdict that is 1: the frozen server reads as stuck."""
    (panel,) = [p for p in dashboards()["stallwatch-backend.json"]["panels"] if p["title"] == "Verdict"]
    words = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    shown = {}
    for backend in (FROZEN, KILLED):
        (series,) = scene.query(filled(panel["targets"][0]["expr"], backend))
        shown[backend] = words[series["value"][1]]["text"]
    assert shown == {FROZEN: "STUCK, proven", KILLED: "idle"}


def test_who_is_not_well_is_only_who_is_not_well(scene: Scene) -> None:
    """The table has the stuck server with all its columns, and not the one that came back."""
    (panel,) = [p for p in dashboards()["stallwatch-overview.json"]["panels"] if p["title"].startswith("Who is not")]
    for target in panel["targets"]:
        found = scene.query(filled(target["expr"], f"{FROZEN}|{KILLED}"))
        assert {series["metric"]["backend"] for series in found} == {FROZEN}
