"""The verdict as a table: a history, a sentence, and what must be concluded from it."""

from __future__ import annotations

import dataclasses

import pytest

from exporter.model import AskResult, AskWhen, FailureReason, Presence
from exporter.state import stuck_after
from tests.exporter.history import EPOCH, LIMITS, Run, answers, every, failure, page, sample, with_limits


def test_busy_server_that_moves_is_never_asked() -> None:
    """Four requests in flight and steps rising for half an hour: busy throughout, and no request is sent."""
    run = Run()
    run.feed(page(t, sample(steps=t * 10, tokens=t * 40, run=4, wait=2)) for t in every(5, 0, 1800))
    assert run.seen() == {"busy"}
    assert run.asked == []


def test_frozen_while_busy_is_stalled_then_stuck() -> None:
    """A frozen engine with requests in flight is suspected after 60 s, asked once, and proven after 180 s."""
    run = Run()
    run.feed(page(t, sample(steps=t, run=4)) for t in every(5, 0, 20))
    run.feed(page(t, sample(steps=20, run=4)) for t in every(5, 25, 300))
    assert run.first("stalled") == pytest.approx(80, abs=5.1)
    assert run.asked[0][0] == pytest.approx(80, abs=5.1)
    assert run.first("stuck") == pytest.approx(200, abs=10.1)


def test_no_verdict_without_a_question() -> None:
    """Where no question may be asked, a stall of an hour stays stalled: a person is told, nothing is restarted."""
    run = Run(with_limits(ask_when=AskWhen.NEVER))
    run.feed(page(t, sample(steps=20, run=4)) for t in every(5, 0, 3600))
    assert run.seen() == {"busy", "stalled"}
    assert run.asked == []


def test_frozen_while_idle_needs_three_misses_and_the_limit() -> None:
    """An idle page that never answers: asked at 300 s, stuck 180 s after the first proven miss and not before."""
    run = Run()
    run.feed(page(t, sample(steps=20)) for t in every(5, 0, 700))
    assert run.asked[0][0] == pytest.approx(300, abs=5.1)
    assert run.first("stuck") == pytest.approx(300 + 30 + 180, abs=10.1)
    assert run.shown().misses_required == 3


def test_idle_server_that_answers_stays_idle() -> None:
    """An idle server whose page moves with each answer is asked every 300 s and stays idle."""
    run = Run(answering=answers)
    for t in every(5, 0, 3000):
        run.take(page(t, sample(steps=len(run.asked), ended=len(run.asked))))
    assert run.seen() <= {"idle"}
    assert len(run.asked) == pytest.approx(9, abs=1)


def test_phantom_work_clears_itself() -> None:
    """After a mass abort the page shows 106 running on a healthy engine for ever; one answer refreshes it."""
    run = Run(answering=answers)
    for t in every(5, 0, 600):
        gone = bool(run.asked) and t > run.asked[0][0]
        run.take(page(t, sample(steps=50 + gone, ended=5 + gone, run=0 if gone else 106, wait=0 if gone else 15)))
    assert "stuck" not in run.seen()
    assert run.state.verdict == "idle"
    assert run.asked, "the phantom was asked"


def test_phantom_page_of_a_hung_engine_is_stuck() -> None:
    """The same page, but the question gets no byte: this one is stuck."""
    run = Run()
    run.feed(page(t, sample(steps=50, run=106, wait=15, kv=0.904)) for t in every(5, 0, 300))
    assert run.state.verdict == "stuck"


def test_long_prefill_is_busy() -> None:
    """A prefill of 1,250 s moves nothing but KV use; rising KV use is progress, so it is busy and never asked."""
    run = Run()
    run.feed(page(t, sample(steps=7, run=1, kv=t / 2000)) for t in every(5, 0, 1250))
    assert run.seen() == {"busy"}
    assert run.asked == []


def test_oscillating_kv_use_is_no_progress() -> None:
    """KV use between .30 and .31 passes its maximum once; then it is a stand."""
    run = Run()
    run.feed(page(t, sample(steps=7, run=1, kv=0.30 + 0.01 * (t % 10 == 0))) for t in every(5, 0, 400))
    assert run.state.verdict == "stuck"


