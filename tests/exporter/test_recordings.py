"""The recordings of real servers, replayed with limits to match: what must be found, and what must never be."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from exporter.model import Limits
from exporter.page import PageParser
from exporter.recording import Step, read_lines, replay
from exporter.runtimes import builtin

FOLDER = Path(__file__).parent.parent / "recordings"
VLLM = sorted(path.name.removesuffix(".jsonl.gz") for path in FOLDER.glob("[0-9]*.jsonl.gz"))
LLAMA = sorted(path.name.removesuffix(".jsonl.gz") for path in FOLDER.glob("llama-*.jsonl.gz"))
ALL = [*VLLM, *LLAMA]
EDGE_SECONDS = 3.0
"""Edges of the phases are good to 1 to 3 s: a poll takes that long, and its answer can be newer than its time."""
LIMITS = Limits(
    poll_interval_seconds=1,
    poll_timeout_seconds=3,
    suspect_after_seconds=5,
    stuck_after_seconds=10,
    ask_timeout_seconds=3,
    idle_ask_seconds=5,
    startup_grace_seconds=20,
    unreachable_after_seconds=8,
    down_after_seconds=5,
    names_ranks=True,
)


def limits_of(name: str) -> Limits:
    """The limits for one recording. Whoever has measured his longest healthy step sets the limit above it."""
    runtime = builtin()["llamacpp" if name in LLAMA else "vllm"]
    longest = {"04-single-huge-step": 16.0, "llama-03-long-prompt": 30.0}  # steps of 12 s, batches of 22 s
    return dataclasses.replace(
        LIMITS,
        stuck_after_seconds=longest.get(name, LIMITS.stuck_after_seconds),
        names_ranks=runtime.ask.rank_header is not None,
        ask_when=runtime.ask.when,
    )


@cache
def steps(name: str) -> list[Step]:
    """The replay of one recording."""
    runtime = builtin()["llamacpp" if name in LLAMA else "vllm"]
    return list(replay(read_lines(FOLDER / f"{name}.jsonl.gz"), PageParser(runtime), limits_of(name)))


def phases(name: str) -> list[Mapping[str, Any]]:
    """What was true when."""
    listed: list[Mapping[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())["phases"]
    return listed


def truths_near(name: str, t: float) -> set[str]:
    """Every truth within the edge of an instant."""
    return {p["truth"] for p in phases(name) if p["from_t"] - EDGE_SECONDS <= t <= p["to_t"] + EDGE_SECONDS}


def test_there_are_recordings() -> None:
    """The folder holds the real vLLM's recordings, so that the tests below are not empty."""
    assert len(VLLM) >= 19
    assert len(LLAMA) >= 11


@pytest.mark.parametrize("name", ALL)
def test_never_stuck_where_the_truth_is_not_stuck(name: str) -> None:
    """The number this project is judged by: healthy servers called stuck = 0."""
    wrong = [
        step.row
        for step in steps(name)
        if step.state.verdict == "stuck" and "stuck" not in truths_near(name, step.row["t"])
    ]
    assert wrong == []


FOUND = {
    "05-freeze-while-busy": "stalled_and_unanswered",
    "05c-freeze-worker-until-timeout": "stalled_and_unanswered",
    "06-freeze-while-idle": "idle_and_unanswered",
    "10-dp2-one-frozen": "stalled_and_unanswered",
}
UNREADABLE = {
    "15-disable-log-stats": "unmeasured",  # no vllm: series at all
    "17-api-frozen": "busy",  # frozen for less than three times the limit for time-outs: the last verdict stands
    "21-proxy-two-backends": "proxy",  # two servers behind one address
    "llama-04-sigstop": "busy",  # the whole process stopped, for less than the limit of a working server
    "llama-05-loop-hung": "busy",  # /health answers, /metrics does not: the same
}


@pytest.mark.parametrize("name", ALL)
def test_every_readable_stuck_phase_is_found(name: str) -> None:
    """A stuck phase longer than the limits is found in time; one that cannot be read says why."""
    stuck_phases = [(p["from_t"], p["to_t"]) for p in phases(name) if p["truth"] == "stuck"]
    if not stuck_phases:
        assert name not in FOUND
        return
    began, ended = stuck_phases[0][0], stuck_phases[-1][1]
    during = [step for step in steps(name) if began + EDGE_SECONDS < step.row["t"] < ended]
    if name in UNREADABLE:
        inside = [step for step in during if step.row["t"] < ended - 1.0]
        assert {step.state.verdict.value for step in inside} == {UNREADABLE[name]}
        return
    found = next(step for step in during if step.state.verdict == "stuck")
    assert found.state.judgement.reason == FOUND[name]
    idle = found.state.judgement.reason == "idle_and_unanswered"
    proof = LIMITS.idle_ask_seconds + LIMITS.stuck_after_seconds + LIMITS.ask_timeout_seconds if idle else 10.0
    assert found.row["t"] - began <= proof + 2 * LIMITS.poll_interval_seconds + EDGE_SECONDS


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_asked_while_the_page_shows_progress(name: str) -> None:
    """A question never goes to a rank whose latest page moved."""
    for step in steps(name):
        if step.asked is not None:
            assert not step.state.ranks[step.asked.rank].moved, step.row


@pytest.mark.parametrize("name", ALL)
def test_counters_of_two_processes_are_never_compared(name: str) -> None:
    """At a restart the rate is zero and the clocks begin anew; a rate is never negative."""
    before = 0
    for step in steps(name):
        if step.state.restarts != before:
            before = step.state.restarts
            assert step.row["engine_progress_rate"] == 0
            assert step.row["stalled_seconds"] == 0
        rate = step.row["engine_progress_rate"]
        assert rate is None or rate >= 0


RESTARTS = {"08-killed-engine": 1, "11-multi-api-idle-restart": 1}


@pytest.mark.parametrize("name", ALL)
def test_restarts_are_counted(name: str) -> None:
    """The two recordings with one restart show one, with and without a start time; all others none."""
    assert steps(name)[-1].state.restarts == RESTARTS.get(name, 0)


@pytest.mark.parametrize(
    ("name", "truth", "verdict"),
    [
        ("01-idle", "idle", {"idle"}),
        ("02-busy-decode", "busy", {"busy"}),
        ("03-long-prefill", "busy", {"busy"}),
        ("12-sleep-mode", "sleeping", {"paused"}),
        ("13-pause-keep", "paused", {"busy", "paused"}),  # busy until the page has stood still for a poll
        ("14-abort-all", "idle", {"idle"}),
        ("15-disable-log-stats", "idle", {"unmeasured"}),
        ("18-api-key", "idle", {"idle"}),
        ("llama-01-idle", "idle", {"idle"}),
        ("llama-02-busy", "busy", {"busy"}),
        ("llama-07-no-metrics", "busy", {"unmeasured"}),
        ("llama-10-rejected-400", "idle", {"idle"}),
    ],
)
def test_the_verdict_of_a_phase(name: str, truth: str, verdict: set[str]) -> None:
    """Inside a phase, away from its edges, the verdict is the truth."""
    inside = {
        step.state.verdict.value
        for step in steps(name)
        for p in phases(name)
        if p["truth"] == truth and p["from_t"] + 1.5 < step.row["t"] < p["to_t"] - 1.0
    }
    assert inside <= verdict
    assert inside
