"""The stall clock of a rank: what moves it, what stops it, and every limit from both sides."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from exporter.model import AskResult, Limits, Page, Reading, Sample
from exporter.progress import KvTrack, Movement, RankState
from tests.exporter.history import EPOCH, LIMITS, Run, answers, every, page, sample, with_limits


def kv_progress(*values: float | None) -> str:
    """One letter for each page after the first: P where its KV use is progress. Negative: a counter moved as well."""
    first, *rest = values
    track, letters = KvTrack(first, first), ""
    for value in rest:
        track, progress = track.follow(None if value is None else abs(value), value is not None and value < 0)
        letters += "P" if progress else "-"
    return letters


@pytest.mark.parametrize(
    ("what", "values", "expected"),
    [
        ("each rise above the maximum", (0.1, 0.2, 0.201), "PP"),
        ("it stands at its maximum", (0.3, 0.3, 0.3), "--"),
        ("a rise that stays below the maximum", (0.30, 0.31, 0.30, 0.305, 0.309, 0.31), "P----"),
        ("three rises after a wobble of less than .02", (0.31, 0.295, 0.298, 0.301, 0.304), "----"),
        ("after such a wobble the first rise above the maximum", (0.31, 0.295, 0.298, 0.311), "--P"),
        ("wobbles after a fall, each less than .02", (0.5, 0.3, 0.31, 0.295, 0.31, 0.295, 0.31, 0.295, 0.31), "-" * 8),
        ("a fall by .02 exactly, and the third rise", (0.5, 0.48, 0.485, 0.49, 0.495), "---P"),
        ("a fall by a little less", (0.5, 0.4801, 0.485, 0.49, 0.495), "----"),
        ("a fall to half", (0.03, 0.015, 0.016, 0.017, 0.018), "---P"),
        ("a fall to less than half", (0.03, 0.014, 0.015, 0.016, 0.017), "---P"),
        ("a fall to a little more than half", (0.03, 0.0151, 0.016, 0.017, 0.018), "----"),
        ("nothing is no half of nothing", (0.0, 0.0, 0.001), "-P"),
        ("the third rise and each one after it", (0.5, 0.3, 0.31, 0.32, 0.33, 0.34), "---PP"),
        ("a stand between the rises", (0.5, 0.3, 0.31, 0.31, 0.32, 0.33), "----P"),
        ("rises that are not successive", (0.5, 0.3, 0.305, 0.3, 0.31, 0.305, 0.315, 0.31, 0.32), "-" * 8),
        ("a fall after a fall begins the count anew", (0.5, 0.3, 0.31, 0.32, 0.2, 0.21, 0.22, 0.23), "------P"),
        ("the maximum is that since a counter moved", (0.9, -0.89, 0.895), "-P"),
        ("a counter that moves makes good a fall", (0.5, 0.3, -0.1, 0.11), "--P"),
        ("a gauge that comes back is no rise", (0.5, None, 0.6, 0.61), "--P"),
    ],
)
def test_kv_use(what: str, values: Sequence[float | None], expected: str) -> None:
    """KV use is progress above its maximum since the last counter movement; after a fall only at the third rise."""
    assert kv_progress(*values) == expected, what


@pytest.mark.parametrize(
    ("movement", "explained"),
    [
        (Movement(steps=2, tokens=5000, ended=1), True),
        (Movement(steps=3), False),
        (Movement(steps=1, ended=2), False),
        (Movement(ended=2), False),
        (Movement(tokens=200, ended=1), True),
        (Movement(tokens=201), False),
    ],
)
def test_what_one_short_request_explains(movement: Movement, explained: bool) -> None:
    """Two steps and one ended request at most; tokens count only where there are no steps."""
    assert movement.explained_by_ask is explained


def at(t: float, ranks: Sample, start: float | None = EPOCH - 5000, seconds: float = 0.0) -> Page:
    """A page read in no time, so that its clock can be told exactly."""
    return page(t, ranks, start, seconds=seconds)


def rank_after(*pages: Page, limits: Limits = LIMITS) -> RankState:
    """Rank 0 after these pages."""
    run = Run(limits)
    run.feed(pages)
    return run.state.ranks["tiny", "0"]


BUSY = sample(steps=9, tokens=9, ended=9, run=4, wait=2, kv=0.1)


@pytest.mark.parametrize(
    ("what", "before", "after", "seconds"),
    [
        ("work in flight on both pages", {}, {}, 5),
        ("only running", {"waiting": 0}, {"waiting": 0}, 5),
        ("only waiting", {"running": 0}, {"running": 0}, 5),
        ("nothing in flight on the first", {"running": 0, "waiting": 0}, {}, 0),
        ("nothing in flight on the second", {}, {"running": 0, "waiting": 0}, 0),
        ("one is running that was waiting", {}, {"running": 5, "waiting": 1}, 5),
        ("one left the queue", {}, {"waiting": 1}, 5),
        ("one came", {}, {"waiting": 3}, 5),
        ("KV use fell", {}, {"kv_use": 0.01}, 5),
        ("KV use rose", {}, {"kv_use": 0.11}, 0),
        ("a step", {}, {"steps": {"steps": 10.0}}, 0),
        ("a token", {}, {"tokens": {"tokens": 10.0}}, 0),
        ("an ended request", {}, {"ended": {"ended": 10.0}}, 0),
        ("a new series of steps", {}, {"steps": {"steps": 9.0, "more": 3.0}}, 0),
        ("no series of tokens any more", {}, {"tokens": {}}, 0),
    ],
)
def test_what_the_clock_adds(what: str, before: dict[str, object], after: dict[str, object], seconds: float) -> None:
    """The time between two pages, with work in flight on both and nothing moving between them."""
    first = dataclasses.replace(BUSY, **before)  # type: ignore[arg-type]
    second = dataclasses.replace(BUSY, **after)  # type: ignore[arg-type]
    rank = rank_after(at(0, first), at(5, second))
    assert rank.stalled_seconds == seconds, what
    assert not (rank.stalled_seconds and rank.moved), "who stands still is no reason to hold a question back"


@pytest.mark.parametrize("change", [{"steps": {"steps": 10.0}}, {"kv_use": 0.2}], ids=["steps", "KV use"])
def test_progress_sets_clock_and_pages_to_nothing(change: dict[str, object]) -> None:
    """After fifty seconds something moves: no second and no page of before counts any more."""
    pages = [at(t, BUSY) for t in every(5, 0, 50)]
    moved = rank_after(*pages, at(55, dataclasses.replace(BUSY, **change)))  # type: ignore[arg-type]
    assert (moved.stalled_seconds, moved.still_pages) == (0, 1)


@pytest.mark.parametrize("change", [{"steps": {"steps": 99.0}}, {"kv_use": 0.2}], ids=["steps", "KV use"])
def test_progress_takes_back_every_miss(change: dict[str, object]) -> None:
    """Unanswered once, and then it moves: busy at once, and the next stand needs a miss of its own."""
    run = Run()
    run.feed(at(t, BUSY) for t in every(5, 0, 100))
    assert run.shown().misses == 1
    moved = dataclasses.replace(BUSY, **change)  # type: ignore[arg-type]
    assert run.take(at(105, moved)).verdict == "busy"
    assert run.shown().misses == 0


def test_nothing_in_flight_pauses_the_clock() -> None:
    """Fifty seconds of a stand stay while nobody asks anything, and go on when somebody does."""
    run = Run()
    run.feed(at(t, BUSY) for t in every(5, 0, 50))
    run.feed(at(t, dataclasses.replace(BUSY, running=0.0, waiting=0.0)) for t in every(5, 55, 100))
    assert run.shown().stalled_seconds == 50
    run.feed(at(t, BUSY) for t in every(5, 105, 120))
    assert run.shown().stalled_seconds == 65


def test_one_counter_that_dips_hides_no_rise_of_another() -> None:
    """Without a start time a dip is a dip, and beside it three steps are progress."""
    first, second = (Sample({"a": a, "b": b}, running=4.0) for a, b in ((100.0, 100.0), (90.0, 103.0)))
    assert rank_after(at(0, first, None), at(5, second, None)).moved


def test_the_time_of_a_reading_in_which_something_moved_does_not_count() -> None:
    """A page that took 4 s to read: what moved may have moved at its end, so the clock begins there."""
    slow = rank_after(at(0, BUSY, seconds=4), at(5, BUSY))
    assert slow.stalled_seconds == 1
    assert rank_after(at(0, BUSY, seconds=4), at(5, BUSY, seconds=4), at(10, BUSY)).stalled_seconds == 6


@pytest.mark.parametrize(
    ("what", "limits", "gap", "seconds"),
    [
        ("as long as the suspicion limit", {}, 60, 60),
        ("longer", {}, 60.5, 0),
        ("two slow polls and a time-out", {"poll_interval_seconds": 100, "poll_timeout_seconds": 5}, 205, 205),
        ("more than these", {"poll_interval_seconds": 100, "poll_timeout_seconds": 5}, 205.5, 0),
    ],
)
def test_what_a_gap_is(what: str, limits: dict[str, float], gap: float, seconds: float) -> None:
    """Equal pages prove the time between them, unless they are too far apart."""
    assert rank_after(at(0, BUSY), at(gap, BUSY), limits=with_limits(**limits)).stalled_seconds == seconds, what


@pytest.mark.parametrize(
    ("what", "after", "seconds"),
    [
        ("the same page", {}, 10),
        ("another number running", {"running": 5, "waiting": 2}, 0),
        ("another number waiting", {"waiting": 3}, 0),
        ("the same number in flight, otherwise divided", {"running": 3, "waiting": 3}, 0),
        ("lower KV use", {"kv_use": 0.09}, 0),
        ("no KV use", {"kv_use": None}, 0),
        ("a counter that dipped", {"tokens": {"tokens": 8.0}}, 0),
    ],
)
def test_both_sides_of_a_gap_are_equal_or_the_clock_begins_anew(
    what: str, after: dict[str, object], seconds: float
) -> None:
    """A gap adds nothing; with another page after it, whatever stood before may have moved and stood again."""
    second = dataclasses.replace(BUSY, **after)  # type: ignore[arg-type]
    rank = rank_after(at(0, BUSY, None), at(10, BUSY, None), at(100, second, None))
    assert rank.stalled_seconds == seconds, what


def test_how_long_only_kv_use_moves() -> None:
    """The time of a prefill is counted from its first rise, and a step ends it."""
    run = Run()
    run.feed(at(t, sample(steps=7, run=1, kv=t / 2000)) for t in every(5, 0, 1000))
    assert run.state.ranks["tiny", "0"].kv_only_since == 5
    run.take(at(1005, sample(steps=8, run=1, kv=0.6)))
    assert run.state.ranks["tiny", "0"].kv_only_since is None


def stood(run: Run) -> float:
    """Let rank 0 stand until it is asked; return when."""
    run.feed(at(t, sample(steps=5, run=4, kv=0.1)) for t in every(5, 0, 60))
    assert [t for t, _ in run.asked] == [60]
    return 60.0


def test_rising_kv_use_while_a_question_is_open_is_progress_and_no_miss() -> None:
    """A prefill goes on behind an unanswered question: no short request raises KV use page after page."""
    run = Run()
    sent = stood(run)
    run.take(at(sent + 5, sample(steps=5, run=4, kv=0.2)))
    assert run.shown().stalled_seconds == 0
    run.feed(at(t, sample(steps=5, run=4, kv=0.2)) for t in every(5, sent + 10, sent + 40))
    assert run.shown().misses == 0
    assert run.shown().stalled_seconds == 35, "the end of the question is no progress"


def test_a_small_movement_after_a_large_one_is_progress() -> None:
    """Once more has moved than the open question explains, a single step is not put down to it either."""
    run = Run()
    sent = stood(run)
    run.take(at(sent + 5, sample(steps=5, run=4, kv=0.2)))
    run.take(at(sent + 10, sample(steps=5, run=4, kv=0.2)))
    run.take(at(sent + 15, sample(steps=6, run=4, kv=0.2)))
    assert run.shown().stalled_seconds == 0


@pytest.mark.parametrize(("steps", "ended", "verdict"), [(2, 1, "stalled"), (3, 0, "busy"), (1, 2, "busy")])
def test_movement_that_the_question_explains_is_held_until_its_answer(steps: float, ended: float, verdict: str) -> None:
    """Two steps and an ended request may be the question's own; more is work of the four requests in flight."""
    run = Run(answering=answers)
    sent = stood(run)
    run.take(at(sent + 5, sample(steps=5 + steps, ended=ended, run=4, kv=0.1)))
    assert run.state.verdict == verdict


