"""`check URL`: one verdict on one server, for a person or a timer.

It is no liveness probe: a kubelet that restarts on its exit code would be a second decider.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from exporter.config import AskSettings, Backend, backend
from exporter.evidence import sentence
from exporter.fleet import watch_of
from exporter.model import Limits, Verdict
from exporter.runtimes import Runtime
from exporter.state import NOT_YET_OBSERVED, State
from exporter.watch import Watch
from stallwatch.settings import check_url, read_secret

HEALTHY, UNPROVEN, BAD, UNKNOWN = 0, 1, 2, 3
SPARE_POLLS = 6
"""Polls beyond the proof's own time: pages that confirm a miss, and the first that only serve to compare."""

_BAD = (Verdict.STUCK, Verdict.DOWN, Verdict.UNREACHABLE, Verdict.FAILING)
_UNKNOWN = (Verdict.UNMEASURED, Verdict.PROXY)


def run(
    url: str,
    runtime: Runtime,
    limits: Mapping[str, float],
    *,
    wait_seconds: float | None = None,
    fail_on: str | None = None,
    api_key_file: str | None = None,
    make_watch: Callable[[Backend], Watch] = watch_of,
) -> int:
    """Print one line, return the exit code: 0 healthy, 1 unproven, 2 stuck or down, 3 unknown.

    `wait_seconds` bounds the whole; the default is what the proof needs. `fail_on="stuck"` fails on that alone.
    """
    key = read_secret(api_key_file) if api_key_file else None
    target = backend("check", check_url(url), runtime, limits, ask=AskSettings(), api_key=key)
    if "idle_ask_seconds" not in limits:  # a person does not wait five minutes for the first question
        target = backend(
            "check",
            target.url,
            runtime,
            {**limits, "idle_ask_seconds": target.limits.poll_interval_seconds},
            ask=AskSettings(),
            api_key=key,
        )
    watch = make_watch(target)
    began = time.monotonic()
    pause = threading.Event()
    code = UNPROVEN
    while True:
        watch.poll()
        state, bounds = watch.snapshot.state, watch.backend.limits  # `auto` knows the kind from the first page
        code = judge(state)
        left = began + (wait_seconds or needed(bounds, state)) - time.monotonic()
        if code != UNPROVEN or left <= 0:
            break
        pause.wait(min(left, bounds.poll_interval_seconds))
    watch.close()
    word = "unproven: " if code == UNPROVEN else ""
    print(f"{word}{state.verdict.value} ({state.judgement.reason}): {sentence(state, bounds)}")
    if fail_on is not None:
        return BAD if state.verdict.value == fail_on else HEALTHY
    return code


def needed(limits: Limits, state: State) -> float:
    """Seconds that the slowest proof takes from here: of `stuck`, or of `unreachable` while no page can be had."""
    proof = limits.stuck_after_seconds + limits.ask_timeout_seconds
    if state.last_failure is not None:
        proof = max(proof, limits.unreachable_after_seconds)
    return proof + SPARE_POLLS * limits.poll_interval_seconds


def judge(state: State) -> int:
    """The exit code that the state supports by now; UNPROVEN means: go on watching while there is time."""
    verdict = state.verdict
    if verdict in _BAD:
        return BAD
    if verdict is Verdict.PAUSED:
        return HEALTHY
    if verdict in _UNKNOWN:
        return UNPROVEN if state.judgement.reason == NOT_YET_OBSERVED else UNKNOWN
    if verdict in (Verdict.BUSY, Verdict.IDLE) and state.last_failure is None:
        moved = all(rank.progress_at is not None for rank in state.ranks.values())
        return HEALTHY if moved and state.ranks else UNPROVEN
    return UNPROVEN
