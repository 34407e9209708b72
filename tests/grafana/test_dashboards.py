"""The dashboards as files: what is generated, complete in words, on the grid, and of Grafana's own schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from exporter.model import Verdict
from grafana import build
from grafana.panels import VERDICTS
from tests import realparts
from tests.tools import ROOT

FOLDER = ROOT / "grafana"
DASHBOARDS = {path.name: json.loads(path.read_text()) for path in sorted((FOLDER / "dashboards").glob("*.json"))}
SCHEMA = json.loads((Path(__file__).parent / "dashboard.schema.json").read_text())
PLUGINS = {"row", "stat", "timeseries", "state-timeline", "table"}
NOT_IN_THE_SCHEMA = {"step", "titleFormat"}
"""What Grafana's Prometheus data source reads in an annotation, and the schema of dashboards leaves open."""
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, made in DASHBOARDS.items()
    for panel in made["panels"]
    if panel["type"] != "row"
]


def test_the_files_are_what_is_generated(capsys: pytest.CaptureFixture[str]) -> None:
    """`--check` has nothing to say, and there is no other file."""
    assert build.main(["--check"]) == 0, capsys.readouterr().err
    assert set(DASHBOARDS) == set(build.dashboards())


def test_check_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file that drifted, and a series that nobody exports, are one line each and exit code 1."""
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    monkeypatch.setattr(build, "exported", lambda: frozenset({"stallwatch_backend_info"}))
    assert build.main(["--check"]) == 1
    said = capsys.readouterr().err
    assert "stallwatch-overview.json is not what grafana/ makes: run python -m grafana.build" in said
    assert re.search(r"stallwatch-backend.json: no program exports .*stalled_seconds", said)


@pytest.mark.parametrize(
    ("expr", "names"),
    [
        ('sum by (le) (rate(a_total{x="b"}[5m])) > 0', {"a_total"}),
        ("a:b:c and on (backend) d unless e{f=~'g'} == 1", {"a:b:c", "d", "e"}),
        ('round(max by (x) (increase(h{i="j",k!~"l|m"}[$__range]))) * 1000', {"h"}),
    ],
)
def test_series_of_a_query_are_found(expr: str, names: set[str]) -> None:
    """Functions, labels, label values and keywords are no series; otherwise the check would find nothing or all."""
    assert build.series(expr) == names


@pytest.mark.parametrize("name", DASHBOARDS)
def test_it_fits_the_schema(name: str) -> None:
    """The part of Grafana's dashboard model (schema 39) that is used here, closed: a misspelt key is refused."""
    jsonschema.validate(DASHBOARDS[name], SCHEMA)


def test_the_schema_refuses_what_is_misspelt() -> None:
    """A schema that allowed everything would prove nothing."""
    made = json.loads(json.dumps(DASHBOARDS["stallwatch-overview.json"]))
    made["panels"][1]["fieldConfig"]["defaults"]["noValues"] = "x"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(made, SCHEMA)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_nothing_is_lost_in_grafanas_own_types(name: str) -> None:
    """Grafana's foundation SDK reads the JSON into its types and writes it again: what it does not know would go."""
    try:
        from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: PLC0415
        from grafana_foundation_sdk.models.dashboard import Dashboard  # noqa: PLC0415
    except ImportError:
        realparts.need("grafana-foundation-sdk", "not installed (grafana-foundation-sdk==1769699379!11.6.0)")
    realparts.need("grafana-foundation-sdk", None)
    made = DASHBOARDS[name]
    written = json.loads(JSONEncoder().encode(Dashboard.from_json(made)))
    assert {line for line in _lost(made, written) if line.rsplit(".")[-1] not in NOT_IN_THE_SCHEMA} == set()


