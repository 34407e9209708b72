"""When a short request may be sent, to whom, how often, and what comes of it: each limit from both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from exporter.ask import _without_whole_answer
from exporter.asking import answered, choose, sent
from exporter.config import AskSettings, backend
from exporter.evidence import ranks, sentence
from exporter.model import Answer, AskResult, AskWhen, Limits, Page, Question, RankKey, Sample
from exporter.progress import RankState, first_sight, follow
from exporter.runtimes import builtin
from exporter.state import State
from exporter.verdict import advance
from stallwatch.http import HttpFailed
from tests.exporter.history import EPOCH, LIMITS, Run, answers, every, failure, page, sample, with_limits

STOOD = sample(steps=5, run=4)
IDLE = sample(steps=5)
ANSWERED, UNANSWERED, FAILED = AskResult.ANSWERED, AskResult.UNANSWERED, AskResult.FAILED
ERROR, REJECTED = AskResult.SERVER_ERROR, AskResult.REJECTED


def at(t: float, ranks: Sample | dict[str, Sample], seconds: float = 0.0, start: float = EPOCH - 5000) -> Page:
    """A page read in no time, so that times can be told exactly."""
    return page(t, ranks, start, seconds=seconds)


def in_turn(*results: AskResult) -> Callable[[Question], AskResult]:
    """These answers one after the other, the last one for ever."""
    left = list(results)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def asked_at(run: Run) -> list[float]:
    """When questions were sent."""
    return [t for t, _ in run.asked]


@pytest.mark.parametrize(
    ("what", "pages", "expected"),
    [
        ("a stand of the suspicion limit", [(0, 4), (20, 4), (40, 4), (60, 4)], [60]),
        ("a stand of a little less", [(0, 4), (20, 4), (40, 4), (59.5, 4)], []),
        ("idle for its limit", [(0, 0), (150, 0), (300, 0)], [300]),
        ("idle for a little less", [(0, 0), (150, 0), (299.5, 0)], []),
        ("work came on the latest page", [(0, 0), (295, 0), (300, 4)], []),
        ("work left on the latest page", [(0, 0), (295, 4), (300, 0)], []),
        ("work left on the page before", [(0, 0), (295, 4), (300, 0), (305, 0)], [305]),
    ],
)
def test_who_is_in_doubt(what: str, pages: Sequence[tuple[float, float]], expected: list[float]) -> None:
    """Idle on both pages and not known to live for the limit, or standing still for the limit of suspicion."""
    run = Run()
    run.feed(at(t, sample(steps=5, run=load)) for t, load in pages)
    assert asked_at(run) == expected, what


@pytest.mark.parametrize(("seconds", "asked"), [(0.0, 1), (1.0, 1), (1.25, 0)])
def test_only_a_young_page_is_asked_on(seconds: float, asked: int) -> None:
    """A page whose reading took more than a second may be over by the time the question is sent."""
    run = Run()
    run.feed(at(t, STOOD) for t in every(5, 0, 55))
    run.take(at(61, STOOD, seconds))
    assert len(run.asked) == asked


def test_idle_is_counted_from_the_last_progress() -> None:
    """A server that worked 290 s ago has shown that it lives."""
    run = Run()
    run.feed(at(t, sample(steps=min(t, 100))) for t in every(5, 0, 395))
    assert run.asked == []
    run.take(at(400, sample(steps=100)))
    assert asked_at(run) == [400]


def test_a_page_that_moved_is_not_asked_on_whoever_moved_it() -> None:
    """At polls of 100 s the page that shows the answer is followed by the next question only if it stands again."""
    run = Run(with_limits(poll_interval_seconds=100.0), answering=answers)
    for t in every(100, 0, 600):
        run.take(at(t, sample(steps=5 + len(run.asked), ended=len(run.asked), run=4)))
    assert asked_at(run) == [100, 300, 500]


@pytest.mark.parametrize(
    ("when", "stalled", "idle"), [(AskWhen.DOUBTFUL, 1, 1), (AskWhen.STALLED, 1, 0), (AskWhen.NEVER, 0, 0)]
)
def test_when_to_ask_at_all(when: AskWhen, stalled: int, idle: int) -> None:
    """Doubtful: a stand or idleness. Stalled: a stand only. Never: nobody."""
    for load, expected in ((4, stalled), (0, idle)):
        run = Run(with_limits(ask_when=when))
        run.feed(at(t, sample(steps=5, run=load)) for t in every(5, 0, 305))
        assert bool(run.asked) == bool(expected)


@pytest.mark.parametrize(
    ("runtime", "when", "names_ranks"),
    [
        ("vllm", "doubtful", True),
        ("sglang", "doubtful", False),
        ("tgi", "doubtful", False),
        ("llamacpp", "stalled", False),
        ("trtllm", "never", False),
        ("none", "never", False),
    ],
)
def test_each_kind_of_server_says_when_it_may_be_asked(runtime: str, when: str, names_ranks: bool) -> None:
    """Where an idle slot keeps the cache of a long prompt, or work in flight does not show, a question can hurt."""
    limits = backend("a", "http://127.0.0.1:1", builtin()[runtime], {}).limits
    assert (limits.ask_when, limits.names_ranks) == (when, names_ranks)
    for chosen in AskWhen:
        asked = AskSettings(when=chosen)
        assert backend("a", "http://127.0.0.1:1", builtin()[runtime], {}, ask=asked).limits.ask_when is chosen


def test_questions_that_prove_nothing_double_their_distance() -> None:
    """Answered without a movement: two time-outs apart, then twice as far each time."""
    run = Run(answering=answers)
    run.feed(at(t, STOOD) for t in every(5, 0, 1000))
    assert asked_at(run) == [60, 120, 240, 480, 960]


@pytest.mark.parametrize("result", [REJECTED, ERROR, FAILED])
def test_questions_that_get_no_answer_double_their_distance(result: AskResult) -> None:
    """A status, or a connection that fails, is no reason to ask at once again."""
    run = Run(answering=lambda _: result)
    run.feed(at(t, STOOD) for t in every(5, 0, 500))
    assert asked_at(run) == [60, 120, 240, 480]


def test_progress_makes_questions_as_frequent_as_at_first() -> None:
    """What came of nothing before says nothing of the next stand."""
    run = Run(answering=answers)
    run.feed(at(t, STOOD) for t in every(5, 0, 500))
    before = len(run.asked)
    run.feed(at(t, sample(steps=6, run=4)) for t in every(5, 505, 700))
    assert asked_at(run)[before:] == [565, 625]


def test_after_a_miss_the_next_question_follows_at_once() -> None:
    """Each of the first three on the page that proves the one before; then two time-outs apart, and ever rarer."""
    run = Run(with_limits(stuck_after_seconds=1800.0))
    run.feed(at(t, STOOD) for t in every(5, 0, 900))
    assert asked_at(run) == [60, 90, 120, 180, 240, 360, 600]


def test_only_a_miss_is_followed_up_at_once() -> None:
    """After a miss the server resets each connection: it is not asked at every poll."""
    run = Run(answering=in_turn(UNANSWERED, FAILED))
    run.feed(at(t, STOOD) for t in every(5, 0, 500))
    assert asked_at(run) == [60, 90, 150, 270]
    assert run.shown().misses == 1


def test_a_new_process_is_asked_with_a_distance_too() -> None:
    """Starting, idle, and its connections fail: the first question at its second page, the others spaced."""
    run = Run(answering=lambda _: FAILED)
    run.take(at(0, IDLE))
    run.feed(at(t, sample(), start=EPOCH + 1) for t in every(5, 5, 400))
    assert asked_at(run) == [10, 70, 190]


def test_one_question_at_a_time_also_over_a_restart() -> None:
    """The old process got a question and died: the new one is asked when that question has ended."""
    run = Run()
    run.feed(at(t, STOOD) for t in every(5, 0, 60))
    run.feed(at(t, sample(), start=EPOCH + 62) for t in every(5, 65, 85))
    assert asked_at(run) == [60]
    run.feed(at(t, sample(), start=EPOCH + 62) for t in every(5, 90, 95))
    assert asked_at(run) == [60, 90]


def test_the_answer_meant_for_the_old_process_proves_nothing_of_the_new_one() -> None:
    """It comes after the restart: the new process is still starting."""
    run = Run(answering=lambda _: UNANSWERED)
    run.feed(at(t, STOOD) for t in every(5, 0, 60))
    run.feed(at(t, sample(run=1), start=EPOCH + 62) for t in every(5, 65, 85))
    late = Answer(("tiny", "0"), 60.0, 86.0, EPOCH + 86, ANSWERED)
    run.pending = None
    run.take(late)
    assert run.take(at(90, sample(run=1), start=EPOCH + 62)).verdict == "starting"


@pytest.mark.parametrize("result", [UNANSWERED, ERROR, REJECTED, FAILED])
def test_only_an_answer_ends_the_start_up(result: AskResult) -> None:
    """Silence and errors are no sign of a started server."""
    run = Run(answering=lambda _: result)
    run.take(at(0, IDLE))
    run.feed(at(t, sample(), start=EPOCH + 1) for t in every(5, 5, 300))
    assert run.asked
    assert run.state.verdict == "starting"


def two(first: float, second: float, **more: float) -> dict[RankKey, RankState]:
    """Two ranks, standing with work in flight for so many seconds at t = 1000."""
    made = {}
    for name, seconds in (("0", first), ("1", second)):
        began = 1000 - seconds
        rank = first_sight(STOOD, began, began, None)
        made["tiny", name] = follow(rank, STOOD, 1000, 1000, None, with_limits(suspect_after_seconds=500.0))
    return made


def test_the_rank_most_in_doubt_is_asked_first_and_by_name() -> None:
    """Of two that stand the one that has stood longer; its name goes with the question."""
    for first, second in ((400, 300), (300, 400)):
        question = choose(two(first, second), LIMITS, 1000, starting=False)
        assert question is not None
        assert question.rank == ("tiny", "0" if first > second else "1")
        assert (question.named, question.deadline_seconds) == (True, 30)


def test_a_rank_that_is_alone_needs_no_name() -> None:
    """Nor a server that can name one."""
    alone = {("tiny", "0"): two(400, 400)["tiny", "0"]}
    question = choose(alone, Limits(names_ranks=False), 1000, starting=False)
    assert question is not None
    assert not question.named


def test_no_question_before_the_last_one_is_settled() -> None:
    """Rank 1 waits until a page begun after the answer has told what rank 0's answer was worth."""
    known = two(400, 300)
    question = Question(("tiny", "0"), 1000, 30, named=True)
    known["tiny", "0"] = sent(known["tiny", "0"], question)
    assert choose(known, LIMITS, 1000, starting=False) is None
    known["tiny", "0"] = answered(known["tiny", "0"], Answer(("tiny", "0"), 1000, 1000.5, None, ANSWERED))
    assert choose(known, LIMITS, 1000, starting=False) is None