def test_swinging_kv_use_is_no_progress() -> None:
    """KV use that swings by more than the fall limit never rises three times in a row."""
    run = Run()
    run.feed(page(t, sample(steps=7, run=1, kv=0.30 + 0.05 * (t % 10 == 0))) for t in every(5, 0, 400))
    assert run.state.verdict == "stuck"


def test_prefill_after_an_abandoned_one() -> None:
    """A prefill is abandoned at KV .45 and another rises to .45: its third rise is progress."""
    run = Run()
    run.feed(page(t, sample(steps=7, run=1, kv=t / 450)) for t in every(5, 0, 200))
    run.feed(page(t, sample(steps=7, run=1, kv=(t - 205) / 667)) for t in every(5, 205, 505))
    assert run.seen() == {"busy"}


def test_one_long_step_is_not_stuck() -> None:
    """A step of 150 s moves nothing and answers nothing: stalled, then busy again, and the limit has learned."""
    run = Run()
    run.feed(page(t, sample(steps=7, run=1)) for t in every(5, 0, 150))
    run.feed(page(t, sample(steps=7 + t, run=1)) for t in every(5, 155, 200))
    assert run.seen() == {"busy", "stalled"}
    assert stuck_after(run.state, LIMITS) == pytest.approx(310, abs=10)


def test_learned_limit_has_a_ceiling() -> None:
    """A stall that ended after 20 minutes raises the limit to three times the configured one, no further."""
    run = Run(with_limits(ask_when=AskWhen.NEVER))
    run.feed(page(t, sample(steps=7, run=1)) for t in every(5, 0, 1200))
    run.take(page(1205, sample(steps=8, run=1)))
    assert stuck_after(run.state, LIMITS) == 540


def test_answers_but_requests_do_not_move() -> None:
    """The engine answers, yet its four requests stand still for ever: a person is told, nothing is restarted."""
    run = Run(answering=answers)
    for t in every(5, 0, 900):
        run.take(page(t, sample(steps=50 + 2 * len(run.asked), ended=len(run.asked), run=4)))
    assert "stuck" not in run.seen()
    assert run.state.judgement.reason == "answers_but_requests_do_not_move"


def test_answer_that_moves_no_page_proves_nothing() -> None:
    """A gateway answers for the engine for 10 minutes: never stuck, and ever fewer questions."""
    run = Run(answering=answers)
    run.feed(page(t, sample(steps=50, run=4)) for t in every(5, 0, 660))
    assert run.seen() == {"busy", "stalled"}
    gaps = [b[0] - a[0] for a, b in zip(run.asked, run.asked[1:], strict=False)]
    assert gaps == sorted(gaps)
    assert len(run.asked) <= 5


@pytest.mark.parametrize("result", [AskResult.REJECTED, AskResult.SERVER_ERROR, AskResult.FAILED])
def test_only_silence_is_a_miss(result: AskResult) -> None:
    """A status of any kind, or a connection that failed, never counts towards stuck."""
    run = Run(answering=lambda _: result)
    run.feed(page(t, sample(steps=50, run=4)) for t in every(5, 0, 1200))
    assert "stuck" not in run.seen()


def test_idle_server_errors_are_failing() -> None:
    """An idle server whose last three answers were server errors is failing, not stuck."""
    run = Run(answering=lambda _: AskResult.SERVER_ERROR)
    run.feed(page(t, sample(steps=50)) for t in every(5, 0, 1500))
    assert run.state.verdict == "failing"
    assert "stuck" not in run.seen()


def test_one_frozen_rank_of_two() -> None:
    """Rank 1 goes on, rank 0 stands: the sum moves, the backend is stuck, and rank 0 was asked by name."""
    run = Run()
    run.feed(page(t, {"0": sample(steps=20, run=4), "1": sample(steps=t * 10, run=4)}) for t in every(5, 0, 300))
    assert run.state.verdict == "stuck"
    assert {rank for _, (_, rank) in run.asked} == {"0"}
    assert run.state.judgement.rank == ("tiny", "0")


def test_rank_that_cannot_be_named_is_never_convicted() -> None:
    """Where a request cannot name its rank, silence says nothing of one of two ranks: stalled, a person is told."""
    run = Run(with_limits(names_ranks=False))
    run.feed(page(t, {"0": sample(steps=20, run=4), "1": sample(steps=t * 10, run=4)}) for t in every(5, 0, 900))
    assert run.seen() == {"busy", "stalled"}
    assert run.asked == []


