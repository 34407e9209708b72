"""Readings that failed: how long keeps the last verdict, and what is said from its limit on."""

from __future__ import annotations

import pytest

from exporter.evidence import sentence
from exporter.model import Failure, FailureReason, Limits, Verdict
from exporter.trouble import Trouble
from tests.exporter.history import EPOCH, LIMITS, Run, every, failure, page, sample, with_limits

TIMEOUT, REFUSED, RESET = FailureReason.TIMEOUT, FailureReason.REFUSED, FailureReason.RESET
ERROR, MISSING = FailureReason.HTTP_ERROR, FailureReason.MISSING_SERIES


def concluded(
    *failures: tuple[float, FailureReason],
    status: int | None = None,
    alive: bool | None = True,
    measured: bool = True,
    worked: bool = False,
    limits: Limits = LIMITS,
) -> str | None:
    """The verdict after failures at these instants, each read in no time; None: the last one is kept."""
    trouble = Trouble()
    for t, reason in failures:
        last = Failure(t, t, EPOCH + t, reason, status=status, alive=alive)
        trouble = trouble.add(last)
    found = trouble.conclude(last, measured, worked, limits)
    return found[0].value if found else None


@pytest.mark.parametrize(
    ("what", "failures", "worked", "verdict"),
    [
        ("refused for a little less than its limit", [(0, REFUSED), (59.9, REFUSED)], False, None),
        ("refused for its limit", [(0, REFUSED), (60, REFUSED)], False, "down"),
        ("refused while work was in flight: no longer", [(0, REFUSED), (60, REFUSED)], True, "down"),
        ("refused, with a time-out between", [(0, REFUSED), (30, TIMEOUT), (60, REFUSED), (110, REFUSED)], False, None),
        ("refused for its limit since", [(0, REFUSED), (30, TIMEOUT), (60, REFUSED), (120, REFUSED)], False, "down"),
        ("time-outs for a little less than their limit", [(0, TIMEOUT), (299.9, TIMEOUT)], False, None),
        ("time-outs for their limit", [(0, TIMEOUT), (300, TIMEOUT)], False, "unreachable"),
        ("resets count as well", [(0, RESET), (300, RESET)], False, "unreachable"),
        ("errors count as well", [(0, ERROR), (300, ERROR)], False, "unreachable"),
        ("all of them together", [(0, REFUSED), (100, RESET), (300, TIMEOUT)], False, "unreachable"),
        ("with work on the last page for a little less", [(0, TIMEOUT), (899.9, TIMEOUT)], True, None),
        ("with work on the last page for three times it", [(0, TIMEOUT), (900, TIMEOUT)], True, "unreachable"),
    ],
)
def test_failures_and_their_limits(
    what: str, failures: list[tuple[float, FailureReason]], worked: bool, verdict: str | None
) -> None:
    """Shorter than its limit keeps the last verdict; at the limit the failure is the verdict."""
    assert concluded(*failures, worked=worked) == verdict, what


@pytest.mark.parametrize("status", [401, 403, 404, 405, 501])
def test_statuses_of_a_server_without_metrics(status: int) -> None:
    """It says that it has no metrics for us: unmeasured at once where it never had any."""
    assert concluded((0, ERROR), status=status, measured=False) == "unmeasured"
    assert concluded((0, ERROR), status=status, measured=True) is None
    assert concluded((0, ERROR), (59.9, ERROR), status=status) is None
    assert concluded((0, ERROR), (60, ERROR), status=status) == "unmeasured"


@pytest.mark.parametrize("status", [400, 429, 500, 502, 503, 504])
def test_other_statuses_are_failures_like_a_time_out(status: int) -> None:
    """An error says nothing of whether there are metrics: unreachable, once it lasts."""
    assert concluded((0, ERROR), (299, ERROR), status=status, measured=False) is None
    assert concluded((0, ERROR), (300, ERROR), status=status, measured=False) == "unreachable"


def test_unmeasured_is_a_server_that_answers() -> None:
    """Neither /health nor /v1/models is answered: a page without series is no proof of a living server."""
    assert concluded((0, MISSING), (299, MISSING), alive=False) is None
    assert concluded((0, MISSING), (300, MISSING), alive=False) == "unreachable"


