"""Writes the dashboards: `python -m grafana.build`; `--check` only says whether the files are what would be written.

Exit codes: 0 as they should be; 1 a file differs, or a query names a series that no program and no rule makes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from exporter.model import Verdict
from grafana import backend, overview
from grafana.exported import ROOT, exported
from grafana.panels import VERDICTS, Json

FOLDER = Path(__file__).resolve().parent / "dashboards"
FOREIGN = {"up", "ALERTS"}
"""Series that Prometheus itself makes."""
WORDS = re.compile(r'"[^"]*"|\{\{.*?\}\}|\[[^]]*\]|\b(?:by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)')
NAME = re.compile(r"[a-zA-Z_:][\w:]*(?![\w:]|\s*\()")
KEYWORDS = {"and", "or", "unless", "offset", "bool", "Inf"}


def dashboards() -> dict[str, Json]:
    """Every dashboard by the name of its file."""
    return {f"{made['uid']}.json": made for made in (overview.build(), backend.build())}


def expressions(dashboard: Json) -> Iterator[str]:
    """Every query: of panels, annotations and variables."""
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    yield from (annotation["expr"] for annotation in dashboard["annotations"]["list"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"].removeprefix("label_values(").rsplit(",", 1)[0]


def series(expr: str) -> set[str]:
    """The names of series in a query: what is left without strings, ranges, label lists, matchers and functions."""
    bare = re.sub(r"\{[^}]*\}", "{}", WORDS.sub(" ", expr))
    return set(NAME.findall(bare)) - KEYWORDS


def unknown() -> dict[str, set[str]]:
    """For each file, the series that neither program exports and no rule records."""
    rules = yaml.safe_load((ROOT / "rules" / "recording.yml").read_text())
    recorded = {rule["record"] for group in rules["groups"] for rule in group["rules"]}
    known = exported() | recorded | FOREIGN
    return {
        name: found
        for name, made in dashboards().items()
        if (found := set().union(*map(series, expressions(made))) - known)
    }


def main(arguments: list[str] | None = None) -> int:
    """Write or check; one line for each thing that is wrong."""
    parser = argparse.ArgumentParser(prog="python -m grafana.build", description="Writes the Grafana dashboards.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not up to date")
    check = parser.parse_args(arguments).check
    wrong = [f"{name}: no program exports {', '.join(sorted(found))}" for name, found in unknown().items()]
    if set(VERDICTS) != {verdict.value for verdict in Verdict}:
        wrong.append("panels.py: VERDICTS are not the exporter's verdicts")
    for name, made in dashboards().items():
        text = json.dumps(made, indent=2) + "\n"
        path = FOLDER / name
        if check:
            if not path.exists() or path.read_text() != text:
                wrong.append(f"{name} is not what grafana/ makes: run python -m grafana.build")
        else:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text)
    for line in wrong:
        print(line, file=sys.stderr)  # noqa: T201 -- a command line
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
