"""The example configurations of Prometheus and Alertmanager: accepted, and every alert goes where it should."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.rules.files import RULE_FILES, alerts
from tests.tools import ROOT, run_tool

PROMETHEUS = ROOT / "config" / "prometheus.yml"
ALERTMANAGER = ROOT / "config" / "alertmanager.yml"
ALERTS = alerts()


def load(path: Any) -> Any:
    """A configuration as data."""
    return yaml.safe_load(path.read_text())


def test_promtool_accepts_the_configuration() -> None:
    """`promtool check config` follows the rule files as well."""
    done = run_tool("promtool", "check", "config", "--lint=all", PROMETHEUS)
    assert done.returncode == 0, done.stdout
    assert f"{len(RULE_FILES)} rule files found" in done.stdout


def test_amtool_accepts_the_configuration() -> None:
    """`amtool check-config` finds no error."""
    done = run_tool("amtool", "check-config", ALERTMANAGER)
    assert done.returncode == 0, done.stdout


def test_every_rule_file_is_loaded() -> None:
    """The patterns of rule_files meet exactly the project's rules, tests not among them."""
    found = {path.resolve() for pattern in load(PROMETHEUS)["rule_files"] for path in PROMETHEUS.parent.glob(pattern)}
    assert found == set(RULE_FILES)


def test_both_programs_are_scraped_under_the_names_that_the_rules_look_for() -> None:
    """The jobs, and the ports on loopback."""
    jobs = {
        job["job_name"]: target
        for job in load(PROMETHEUS)["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    }
    assert jobs == {"stallwatch-exporter": "127.0.0.1:9840", "stallwatch-remediator": "127.0.0.1:9841"}


def receivers(labels: dict[str, str]) -> str:
    """Where Alertmanager itself would send an alert with these labels."""
    pairs = [f"{key}={value}" for key, value in labels.items()]
    done = run_tool("amtool", "config", "routes", "test", f"--config.file={ALERTMANAGER}", *pairs)
    assert done.returncode == 0, done.stdout
    return done.stdout.strip().splitlines()[-1]  # a warning about amtool's own flags may come first


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_reaches_its_receivers(name: str) -> None:
    """Only a proof reaches the machine, and people hear of it too."""
    labels = ALERTS[name]["labels"]
    expected = {"info": "context", "none": "dead-mans-switch"}.get(labels["severity"], "humans")
    if "remediation" in labels:
        expected = "stallwatch-remediator,humans"
    assert receivers({"alertname": name, "backend": "gb10-a", **labels}) == expected


def test_the_route_to_the_remediator() -> None:
    """At once, by backend, repeated every 5 minutes, whole, without resolved alerts, with a token from a file."""
    config = load(ALERTMANAGER)
    route = next(route for route in config["route"]["routes"] if route["receiver"] == "stallwatch-remediator")
    assert route["matchers"] == ['remediation="restart"']
    assert route["group_by"] == ["backend"]
    assert (route["group_wait"], route["repeat_interval"], route["continue"]) == ("0s", "5m", True)
    (hook,) = next(r for r in config["receivers"] if r["name"] == "stallwatch-remediator")["webhook_configs"]
    assert (hook["max_alerts"], hook["send_resolved"]) == (0, False)
    assert set(hook["http_config"]["authorization"]) == {"type", "credentials_file"}


def inhibited_by() -> dict[str, set[str]]:
    """Each alert that others may hide, with those others, as the patterns of the configuration meet the alerts."""
    found: dict[str, set[str]] = {}
    for rule in load(ALERTMANAGER)["inhibit_rules"]:
        sources, targets = _named(rule["source_matchers"]), _named(rule["target_matchers"])
        assert sources, rule
        assert targets, rule
        about_backends = all(name.startswith(("ModelServer", "Remediation")) for name in sources | targets)
        assert rule.get("equal", []) == (["backend"] if about_backends else []), rule
        for name in targets:
            found.setdefault(name, set()).update(sources - {name})
    return found


def _named(matchers: list[str]) -> set[str]:
    (matcher,) = matchers
    pattern = re.fullmatch(r'alertname=~?"(.+)"', matcher)
    assert pattern, matcher
    names = {name for name in ALERTS if re.fullmatch(pattern.group(1), name)}
    for alternative in re.sub(r"(\w+)\((.*)\)", _spread, pattern.group(1)).split("|"):
        assert alternative in ALERTS, f"{alternative} is no alert"
    return names


def _spread(match: re.Match[str]) -> str:
    return "|".join(match.group(1) + ending for ending in match.group(2).split("|"))


def test_a_proof_is_never_inhibited() -> None:
    """Nothing may keep a proof, a failed restart, a storm or a loop from anybody, nor the absence of the watch."""
    always = {"ModelServerStuck", "ModelServerRestartLoop"}
    always |= {name for name in ALERTS if name.startswith("Remediation")}
    always |= {name for name in ALERTS if name.startswith("Stallwatch")}
    always -= {"StallwatchBackendMissing", "StallwatchObservationStale"}  # they follow from the exporter's absence
    assert always & set(inhibited_by()) == set()


def test_stuck_hides_the_suspicion_and_a_restart_hides_its_noise() -> None:
    """Stuck inhibits stalled; restarting and starting inhibit what they cause."""
    by = inhibited_by()
    assert "ModelServerStuck" in by["ModelServerStalled"]
    for name in ("ModelServerStalled", "ModelServerDown", "ModelServerUnreachable", "ModelServerFailing"):
        assert {"RemediationInProgress", "ModelServerStarting"} <= by[name]


def test_what_hides_others_is_never_hidden_by_them_in_turn() -> None:
    """Two alerts that hide each other would both be lost."""
    by = inhibited_by()
    for name in by:
        reached, todo = set(), set(by[name])
        while todo:
            source = todo.pop()
            reached.add(source)
            todo |= by.get(source, set()) - reached
        assert name not in reached