def test_a_step_during_a_question_that_stays_silent_is_no_miss() -> None:
    """One step moved while the question hung: the engine lives, and the queue is long."""
    run = Run()
    sent = stood(run)
    run.feed(at(t, sample(steps=6, run=4, kv=0.1)) for t in every(5, sent + 5, sent + 35))
    assert run.shown().misses == 0
    assert run.state.verdict == "busy"


def test_the_clock_is_not_the_wall_clock() -> None:
    """The wall clock jumps by a day in either direction, time and again: the same verdicts and questions, to a poll."""
    runs = []
    for day in (0.0, 86400.0):
        run = Run(answering=lambda q: AskResult.ANSWERED if q.sent_at < 1000 else AskResult.UNANSWERED)
        for number, t in enumerate(every(5, 0, 2400)):
            asked = sum(1 for when, _ in run.asked if when < 1000)
            shown = at(t, sample(steps=t if t < 300 else 300 + asked, run=4 if 300 <= t < 600 or t > 1500 else 0))
            jump = day * (number % 3 - 1)  # a day back, none, a day on
            assert shown.wall is not None
            run.take(dataclasses.replace(shown, wall=shown.wall + (jump if number else 0.0)))
        runs.append((run.verdicts, run.asked))
    assert runs[0] == runs[1]
    assert {"idle", "busy", "stalled", "stuck"} <= {verdict for _, verdict in runs[0][0]}


