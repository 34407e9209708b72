"""The rules pass promtool, and nothing about them can be forgotten: cases, runbooks, links, labels, metric names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exporter.model import LIMIT_KEYS, Limits
from grafana.exported import exported
from tests.rules import files
from tests.tools import run_tool

RUNBOOK_BASE = "https://stallwatch.example/runbooks"
RUNBOOK_HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation", "Silencing"]
SEVERITIES = {"critical", "warning", "info", "none"}
ALWAYS_FIRES = {"StallwatchDeadMansSwitch"}
ALERTS = files.alerts()
OWN_METRIC = re.compile(r"\b(stallwatch_[a-z_]+|stalled_seconds|engine_progress_rate|restart_detected)\b")
LABEL_LISTS = re.compile(r"\b(?:by|without|on|ignoring)\s*\([^)]*\)|\{[^}]*\}")


def test_promtool_accepts_the_rules() -> None:
    """`promtool check rules` has nothing to say, not even a lint."""
    done = run_tool("promtool", "check", "rules", "--lint=all", "--lint-fatal", *files.RULE_FILES)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", files.TEST_FILES, ids=lambda path: path.stem)
def test_promtool_cases_pass(path: Path) -> None:
    """`promtool test rules` passes for each file of cases."""
    done = run_tool("promtool", "test", "rules", path)
    assert done.returncode == 0, done.stdout


def test_there_are_alerts_and_cases() -> None:
    """The parametrised tests of this file are not empty, and every rule file is tested by some file of cases."""
    assert len(ALERTS) >= 32
    tested = {(path.parent / name).resolve() for path in files.TEST_FILES for name in _rule_files(path)}
    assert tested == set(files.RULE_FILES)


def _rule_files(path: Path) -> list[str]:
    block = re.search(r"^rule_files:\n((?:  - .*\n)+)", path.read_text(), re.MULTILINE)
    assert block, f"{path.name} names no rule_files"
    return [line.removeprefix("  - ") for line in block.group(1).splitlines()]


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_has_a_case_in_which_it_fires(name: str) -> None:
    """Some case expects the alert."""
    assert [place for place, case in files.cases() if case["alertname"] == name and case.get("exp_alerts")]


@pytest.mark.parametrize("name", sorted(set(ALERTS) - ALWAYS_FIRES))
def test_every_alert_has_a_case_in_which_it_does_not_fire(name: str) -> None:
    """Some case expects its absence."""
    assert [place for place, case in files.cases() if case["alertname"] == name and not case.get("exp_alerts")]


def test_every_alert_named_in_a_case_exists() -> None:
    """promtool passes an expected absence of an alert that does not exist, so a misspelt name would prove nothing."""
    assert [place for place, case in files.cases() if case["alertname"] not in ALERTS] == []


def test_every_case_has_a_name_and_says_what_it_expects() -> None:
    """A case without a name cannot be found, and one without `exp_alerts` may be an oversight."""
    assert [place for place, test in files.tests() if not test.get("name")] == []
    assert [place for place, case in files.cases() if "exp_alerts" not in case] == []
    names = [test["name"] for _, test in files.tests()]
    assert len(names) == len(set(names))


def test_no_case_is_silent_because_its_input_is_misspelt() -> None:
    """Every series fed to the rules is one that stallwatch exports or that Prometheus makes."""
    fed = {entry["series"].partition("{")[0] for _, test in files.tests() for entry in test["input_series"]}
    assert fed - exported() - {"up"} == set()


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_has_a_runbook_that_its_link_names(name: str) -> None:
    """The link is derived from the alert's name, and the page has every heading in order."""
    assert ALERTS[name]["annotations"]["runbook_url"] == f"{RUNBOOK_BASE}/{name}.md"
    page = (files.RULES / "runbooks" / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == RUNBOOK_HEADINGS


def test_every_runbook_belongs_to_an_alert() -> None:
    """No page is left behind by a renamed alert."""
    assert {path.stem for path in (files.RULES / "runbooks").glob("*.md")} == set(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_summary_is_fixed_and_description_tells_the_value(name: str) -> None:
    """A summary without values groups well; a description names the backend or the instance."""
    annotations = ALERTS[name]["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert "{{" not in annotations["summary"]
    assert "$labels." in annotations["description"] or name in ALWAYS_FIRES
    assert not annotations["description"].startswith(" ")


@pytest.mark.parametrize("name", ALERTS)
def test_labels_are_only_those_that_routes_may_rely_on(name: str) -> None:
    """A known severity, and `remediation: restart` on the one alert that proves."""
    labels = ALERTS[name]["labels"]
    assert labels["severity"] in SEVERITIES
    expected = {"severity", "remediation"} if name == "ModelServerStuck" else {"severity"}
    assert set(labels) == expected


def test_the_alerts_about_model_servers_are_reduced_to_the_backend() -> None:
    """An exporter that moves to another address must not make its alerts anew."""
    for name, rule in ALERTS.items():
        if name.startswith("ModelServer"):
            assert rule["expr"].startswith("max by (backend) ("), name


def test_no_alert_waits_long() -> None:
    """The exporter gathers the evidence; `for` would lose it with one missing sample. One reasoned exception."""
    waits = {name: rule["for"] for name, rule in ALERTS.items() if rule.get("for", "1m") != "1m"}
    assert waits == {"ModelServerUnmeasured": "10m"}


def test_stale_is_exactly_what_stuck_does_not_call_fresh() -> None:
    """If the two bounds differed, a page could be too old for ModelServerStuck and nobody would be told."""
    bound = "clamp_min(last_over_time(stallwatch_backend_stuck_after_seconds[2m]), 120)"
    age = r"abs\(time\(\) - last_over_time\(stallwatch_backend_last_observation_timestamp_seconds\[2m\]\)\)\s*"
    assert re.search(age + "< " + re.escape(bound), ALERTS["ModelServerStuck"]["expr"])
    assert re.search(age + ">= " + re.escape(bound), ALERTS["StallwatchObservationStale"]["expr"])


def test_every_metric_in_the_rules_is_exported() -> None:
    """A rule over a renamed metric would be silent for ever."""
    named: set[str] = set()
    for path in files.RULE_FILES:
        for rule in files.rules(path):
            named |= set(OWN_METRIC.findall(LABEL_LISTS.sub("", rule["expr"])))
            named |= set(OWN_METRIC.findall(" ".join(rule.get("annotations", {}).values())))
    assert "stallwatch_backend_last_observation_timestamp_seconds" in named
    recorded = {
        rule["record"].split(":")[1] for path in files.RULE_FILES for rule in files.rules(path) if "record" in rule
    }
    assert named - exported() - recorded == set()


def test_the_queries_of_the_runbooks_name_what_is_exported() -> None:
    """A runbook is read at night: a query that finds nothing must mean that there is nothing."""
    recorded = files.recorded()
    for page in (files.RULES / "runbooks").glob("*.md"):
        text = page.read_text()
        levels = set(re.findall(r"\b(?:backend|group):[a-z0-9_]+:[a-z0-9_]+", text))
        assert levels <= recorded, page.name
        plain = set(OWN_METRIC.findall(re.sub(r"\b(?:backend|group):[a-z0-9_]+:[a-z0-9_]+", "", text)))
        assert plain - exported() == set(), page.name


def test_names_of_recording_rules_say_level_metric_and_operations() -> None:
    """`level:metric:operations`, and the level is what the labels are reduced to."""
    assert [name for name in files.recorded() if not re.fullmatch(r"(backend|group):[a-z_]+:[a-z0-9]+", name)] == []


def test_failed_scrapes_are_bridged_by_the_same_two_minutes_everywhere() -> None:
    """Vectors of one alert that remember for different times would be put together from different scrapes."""
    for name, rule in ALERTS.items():
        windows = set(re.findall(r"last_over_time\([^][]*\[(\w+)\]", rule["expr"], re.DOTALL))
        allowed = {"2m", "5m"} if name == "StallwatchBackendMissing" else {"2m", "1h"}
        assert windows <= allowed, name
        if "1h" in windows:  # a memory, and only of an exporter that is away
            assert "and on (job, instance) up == 0 unless on (backend) stallwatch_backend_info" in rule["expr"], name


def test_nothing_needs_a_newer_prometheus_or_another_dialect() -> None:
    """Debian's vmalert refuses a whole file for one field that it does not know."""
    for path in files.ALERT_FILES:
        for rule in files.rules(path):
            assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}


def test_thresholds_are_not_written_twice() -> None:
    """A limit of the exporter is taken from its series; another number stands in one alert, or has its reason here."""
    shared = {"120": {"ModelServerStuck", "StallwatchObservationStale"}}  # held equal by the test below
    values = [getattr(Limits(), key) for key in LIMIT_KEYS]
    limits = {f"{value:g}" for value in values if value is not None} - {"5"}  # 5 times a limit is no limit
    where: dict[str, set[str]] = {}
    for name, rule in ALERTS.items():
        for number in set(re.findall(r"(?<![\w.])(\d+(?:\.\d+)?)(?![\w.])", rule["expr"])) - {"0", "1"}:
            assert number not in limits, (name, number)
            where.setdefault(number, set()).add(name)
    where.pop("3")  # restarts in an hour and requests in a queue: they are not the same three
    assert {number: names for number, names in where.items() if len(names) > 1} == shared
