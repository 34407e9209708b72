"""ModelServerStuck and the exporter's verdict agree on every poll of every recording of a real server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.config import backend
from exporter.metrics import SnapshotCollector
from exporter.recording import Step
from exporter.runtimes import builtin
from exporter.watch import Snapshot
from tests.exporter.test_recordings import ALL, LIMITS, limits_of, steps
from tests.rules.files import alerts
from tests.rules.test_rules import OWN_METRIC
from tests.tools import run_tool

NAME = "gb10-a"
EXPRESSION = alerts()["ModelServerStuck"]["expr"]
AGE = "stallwatch_backend_last_observation_timestamp_seconds"


def scraped(step: Step, second: int, stuck_after_seconds: float) -> Iterator[tuple[str, float]]:
    """The exporter's real series after one poll, as a scrape at `second` would find them."""
    state = step.state
    page, failure = state.last_page, state.last_failure
    now = max([it.at for it in (page, failure) if it is not None], default=0.0)
    limits = {"poll_interval_seconds": LIMITS.poll_interval_seconds, "stuck_after_seconds": stuck_after_seconds}
    watched = backend(NAME, "http://127.0.0.1:8000", builtin()["vllm"], limits)
    good = page is not None and failure is None
    snapshot = Snapshot(watched, state, now, up=good, polled_at=now)
    for family in SnapshotCollector(lambda: [snapshot], lambda: now, lambda: True).collect():
        for sample in family.samples:
            if sample.labels.get("backend") != NAME or sample.name == AGE:
                continue
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            yield f"{sample.name}{{{labels}}}", sample.value
    if page is not None:
        yield f'{AGE}{{backend="{NAME}"}}', second - (now - page.at)  # promtool's clock counts the polls


def as_promtool_test(name: str) -> Mapping[str, Any]:
    """A recording as a test: one poll a second, and what the condition must give after each."""
    stuck_after = limits_of(name).stuck_after_seconds
    wanted = set(OWN_METRIC.findall(EXPRESSION))
    table: dict[str, list[str]] = {}
    expectations = []
    replayed = steps(name)
    for second, step in enumerate(replayed):
        row = {key: value for key, value in scraped(step, second, stuck_after) if key.partition("{")[0] in wanted}
        for key, value in row.items():
            table.setdefault(key, ["stale"] * len(replayed))[second] = repr(float(value))
        stuck = step.state.verdict == "stuck"
        value = row.get(f'stalled_seconds{{backend="{NAME}"}}', -1.0)
        samples = [{"labels": f'{{backend="{NAME}"}}', "value": value}] if stuck else []
        expectations.append({"expr": EXPRESSION, "eval_time": f"{second}s", "exp_samples": samples})
    series = [{"series": key, "values": " ".join(values)} for key, values in table.items()]
    return {"interval": "1s", "name": name, "input_series": series, "promql_expr_test": expectations}


@pytest.mark.parametrize("name", ALL)
def test_the_alert_is_the_verdict(name: str, tmp_path: Path) -> None:
    """After each poll the condition of ModelServerStuck holds exactly if the verdict is stuck."""
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "1s", "tests": [as_promtool_test(name)]}, width=10**6))
    done = run_tool("promtool", "test", "rules", file)
    assert done.returncode == 0, done.stdout[:2000]


def test_the_recordings_hold_stuck_and_other_verdicts() -> None:
    """The agreement is about something: some recordings are stuck at times, most never."""
    stuck = {name for name in ALL if any(step.state.verdict == "stuck" for step in steps(name))}
    assert {"05-freeze-while-busy", "06-freeze-while-idle", "10-dp2-one-frozen"} <= stuck < set(ALL)