@pytest.mark.parametrize(("alive", "reason"), [(True, "health_answers_metrics_do_not"), (False, "timeout")])
def test_the_reason_tells_health_from_metrics(alive: bool, reason: str) -> None:
    """A person must know whether the server lives."""
    run = Run()
    run.feed(failure(t, TIMEOUT, alive=alive) for t in every(5, 0, 310))
    assert (run.state.verdict, run.state.judgement.reason) == (Verdict.UNREACHABLE, reason)


@pytest.mark.parametrize(
    ("load", "verdict"), [({"run": 0}, "idle"), ({"run": 2}, "busy"), ({"run": 0, "wait": 1}, "busy")]
)
@pytest.mark.parametrize("reason", [TIMEOUT, REFUSED, RESET, ERROR, MISSING])
def test_a_short_failure_keeps_the_verdict(load: dict[str, float], verdict: str, reason: FailureReason) -> None:
    """Half a minute without a page changes nothing, whatever it was."""
    run = Run()
    run.take(page(0, sample(steps=5, **load)))
    run.feed(failure(t, reason, 500, alive=True) for t in every(5, 5, 35))
    assert run.state.verdict == verdict


def test_a_good_page_ends_the_trouble() -> None:
    """Fifty seconds of refusals, a page, fifty more: no minute of them."""
    run = Run()
    run.take(page(0, sample(steps=5)))
    run.feed(failure(t) for t in every(5, 5, 55))
    run.take(page(60, sample(steps=5)))
    run.feed(failure(t) for t in every(5, 65, 115))
    assert run.seen() == {"idle"}


def test_a_refusal_is_remembered_over_other_failures() -> None:
    """Refused, then a time-out while it warms up, then counters at zero: a new process, without any start time."""
    run = Run()
    run.take(page(0, sample(), start=None))
    run.feed([failure(5), failure(10, TIMEOUT)])
    run.take(page(15, sample(), start=None))
    assert run.state.restarts == 1


def test_refused_after_a_restart_is_starting_within_its_grace_only() -> None:
    """A new process that shows itself and is gone again is starting for as long as its grace lasts, then down."""
    run = Run(with_limits(startup_grace_seconds=200.0))
    run.take(page(0, sample(steps=5), start=EPOCH - 500))
    run.take(page(5, sample(), start=EPOCH + 1))
    run.feed(failure(t) for t in every(5, 10, 400))
    assert {v for t, v in run.verdicts if 5 <= t < 205} == {"starting"}
    assert {v for t, v in run.verdicts if t >= 206} == {"down"}


def test_other_failures_of_a_new_process_are_what_they_are() -> None:
    """Within its grace a server that takes connections and says nothing for its limit is unreachable."""
    run = Run()
    run.take(page(0, sample(steps=5), start=EPOCH - 500))
    run.take(page(5, sample(), start=EPOCH + 1))
    run.feed(failure(t, TIMEOUT) for t in every(5, 10, 400))
    assert run.first("unreachable") == pytest.approx(310, abs=5.1)


def test_a_server_that_loads_for_ever_is_not_starting_for_ever() -> None:
    """Loading is starting for as long as the grace; then it is a server that has not answered for too long."""
    run = Run(with_limits(startup_grace_seconds=600.0))
    run.feed(failure(t, FailureReason.LOADING, 503) for t in every(5, 0, 900))
    assert {v for t, v in run.verdicts if t < 600} == {"starting"}
    assert {v for t, v in run.verdicts if t > 601} == {"unreachable"}
    assert "said for longer than 600 s that it is loading" in sentence(run.state, run.limits)


def test_loading_has_the_whole_grace_whatever_failed_before() -> None:
    """Ten minutes of silence, a restart, then loading, twice over: each process has a grace of its own."""
    run = Run(with_limits(startup_grace_seconds=600.0))
    for began in (0, 900):
        run.feed(failure(t, TIMEOUT) for t in every(5, began, began + 200))
        run.feed(failure(t) for t in every(5, began + 205, began + 250))
        run.feed(failure(t, FailureReason.LOADING, 503) for t in every(5, began + 255, began + 850))
        assert {v for t, v in run.verdicts if began + 256 < t < began + 850} == {"starting"}