def test_three_of_eight_ranks_frozen_while_idle() -> None:
    """Each idle rank is asked by name; the three that never answer convict the backend."""
    frozen = {"2", "5", "7"}
    run = Run(answering=lambda q: AskResult.UNANSWERED if q.rank[1] in frozen else AskResult.ANSWERED)
    for t in every(5, 0, 1500):
        asked = [rank for _, (_, rank) in run.asked]
        run.take(page(t, {str(n): sample(steps=asked.count(str(n)) * (str(n) not in frozen)) for n in range(8)}))
    assert run.state.verdict == "stuck"
    assert run.state.judgement.rank is not None
    assert run.state.judgement.rank[1] in frozen


def test_two_models_on_a_page_one_frozen() -> None:
    """Two models on one page: each is judged by itself, whatever their ranks are called."""
    run = Run()
    for t in every(5, 0, 300):
        good = page(t, sample(steps=t * 10, run=4))
        samples = {("a", "0"): sample(steps=9, run=1), ("b", "0"): sample(steps=t, run=1)}
        run.take(type(good)(good.began_at, good.at, good.wall, type(good.reading)(samples, good.reading.start_time)))
    assert run.state.verdict == "stuck"
    assert run.state.judgement.rank == ("a", "0")


def test_restart_is_never_compared_across() -> None:
    """A new start time resets every clock; the new process is starting, with no progress and no stall."""
    run = Run()
    run.feed(page(t, sample(steps=500, run=4)) for t in every(5, 0, 170))
    run.feed(failure(t) for t in every(5, 175, 200))
    state = run.take(page(205, sample(steps=0), start=EPOCH + 180))
    assert state.verdict == "starting"
    assert state.restarts == 1
    assert run.shown().stalled_seconds == 0
    assert run.shown().restart_detected == 1
    assert run.shown().progress_rate == 0


def test_after_a_restart_an_answer_is_asked_for_at_once() -> None:
    """The next thing asked of a new process is an answer, and an answer ends the start-up."""
    run = Run(answering=answers)
    run.feed(page(t, sample(steps=t, run=1)) for t in every(5, 0, 50))
    run.feed(failure(t) for t in every(5, 55, 90))
    for t in every(5, 95, 125):
        run.take(page(t, sample(steps=len(run.asked)), start=EPOCH + 90))
    assert run.asked[0][0] == pytest.approx(100, abs=1)
    assert run.state.verdict == "idle"


def test_slow_start_is_not_stuck() -> None:
    """A new process that compiles for ten minutes with a request in flight is starting, until its grace is over."""
    run = Run()
    run.feed(page(t, sample(steps=500, run=4)) for t in every(5, 0, 20))
    run.feed(failure(t) for t in every(5, 25, 60))
    run.feed(page(t, sample(run=1), start=EPOCH + 60) for t in every(5, 65, 1200))
    assert run.state.verdict == "starting"
    assert "stuck" not in run.seen()


def test_start_time_jitter_is_no_restart() -> None:
    """Start times that wander by 2 s are one process."""
    run = Run()
    run.feed(page(t, sample(steps=t, run=1), start=EPOCH - 5000 + (t % 15) / 5) for t in every(5, 0, 300))
    assert run.state.restarts == 0
    assert run.seen() == {"busy"}


def test_restart_without_start_time_by_halved_counter() -> None:
    """No start time: 9,000 generated tokens become 40 while the prompt counter rises; that is a new process."""
    run = Run()

    def multi(t: float, generated: float, prompt: float) -> None:
        base = sample(run=1)
        counters = {"generation": generated, "prompt": prompt}
        run.take(page(t, type(base)({}, counters, {}, 1.0, 0.0, 0.0, 0.0), start=None))

    multi(0, 9000, 100)
    multi(5, 9100, 120)
    multi(10, 40, 5000)
    assert run.state.restarts == 1