def test_an_answer_to_another_question_is_noted_and_no_more() -> None:
    """It was sent at another time, so it is not the one that is open."""
    question = Question(("tiny", "0"), 1000, 30, named=False)
    rank = sent(two(400, 400)["tiny", "0"], question)
    for result in AskResult:
        after = answered(rank, Answer(("tiny", "0"), 900, 930, None, result))
        assert (after.ask, after.misses, after.server_errors) == (rank.ask, 0, 0)
        assert [record.result for record in after.asks] == [result.value]


def test_a_page_read_across_the_deadline_proves_no_miss() -> None:
    """Its reading began before the deadline and ended after it: the next page may prove the miss."""
    run = Run()
    run.feed(at(t, STOOD) for t in every(5, 0, 85))
    state, _ = advance(run.state, Answer(("tiny", "0"), 60.0, 90.0, EPOCH + 90, UNANSWERED), LIMITS, 90.0)
    state, question = advance(state, at(89.5, STOOD, seconds=1.0), LIMITS, 90.5)
    assert (state.ranks["tiny", "0"].misses, question) == (0, None)
    state, question = advance(state, at(95, STOOD), LIMITS, 95.0)
    assert state.ranks["tiny", "0"].misses == 1
    assert question is not None


@pytest.mark.parametrize(
    ("what", "then", "misses"),
    [("a failed connection says nothing", FAILED, 1), ("an error is no silence", ERROR, 0), ("nor a 4xx", REJECTED, 0)],
)
@pytest.mark.parametrize("load", [0, 4], ids=["idle", "in flight"])
def test_misses_are_in_a_row(what: str, then: AskResult, misses: int, load: int) -> None:
    """A status breaks the row and so does an answer, even one that moved no page; a failed connection does not."""
    run = Run(answering=in_turn(UNANSWERED, then))
    run.feed(at(t, sample(steps=5, run=load)) for t in every(5, 0, 400))
    assert len(run.asked) > 1
    assert run.state.ranks["tiny", "0"].misses == misses, what


