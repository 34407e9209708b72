"""The rule files and their promtool tests, read as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.tools import ROOT

RULES = ROOT / "rules"
ALERT_FILES = sorted((RULES / "alerts").glob("*.yml"))
RULE_FILES = [*ALERT_FILES, RULES / "recording.yml"]
TEST_FILES = sorted((RULES / "tests").glob("*.yml"))

Case = tuple[str, Mapping[str, Any]]
"""(where it stands: file and name of the test; one entry of alert_rule_test)"""


def rules(path: Path) -> list[Mapping[str, Any]]:
    """Every rule of one file."""
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, Mapping[str, Any]]:
    """Every alert by its name."""
    return {rule["alert"]: rule for path in ALERT_FILES for rule in rules(path) if "alert" in rule}


def recorded() -> set[str]:
    """The name of every recording rule."""
    return {rule["record"] for path in RULE_FILES for rule in rules(path) if "record" in rule}


@cache
def tests() -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Every promtool test with the place where it stands. Read once: the files are large."""
    return tuple(
        (f"{path.name}: {test.get('name') or number}", test)
        for path in TEST_FILES
        for number, test in enumerate(yaml.safe_load(path.read_text())["tests"])
    )


def cases() -> Iterator[Case]:
    """Every expectation about an alert."""
    for place, test in tests():
        for case in test.get("alert_rule_test", []):
            yield place, case