def test_one_series_that_vanishes_is_no_restart() -> None:
    """A worker's own series vanishes with it; the others did not fall, so the server was not restarted."""
    run = Run()
    for t in every(5, 0, 100):
        steps = {"steps{pid=1}": 900.0 + t} if t > 50 else {"steps{pid=1}": 900.0 + t, "steps{pid=2}": 5000.0 + t}
        run.take(page(t, type(sample())(steps, {}, {}, 1.0), start=None))
    assert run.state.restarts == 0


def test_idle_restart_without_start_time() -> None:
    """Refused readings, then counters that stand at zero again: a new process."""
    run = Run()
    run.feed(page(t, sample(), start=None) for t in every(5, 0, 20))
    run.feed(failure(t) for t in every(5, 25, 50))
    run.take(page(55, sample(), start=None))
    assert run.state.restarts == 1


def test_start_time_that_goes_back_is_a_proxy() -> None:
    """A start time that alternates is two servers behind one address; from then on nothing is compared."""
    run = Run()
    run.take(page(0, sample(steps=500, run=1), start=EPOCH - 100))
    run.take(page(5, sample(steps=20), start=EPOCH - 900))
    run.feed(page(t, sample(steps=20, run=3), start=EPOCH - 900) for t in every(5, 10, 600))
    assert run.state.verdict == "proxy"
    assert run.shown().stalled_seconds is None


def test_counters_that_fall_under_one_start_time_are_a_proxy() -> None:
    """No process takes a counter back."""
    run = Run()
    run.feed([page(0, sample(steps=500)), page(5, sample(steps=499))])
    assert run.state.verdict == "proxy"


def test_gap_in_the_readings_proves_nothing() -> None:
    """The exporter sleeps for an hour between two equal pages: the clock adds nothing for it."""
    run = Run()
    run.feed(page(t, sample(steps=20, run=4)) for t in every(5, 0, 50))
    before = run.shown().stalled_seconds
    run.take(page(3650, sample(steps=20, run=4)))
    assert run.shown().stalled_seconds == before
    assert "stuck" not in run.seen()


def test_gap_with_another_page_after_it_resets() -> None:
    """After a gap the page shows other requests: whatever stood before may have moved and stood again."""
    run = Run()
    run.feed(page(t, sample(steps=20, run=4)) for t in every(5, 0, 50))
    run.take(page(650, sample(steps=20, run=3)))
    assert run.shown().stalled_seconds == 0


def test_exporter_restarted_every_fifteen_minutes_still_finds_it() -> None:
    """What is remembered starts anew with the exporter, and 15 minutes are enough to prove a frozen server."""
    for _ in range(2):
        run = Run()
        run.feed(page(t, sample(steps=20, run=4)) for t in every(5, 0, 895))
        assert run.first("stuck") is not None


def test_one_good_page_in_thirty_seconds() -> None:
    """A frozen server is found by one page in thirty seconds: equal pages prove the time between."""
    run = Run()
    for t in every(5, 0, 600):
        run.take(page(t, sample(steps=20, run=4)) if t % 30 == 0 else failure(t, FailureReason.TIMEOUT))
    assert "stuck" in run.seen()


def test_stuck_needs_a_good_page_last() -> None:
    """A reading that fails after the proof takes the proof back until the next good page."""
    run = Run()
    run.feed(page(t, sample(steps=20, run=4)) for t in every(5, 0, 300))
    assert run.state.verdict == "stuck"
    assert run.take(failure(305, FailureReason.TIMEOUT)).verdict == "stalled"
    assert run.take(page(310, sample(steps=20, run=4))).verdict == "stuck"


def test_clients_of_a_hung_server_come_and_go() -> None:
    """Clients leave a hung server and come back every 50 s: the clock pauses meanwhile, and goes on."""
    run = Run()
    run.feed(page(t, sample(steps=20, run=4 if t % 100 < 50 else 0)) for t in every(5, 0, 900))
    assert "stuck" in run.seen()


def test_paused_and_asleep_are_never_stuck() -> None:
    """A server that sleeps or is paused stands still on purpose, for as long as it likes."""
    for on_purpose in ("asleep", "paused"):
        run = Run()
        run.feed(page(t, sample(steps=20, run=4), **{on_purpose: t > 20}) for t in every(5, 0, 1200))
        assert run.state.verdict == "paused"
        assert "stuck" not in run.seen()