@pytest.mark.parametrize("load", [0, 4], ids=["idle", "in flight"])
def test_an_answer_takes_back_every_miss(load: int) -> None:
    """Also where the page does not move: proof of nothing convicts nobody."""
    run = Run(answering=in_turn(UNANSWERED, UNANSWERED, ANSWERED))
    run.feed(at(t, sample(steps=5, run=load)) for t in every(5, 0, 400))
    assert len(run.asked) >= 3
    assert run.state.ranks["tiny", "0"].misses == 0


@pytest.mark.parametrize("between", [REJECTED, ANSWERED])
def test_server_errors_are_in_a_row(between: AskResult) -> None:
    """Two errors, something else, two errors: not failing. The third in a row is."""
    limits = with_limits(idle_ask_seconds=60.0)
    run = Run(limits, in_turn(ERROR, ERROR, between, ERROR, ERROR, UNANSWERED))
    t = 0.0
    while len(run.asked) < 6:
        run.take(at(t, IDLE))
        t += 5
    assert "failing" not in run.seen()
    run = Run(limits, in_turn(ERROR, ERROR, ERROR, REJECTED))
    t = 0.0
    while len(run.asked) < 4:
        run.take(at(t, IDLE))
        assert (run.state.verdict == "failing") == (run.state.asks.get(ERROR, 0) == 3)
        t += 5