def _lost(before: Any, after: Any, where: str = "") -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key, value in before.items():
            if key in after:
                yield from _lost(value, after[key], f"{where}.{key}")
            else:
                yield f"{where}.{key}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            yield from _lost(one, other, f"{where}[]")
    elif before != after:
        yield where


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_grid_has_no_overlaps_and_no_holes_in_width(name: str) -> None:
    """Panels stay within 24 columns and never cover each other; every line of panels fills the width."""
    places = [panel["gridPos"] for panel in DASHBOARDS[name]["panels"]]
    for place in places:
        assert place["x"] >= 0
        assert place["w"] > 0
        assert place["h"] > 0
        assert place["x"] + place["w"] <= 24
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    for y in {place["y"] for place in places}:
        assert sum(place["w"] for place in places if place["y"] == y) == 24, y


@pytest.mark.parametrize("name", DASHBOARDS)
def test_names_are_stable_and_ids_unique(name: str) -> None:
    """The uid is the file's name, so that links survive; a panel's id is its own."""
    made = DASHBOARDS[name]
    assert f"{made['uid']}.json" == name
    assert "id" not in made
    ids = [panel["id"] for panel in made["panels"]]
    assert len(ids) == len(set(ids))
    titles = [panel["title"] for panel in made["panels"]]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_everything_comes_from_the_chosen_data_source(name: str) -> None:
    """No data source of somebody's own Grafana is written down, and the variables are there."""
    made = DASHBOARDS[name]
    variables = {variable["name"]: variable for variable in made["templating"]["list"]}
    assert {"datasource", "group", "backend"} <= set(variables)
    assert variables["datasource"]["type"] == "datasource"
    uids = set(re.findall(r'"uid": "([^"]*)"', json.dumps({**made, "uid": ""})))
    assert uids == {"", "${datasource}"}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(made))) - {"__rate_interval", "__range", "__data", "__all"}
    assert used <= set(variables)


@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_explains_itself(panel: Mapping[str, Any]) -> None:
    """A description, a unit, words where there is no data, and a kind that every Grafana has."""
    defaults = panel["fieldConfig"]["defaults"]
    assert len(panel["description"]) > 20
    assert defaults["unit"]
    assert re.search(r"[a-z]{2}", defaults["noValue"])
    assert panel["type"] in PLUGINS


@pytest.mark.parametrize("panel", PANELS)
def test_rates_follow_the_scrape_interval(panel: Mapping[str, Any]) -> None:
    """A rate over a fixed window is empty or blurred for whoever scrapes at another interval."""
    for target in panel["targets"]:
        windows = re.findall(r"(?:rate|increase)\([^()]*\[([^]]+)\]", target["expr"])
        assert set(windows) <= {"$__rate_interval", "$__range"}


def test_every_verdict_has_words_and_a_colour_of_its_own() -> None:
    """No verdict is a bare number, and no two look the same."""
    assert set(VERDICTS) == {verdict.value for verdict in Verdict}
    assert len({colour for _, colour in VERDICTS.values()}) == len(VERDICTS)
    assert len({text for text, _ in VERDICTS.values()}) == len(VERDICTS)


def _seen(colour: str, matrix: list[list[float]]) -> list[float]:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return [sum(a * b for a, b in zip(row, linear, strict=True)) for row in matrix]


# Machado, Oliveira and Fernandes (2009), severity 1.
BLINDNESS = {
    "none": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


@pytest.mark.parametrize("kind", BLINDNESS)
def test_ill_and_well_can_be_told_apart_by_the_colour_blind(kind: str) -> None:
    """The colours of stuck, down and stalled are far from those of busy and idle, also without red or green."""
    for ill in ("stuck", "down", "stalled", "unreachable"):
        for well in ("busy", "idle"):
            one, other = (_seen(VERDICTS[name][1], BLINDNESS[kind]) for name in (ill, well))
            assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 0.15, (ill, well)


def test_provisioning_names_what_is_there() -> None:
    """The files are YAML that Grafana reads, with the data source's address and the folder of dashboards."""
    (source,) = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://127.0.0.1:9090")
    (provider,) = yaml.safe_load((FOLDER / "provisioning/dashboards/stallwatch.yml").read_text())["providers"]
    assert provider["type"] == "file"
    assert provider["options"]["path"].startswith("/")