def test_down_after_a_minute_of_refusals() -> None:
    """Refused for less than a minute keeps the last verdict; then it is down."""
    run = Run()
    run.take(page(0, sample(steps=20)))
    run.feed(failure(t) for t in every(5, 5, 60))
    assert run.state.verdict == "idle"
    run.feed(failure(t) for t in every(5, 65, 70))
    assert run.state.verdict == "down"


def test_time_outs_of_a_working_server_need_three_times_as_long() -> None:
    """Some servers answer /metrics only between batches: with work on the last page, 900 s instead of 300."""
    for load, expected in ((0, 300), (4, 900)):
        run = Run()
        run.take(page(0, sample(steps=20, run=load)))
        run.feed(failure(t, FailureReason.TIMEOUT, alive=True) for t in every(5, 5, 1200))
        assert run.first("unreachable") == pytest.approx(5 + expected, abs=5.1)
        assert run.state.judgement.reason == "health_answers_metrics_do_not"


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (FailureReason.HTTP_ERROR, 401),
        (FailureReason.HTTP_ERROR, 404),
        (FailureReason.HTTP_ERROR, 501),
        (FailureReason.MISSING_SERIES, 200),
        (FailureReason.EMPTY, 200),
        (FailureReason.UNPARSABLE, 200),
    ],
)
def test_server_without_usable_metrics_is_unmeasured(reason: FailureReason, status: int) -> None:
    """It answers, but not with metrics: unmeasured, with no gauges; absent is not zero."""
    run = Run()
    run.feed(failure(t, reason, status, alive=True) for t in every(5, 0, 600))
    assert run.seen() == {"unmeasured"}
    assert run.shown().stalled_seconds is None


def test_loading_is_starting() -> None:
    """503 "loading model" is a server that starts."""
    run = Run()
    run.take(failure(0, FailureReason.LOADING, 503))
    assert run.state.verdict == "starting"


def test_configured_proxy_is_only_looked_at() -> None:
    """A configured proxy is a proxy whatever /v1/models says."""
    run = Run()
    run.feed(Presence(t, EPOCH + t, alive=t < 300) for t in every(5, 0, 600))
    assert run.seen() == {"proxy"}
    assert run.asked == []


def test_first_sight_of_a_fresh_process_is_starting() -> None:
    """A process seen for the first time two minutes after its start, with no work done, is still starting."""
    run = Run()
    assert run.take(page(0, sample(), start=EPOCH - 120)).verdict == "starting"
    assert run.state.restarts == 0


def test_idle_page_then_a_request_then_a_page_a_second_later() -> None:
    """A request that arrived between two idle pages makes the server busy at once; it is not asked."""
    run = Run(with_limits(poll_interval_seconds=1, idle_ask_seconds=10))
    run.feed(page(t, sample(steps=5)) for t in every(1, 0, 9))
    run.take(page(10, sample(steps=5, run=1)))
    assert run.state.verdict == "busy"
    assert run.asked == []


def test_answer_to_a_question_counts_only_on_a_later_page() -> None:
    """A miss needs a page whose reading began after the deadline; a page from before it proves nothing."""
    run = Run(with_limits(suspect_after_seconds=5, stuck_after_seconds=10, ask_timeout_seconds=3))
    run.feed(page(t, sample(steps=5, run=1)) for t in (0, 2, 4, 6))
    assert run.asked
    sent = run.asked[0][0]
    run.take(page(sent + 2.9, sample(steps=5, run=1), seconds=0.2))
    assert run.shown().misses == 0
    run.take(page(sent + 3.3, sample(steps=5, run=1)))
    assert run.shown().misses == 1


def test_movement_between_question_and_deadline_is_no_miss() -> None:
    """The question got no byte, but the page moved meanwhile: the server works, and the queue is long."""
    run = Run()
    run.feed(page(t, sample(steps=5, run=1)) for t in every(5, 0, 65))
    assert run.asked
    run.feed(page(t, sample(steps=5 + t, run=1)) for t in every(5, 70, 120))
    assert run.shown().misses == 0
    assert run.seen() == {"busy", "stalled"}


