"""The example configurations of Prometheus and Alertmanager: accepted, and every alert goes where it should."""

from __future__ import annotations

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


def test_only_the_suspicion_is_inhibited() -> None:
    """Nothing may ever keep a proof, or news about stallwatch itself, from anybody."""
    (rule,) = load(ALERTMANAGER)["inhibit_rules"]
    assert rule == {
        "source_matchers": ['alertname="ModelServerStuck"'],
        "target_matchers": ['alertname="ModelServerStalled"'],
        "equal": ["backend"],
    }
