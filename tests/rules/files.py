"""The rule files and their promtool tests, read as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def tests() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every promtool test with the place where it stands."""
    for path in TEST_FILES:
        for number, test in enumerate(yaml.safe_load(path.read_text())["tests"]):
            yield f"{path.name}: {test.get('name') or number}", test


def cases() -> Iterator[Case]:
    """Every expectation about an alert."""
    for place, test in tests():
        for case in test.get("alert_rule_test", []):
            yield place, case
