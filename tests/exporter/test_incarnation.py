"""Same process, new process, or a proxy: what one page after another tells."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from exporter.incarnation import Change, Incarnation, judge
from exporter.model import Page, Reading, Sample
from tests.exporter.history import EPOCH, Run, answers, every, failure, page, sample

SAME, NEW, PROXY = Change.SAME, Change.NEW, Change.PROXY
WORKED = {"steps": 1000.0}


def judged(
    start: tuple[float | None, float | None] = (None, None),
    before: Sample | None = None,
    after: Sample | None = None,
    *,
    refused: bool = False,
    generation: int = 0,
    seen_before: float = 1000.0,
) -> Change:
    """How the second page relates to the first; `seen_before` seconds ago the process was seen first."""
    key, then, now = ("tiny", "0"), before or Sample(WORKED), after or before or Sample(WORKED)
    known = Incarnation(generation, start[0], seen_at=0.0, began_at=0.0, proven=True)
    change, _ = judge(known, {key: then}, Reading({key: now}, start[1]), refused=refused, at=seen_before)
    return change


@pytest.mark.parametrize(
    ("later", "change"),
    [(0, SAME), (5, SAME), (5.5, NEW), (600, NEW), (-5, SAME), (-5.5, PROXY), (-600, PROXY)],
)
def test_start_times(later: float, change: Change) -> None:
    """More than 5 s later is a new process; more than 5 s earlier is a proxy, for no process starts in its past."""
    assert judged((1000.0, 1000.0 + later)) is change


@pytest.mark.parametrize(("refused", "later"), [(True, 600), (False, 600)])
def test_a_new_start_time_needs_no_refusal(refused: bool, later: float) -> None:
    """A supervisor can restart a server between two polls."""
    assert judged((1000.0, 1000.0 + later), refused=refused) is NEW


def counters(kind: str, values: Mapping[str, float]) -> Sample:
    """A sample with counters of one kind."""
    return Sample(**{kind: values})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["steps", "tokens"])
@pytest.mark.parametrize(
    ("what", "after", "refused", "change"),
    [
        ("it rose", 1001, False, SAME),
        ("a dip", 999, False, SAME),
        ("a fall to half", 500, False, SAME),
        ("a fall to a little less than half", 499, False, NEW),
        ("a fall to nothing", 0, False, NEW),
        ("a dip after a refusal", 999, True, NEW),
        ("a stand after a refusal", 1000, True, SAME),
        ("a rise after a refusal", 1001, True, SAME),
    ],
)
def test_counters_without_a_start_time(kind: str, what: str, after: float, refused: bool, change: Change) -> None:
    """Below half is a new process; after a refusal any fall is."""
    before, then = counters(kind, {"a": 1000.0, "b": 5.0}), counters(kind, {"a": after, "b": 7.0})
    assert judged(before=before, after=then, refused=refused) is change, what


def test_counters_of_ended_requests_do_not_tell() -> None:
    """Steps and tokens alone: a reason that is no longer reported is no restart."""
    before, after = Sample(WORKED, ended={"stop": 100.0}), Sample(WORKED, ended={"stop": 3.0})
    assert judged(before=before, after=after) is SAME
    assert judged((1000.0, 1000.0), before, after) is SAME


@pytest.mark.parametrize("kind", ["steps", "tokens", "ended"])
def test_counters_at_nought(kind: str) -> None:
    """After a refusal a server that has done nothing at all is a new one; without one it has stood there all along."""
    nought = counters(kind, {"a": 0.0})
    assert judged(before=nought, after=nought, refused=True) is NEW
    assert judged(before=nought, after=nought, refused=False) is SAME


def test_one_published_start_time_is_none() -> None:
    """It vanishes, or comes: then counters are the witness, as if there had been none."""
    for start in ((1000.0, None), (None, 1000.0)):
        assert judged(start) is SAME
        assert judged(start, after=Sample({"steps": 3.0})) is NEW


@pytest.mark.parametrize("after", [999, 0])
def test_counters_that_fall_under_one_start_time_are_a_proxy(after: float) -> None:
    """No process takes a counter back, by however little, refused in between or not."""
    for refused in (False, True):
        assert judged((1000.0, 1000.0), after=Sample({"steps": float(after)}), refused=refused) is PROXY


@pytest.mark.parametrize(
    ("what", "seen_before", "generation", "refused", "change"),
    [
        ("within the minute", 59.9, 1, False, PROXY),
        ("a minute later", 60.0, 1, False, NEW),
        ("within it, but refused in between", 10.0, 1, True, NEW),
        ("the first one since it was first seen", 10.0, 0, False, NEW),
    ],
)
def test_two_new_processes_in_a_minute(
    what: str, seen_before: float, generation: int, refused: bool, change: Change
) -> None:
    """A server cannot be started, serve a page and be replaced so fast; two behind one address look like it."""
    start = (1000.0, 1100.0)
    assert judged(start, refused=refused, generation=generation, seen_before=seen_before) is change, what


def test_a_start_time_that_is_missing_for_a_page_is_remembered() -> None:
    """One page lacks it; the next one shows that the process is another."""
    run = Run()
    run.take(page(0, sample(steps=500)))
    run.take(page(5, sample(steps=500), start=None))
    run.take(page(10, sample(steps=500), start=EPOCH + 7))
    assert run.state.restarts == 1


def test_a_new_process_is_compared_with_nothing() -> None:
    """It has done more than the old one by the time it is seen: no rate, no stall, and the next thing is an answer."""
    run = Run(answering=answers)
    run.feed(page(t, sample(steps=t, run=1)) for t in every(5, 0, 50))
    run.feed(failure(t) for t in every(5, 55, 90))
    run.take(page(95, sample(steps=900), start=EPOCH + 60))
    assert (run.shown().progress_rate, run.shown().stalled_seconds, run.shown().restart_detected) == (0, 0, 1)
    assert (run.state.verdict, run.state.restarts) == ("starting", 1)
    assert run.asked == [], "its first page has none before it"
    run.take(page(100, sample(steps=900), start=EPOCH + 60))
    assert [t for t, _ in run.asked] == [pytest.approx(100, abs=0.1)]


def test_first_sight_is_no_restart() -> None:
    """Nothing was seen before: no restart is counted, and none is shown."""
    run = Run()
    run.take(page(0, sample(steps=500, run=1)))
    assert (run.state.restarts, run.shown().restart_detected) == (0, 0)


def test_a_proxy_that_was_found_out_stays_one() -> None:
    """Whatever its pages say later, and however long they stand."""
    run = Run()
    run.take(page(0, sample(steps=500, run=1), start=EPOCH - 100))
    run.take(page(5, sample(steps=20), start=EPOCH - 900))
    run.feed(Page(t, t, EPOCH + t, Reading({("tiny", "0"): Sample(WORKED, running=3.0)})) for t in every(5, 10, 400))
    assert {verdict for t, verdict in run.verdicts if t >= 5} == {"proxy"}
    assert run.asked == []