def test_maintenance_is_paused_whatever_happens() -> None:
    """A backend under maintenance is paused, frozen or refused; nothing is asked and nothing is restarted."""
    run = Run(with_limits(maintenance=True))
    run.feed(page(t, sample(steps=20, run=4)) for t in every(5, 0, 900))
    run.feed(failure(t) for t in every(5, 905, 1500))
    assert run.seen() == {"paused"}
    assert run.asked == []


def test_waiting_for_a_peer_is_blocked() -> None:
    """A decode server whose prefill peer is dead: all waiting is deferred, it answers, and a restart would not help."""
    run = Run(answering=answers)
    for t in every(5, 0, 900):
        run.take(page(t, sample(steps=50 + len(run.asked), ended=len(run.asked), wait=7, deferred=7)))
    assert run.state.verdict == "blocked"
    assert "stuck" not in run.seen()


def test_configured_peers_need_no_answer_to_be_blocked() -> None:
    """With its peers configured, deferred requests alone say so, even where the question goes unanswered."""
    run = Run(with_limits(kv_peers=True))
    run.feed(page(t, sample(steps=50, wait=7, deferred=7)) for t in every(5, 0, 900))
    assert run.state.verdict == "blocked"
    assert "stuck" not in run.seen()


def test_deferred_requests_without_peers_or_answer_can_be_stuck() -> None:
    """Nothing answers and no peer is configured: a deferred queue is no excuse."""
    run = Run()
    run.feed(page(t, sample(steps=50, wait=7, deferred=7)) for t in every(5, 0, 900))
    assert run.state.verdict == "stuck"


def test_unconfirmed_stall_convicts_only_where_a_person_opted_in() -> None:
    """No question can reach it: proof is then the longer limit alone, and no ask is required."""
    run = Run(with_limits(ask_when=AskWhen.NEVER, restart_unconfirmed_after_seconds=900.0))
    run.feed(page(t, sample(steps=20, run=4)) for t in every(5, 0, 1200))
    assert run.first("stuck") == pytest.approx(900, abs=10.1)
    assert run.state.judgement.reason == "unconfirmed"
    assert (run.shown().misses_required, run.shown().stuck_after_seconds) == (0, 900)
    assert run.asked == []


def test_opting_in_never_shortens_the_limit() -> None:
    """Less than the limit itself: the limit counts."""
    run = Run(with_limits(ask_when=AskWhen.NEVER, restart_unconfirmed_after_seconds=61.0))
    run.feed(page(t, sample(steps=20, run=4)) for t in every(5, 0, 300))
    assert run.first("stuck") == pytest.approx(180, abs=10.1)


def test_a_rank_that_no_request_can_name_may_be_convicted_unconfirmed() -> None:
    """One of two ranks is frozen with work and cannot be asked by name; the other one works on."""
    run = Run(with_limits(names_ranks=False, restart_unconfirmed_after_seconds=600.0))
    run.feed(page(t, {"0": sample(steps=t, run=2), "1": sample(steps=7, run=2)}) for t in every(5, 0, 700))
    assert run.first("stuck") == pytest.approx(600, abs=10.1)
    assert run.state.judgement.rank == ("tiny", "1")


def test_opting_in_changes_nothing_where_an_ask_is_possible() -> None:
    """An answered question with requests that do not move is no case for a machine, however long it lasts."""
    run = Run(with_limits(restart_unconfirmed_after_seconds=600.0), answering=answers)
    for t in every(5, 0, 3000):
        run.take(page(t, sample(steps=20 + len(run.asked), ended=len(run.asked), run=1)))
    assert "stuck" not in run.seen()


def test_opting_in_convicts_no_idle_rank() -> None:
    """Nothing in flight stands still for ever, and that is well."""
    run = Run(with_limits(ask_when=AskWhen.NEVER, restart_unconfirmed_after_seconds=600.0))
    run.feed(page(t, sample(steps=20)) for t in every(5, 0, 3000))
    assert run.seen() == {"idle"}


def test_counters_that_are_not_live_make_questions_rare() -> None:
    """A long answer where counters move only at its end: behind the queue no ask is answered for two hours."""
    run = Run()
    for t in every(5, 0, 7200):
        standing = page(t, sample(steps=20, run=4))
        run.take(dataclasses.replace(standing, reading=dataclasses.replace(standing.reading, live=False)))
    assert run.seen() == {"busy", "stalled"}
    assert len(run.asked) <= 3 + 7