def test_server_errors_of_a_busy_server_are_not_failing() -> None:
    """With work in flight that stands still it is stalled, whatever the questions get."""
    run = Run(answering=lambda _: ERROR)
    run.feed(at(t, STOOD) for t in every(5, 0, 1000))
    assert run.state.asks[ERROR] > 3
    assert run.seen() == {"busy", "stalled"}


def test_an_answer_withdraws_stuck() -> None:
    """Proven stuck, then it answers, and only its own counters move: alive, and a person is told of the rest."""
    run = Run(answering=in_turn(UNANSWERED, UNANSWERED, UNANSWERED, UNANSWERED, ANSWERED))
    for t in every(5, 0, 295):
        moved = len(run.asked) >= 5 and t > run.asked[4][0]
        run.take(at(t, sample(steps=5 + 2 * moved, ended=1 * moved, run=4)))
    assert run.first("stuck") == 180
    assert (run.state.verdict, run.state.judgement.reason) == ("stalled", "answers_but_requests_do_not_move")
    assert "answers, but 4 requests do not move" in sentence(run.state, run.limits)


def test_an_answer_that_moves_no_page_is_told() -> None:
    """The sentence says that another server may have answered."""
    run = Run(answering=answers)
    run.feed(at(t, STOOD) for t in every(5, 0, 100))
    assert "answered, but this page did not move" in sentence(run.state, run.limits)


def test_the_evidence_holds_each_question() -> None:
    """When it was sent, when it ended, and how, in Unix time."""
    run = Run(answering=in_turn(UNANSWERED, REJECTED))
    run.feed(at(t, STOOD) for t in every(5, 0, 100))
    (rank,) = ranks(run.state, run.limits)
    assert rank["asks"] == [
        {"sent_at": EPOCH + 60, "at": EPOCH + 90, "result": "unanswered"},
        {"sent_at": EPOCH + 90, "at": EPOCH + 90.5, "result": "rejected"},
    ]


def test_each_idle_rank_is_asked_beside_a_busy_one() -> None:
    """Rank 1 works all the time; the idle rank 0 is asked within its limit all the same, and by name."""
    run = Run(answering=answers)
    run.feed(at(t, {"0": IDLE, "1": sample(steps=t, run=4)}) for t in every(5, 0, 305))
    assert run.asked == [(300, ("tiny", "0"))]


def test_without_a_page_nobody_is_asked() -> None:
    """A failure, an answer: only a good page is followed by a question."""
    run = Run(answering=lambda _: FAILED)
    run.feed(at(t, STOOD) for t in every(5, 0, 60))
    run.feed(failure(t) for t in every(5, 65, 300))
    assert asked_at(run) == [60]
    assert isinstance(run.state, State)


@pytest.mark.parametrize(
    ("connected", "written", "received", "result"),
    [
        (True, True, False, UNANSWERED),
        (True, True, True, ANSWERED),
        (True, False, False, FAILED),
        (False, False, False, FAILED),
    ],
)
def test_how_far_a_time_out_came(connected: bool, written: bool, received: bool, result: AskResult) -> None:
    """Silence is: connected, written in full, not one byte back. Anything less says nothing."""
    failed = HttpFailed("timeout", "", connected=connected, written=written, received=received)
    assert _without_whole_answer(failed, "/v1/completions")[0] is result