def test_a_rank_that_vanishes_and_returns_begins_anew() -> None:
    """A page without the rank proves nothing of it: its clock and its misses begin anew; no work counts twice."""
    run = Run()
    both = {"0": sample(steps=5, run=1), "1": sample(steps=7, run=1)}
    run.feed(page(t, both, seconds=0.0) for t in every(5, 0, 150))
    assert run.state.ranks["tiny", "1"].misses > 0
    run.take(page(155, {"0": both["0"]}, seconds=0.0))
    assert set(run.state.ranks) == {("tiny", "0")}
    run.take(page(160, both, seconds=0.0))
    rank = run.state.ranks["tiny", "1"]
    assert (rank.stalled_seconds, rank.misses, rank.still_pages) == (0, 0, 1)
    assert (run.state.restarts, run.state.work_total) == (0, 0)


def test_other_labels_are_other_ranks() -> None:
    """The model is served under another name: neither a restart nor a proxy, though its new counters are lower."""
    run = Run()
    start = EPOCH - 5000
    for t in every(5, 0, 100):
        key = ("old", "0") if t < 50 else ("new", "")
        counters = sample(steps=500 + t if t < 50 else 5 + t, run=1)
        run.take(Page(t, t, EPOCH + t, Reading({key: counters}, start)))
    assert run.seen() == {"busy"}
    assert run.state.restarts == 0
    assert set(run.state.ranks) == {("new", "")}
    assert run.state.work_total == 45 + 50
