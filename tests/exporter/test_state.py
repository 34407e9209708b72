"""From one observation to the next: first sight, start-up, pauses, what is learned; the table of verdicts."""

from __future__ import annotations

import threading

import pytest

from exporter.evidence import deciding_rank
from exporter.model import AskResult, AskWhen, Page, Presence, Reading, Resting, Sample
from exporter.state import stuck_after
from tests.exporter.history import EPOCH, LIMITS, Run, answers, every, failure, page, sample, with_limits
from tests.exporter.test_watch import Asker, Clock, Server, join, watching

STOOD = sample(steps=5, run=4)
IDLE = sample(steps=5)


def at(t: float, ranks: Sample | dict[str, Sample], start: float | None = EPOCH - 5000) -> Page:
    """A page read in no time, so that times can be told exactly."""
    return page(t, ranks, start, seconds=0.0)


@pytest.mark.parametrize(
    ("what", "work", "age", "verdict"),
    [
        ("fresh, and has done nothing", 0, 120, "starting"),
        ("has done nothing for a little less than the grace", 0, 1199.5, "starting"),
        ("has done nothing for the whole grace", 0, 1200, "idle"),
        ("fresh, and has worked", 5, 120, "idle"),
        ("its start lies in the future of our clock", 0, -90, "starting"),
        ("tells no start", 0, None, "idle"),
    ],
)
def test_first_sight(what: str, work: float, age: float | None, verdict: str) -> None:
    """The grace of a process seen for the first time is counted from the start that it publishes."""
    run = Run()
    assert run.take(at(0, sample(steps=work), None if age is None else EPOCH - age)).verdict == verdict, what
    assert run.state.restarts == 0


def test_the_grace_at_first_sight_ends_with_that_of_the_process() -> None:
    """Seen a thousand seconds after its start: two hundred are left."""
    run = Run(with_limits(ask_when=AskWhen.NEVER))
    run.feed(at(t, sample(run=1), EPOCH - 1000) for t in every(5, 0, 300))
    assert {verdict for t, verdict in run.verdicts if t < 200} == {"starting"}
    assert "starting" not in {verdict for t, verdict in run.verdicts if t >= 200}


def test_the_grace_of_a_new_process_ends_exactly() -> None:
    """Nothing of its stand within the grace counts: the clock begins when the grace is over."""
    run = Run()
    run.take(at(0, IDLE))
    run.feed(at(t, sample(run=1), EPOCH + 5) for t in every(5, 5, 1300))
    assert {verdict for t, verdict in run.verdicts if 5 <= t < 1205} == {"starting"}
    assert run.first("busy") == 1205
    assert run.first("stalled") == pytest.approx(1265, abs=5)


@pytest.mark.parametrize("how", ["steps", "KV use"])
def test_progress_ends_the_start_up(how: str) -> None:
    """The first thing that moves, be it the KV use of a first prefill."""
    run = Run()
    run.take(at(0, IDLE))
    run.take(at(5, sample(run=1, kv=0.1), EPOCH + 5))
    assert run.take(at(10, sample(run=1, kv=0.1), EPOCH + 5)).verdict == "starting"
    moved = sample(steps=1, run=1, kv=0.1) if how == "steps" else sample(run=1, kv=0.2)
    assert run.take(at(15, moved, EPOCH + 5)).verdict == "busy"
    assert run.take(at(20, moved, EPOCH + 5)).verdict == "busy"


def test_an_answer_ends_the_start_up_though_no_page_moves() -> None:
    """The design's words: until the first progress or answer."""
    run = Run(answering=answers)
    run.take(at(0, IDLE))
    run.feed(at(t, sample(), EPOCH + 5) for t in every(5, 5, 20))
    assert run.asked
    assert run.state.verdict == "idle"


def asleep(t: float) -> Page:
    """Asleep by its page."""
    return Page(t, t, EPOCH + t, Reading({("tiny", "0"): STOOD}, EPOCH - 5000, asleep=True))


def paused_by_page(t: float) -> Page:
    """Paused by its page."""
    return Page(t, t, EPOCH + t, Reading({("tiny", "0"): STOOD}, EPOCH - 5000, paused=True))


def paused_elsewhere(t: float) -> Page:
    """Paused by /is_paused."""
    return Page(t, t, EPOCH + t, Reading({("tiny", "0"): STOOD}, EPOCH - 5000), paused=True)


def resting(t: float) -> Resting:
    """Asleep by /props."""
    return Resting(t, t, EPOCH + t)


@pytest.mark.parametrize("pause", [asleep, paused_by_page, paused_elsewhere, resting])
def test_a_pause_takes_every_clock_and_asks_nothing(pause: object) -> None:
    """170 s of a stand with a miss, a pause, and the same page again: nothing of it is left."""
    run = Run()
    run.feed(at(t, STOOD) for t in every(5, 0, 170))
    assert run.shown().misses > 0
    asked = len(run.asked)
    run.feed(pause(t) for t in every(5, 175, 1000))  # type: ignore[operator]
    assert {verdict for t, verdict in run.verdicts if t >= 175} == {"paused"}
    assert len(run.asked) == asked
    run.take(at(1005, STOOD))
    assert run.state.verdict == "busy"
    # A pause that a page tells lasts until that page; what is not read tells nothing of the time up to the next page.
    assert run.shown().stalled_seconds in (0, 5)
    assert run.shown().misses == 0


def test_a_pause_of_a_new_process_is_a_pause() -> None:
    """Paused goes before starting."""
    run = Run()
    run.take(at(0, IDLE))
    for make in (asleep, paused_by_page, paused_elsewhere):
        made = make(5)
        reading = Reading({("tiny", "0"): sample()}, EPOCH + 5, made.reading.asleep, made.reading.paused)
        fresh = Page(5, 5, EPOCH + 5, reading, made.paused)
        again = Run(state=run.state)
        assert again.take(fresh).verdict == "paused"


def test_a_proxy_under_maintenance_is_a_proxy() -> None:
    """Proxy goes before paused."""
    run = Run(with_limits(maintenance=True))
    run.take(Presence(0, EPOCH, alive=True))
    assert run.state.verdict == "proxy"


def test_a_stall_that_ended_by_itself_teaches() -> None:
    """Twice its length, at most three times the configured limit; a shorter one later unteaches nothing."""
    run = Run(with_limits(ask_when=AskWhen.NEVER))
    t, steps, seen = 0.0, 5, []
    for stall in (55, 80, 120, 100, 250, 900):
        run.feed(at(t + s, sample(steps=steps, run=4)) for s in every(5, 0, stall))
        t, steps = t + stall + 5, steps + 1
        run.take(at(t, sample(steps=steps, run=4)))
        seen.append(stuck_after(run.state, LIMITS))
    assert seen == [180, 180, 250, 250, 510, 540]
    assert run.shown().stuck_after_seconds == 540


def test_what_was_learned_is_the_limit_of_the_next_stall() -> None:
    """A stall of 120 s was healthy: the next one is stuck at 250 s."""
    run = Run()
    run.feed(at(t, STOOD) for t in every(5, 0, 120))
    run.feed(at(t, sample(steps=9, run=4)) for t in every(5, 125, 400))
    assert run.first("stuck") == 375


def test_a_long_step_that_ended_while_a_question_was_silent_teaches_too() -> None:
    """Steps of two minutes, one at a time: no byte came back, so the question did not make that step."""
    run = Run()
    run.feed(at(t, STOOD) for t in every(5, 0, 120))
    run.feed(at(t, sample(steps=6, run=4)) for t in every(5, 125, 360))
    assert 240 <= stuck_after(run.state, LIMITS) <= 310
    assert "stuck" not in run.seen()


def test_a_step_while_a_question_is_open_takes_the_proof_back_at_once() -> None:
    """Misses of before, the limit at 260 s, and a step at 245 s that may be the question's own: alive, so not stuck."""
    run = Run(with_limits(stuck_after_seconds=260.0))
    run.feed(at(t, STOOD) for t in every(5, 0, 240))
    assert run.asked[-1][0] == 240
    run.feed(at(t, sample(steps=6, run=4)) for t in every(5, 245, 265))
    assert run.shown().misses == 0
    assert "stuck" not in run.seen()


def test_a_stall_that_a_restart_ended_teaches_nothing() -> None:
    """It was no healthy one: the new process, which moves, has the limit that is configured."""
    run = Run()
    run.feed(at(t, STOOD) for t in every(5, 0, 170))
    run.feed(at(t, sample(steps=9 + t, run=4), EPOCH + 172) for t in every(5, 175, 200))
    assert stuck_after(run.state, LIMITS) == 180


@pytest.mark.parametrize(("stall", "limit"), [(95, 120), (100, 210)])
def test_a_stall_that_nobody_suspected_teaches_nothing(stall: float, limit: float) -> None:
    """Shorter than the suspicion limit it needs no longer limit."""
    limits = with_limits(suspect_after_seconds=100.0, stuck_after_seconds=120.0)
    run = Run(limits)
    run.feed(at(t, STOOD) for t in every(5, 0, stall))
    run.take(at(stall + 5, sample(steps=9, run=4)))
    assert stuck_after(run.state, limits) == limit


@pytest.mark.parametrize(
    ("what", "times", "verdict"),
    [
        ("a little less than the suspicion limit", (0, 30, 59.5), "busy"),
        ("the suspicion limit over three pages", (0, 30, 60), "stalled"),
        ("over two pages", (0, 60), "busy"),
    ],
)
def test_when_it_is_suspected(what: str, times: tuple[float, ...], verdict: str) -> None:
    """The suspicion limit, over at least three pages."""
    run = Run()
    run.feed(at(t, STOOD) for t in times)
    assert run.state.verdict == verdict, what


def test_when_it_is_proven() -> None:
    """With a miss, at the limit and not half a second before."""
    run = Run()
    run.feed(at(t, STOOD) for t in (*every(5, 0, 175), 179.5))
    assert run.shown().misses
    assert run.state.verdict == "stalled"
    assert run.take(at(180, STOOD)).verdict == "stuck"


def test_without_a_question_proof_takes_three_pages_too() -> None:
    """Two pages 200 s apart, at polls of 100 s, where a person opted in to a limit of 190 s."""
    limits = with_limits(ask_when=AskWhen.NEVER, poll_interval_seconds=100.0, restart_unconfirmed_after_seconds=190.0)
    run = Run(limits)
    run.feed([at(0, STOOD), at(200, STOOD)])
    assert run.state.verdict == "busy"
    assert run.take(at(201, STOOD)).verdict == "stuck"


def test_when_an_idle_rank_is_proven() -> None:
    """Asked at 300 s, silent since the deadline at 328: stuck 180 s after that and not half a second before."""
    run = Run(with_limits(ask_timeout_seconds=28.0))
    run.feed(at(t, IDLE) for t in (*every(5, 0, 505), 507.5))
    assert run.shown().misses >= 3
    assert run.state.verdict == "stalled"
    assert run.shown().stalled_seconds == 179.5
    assert run.take(at(508, IDLE)).verdict == "stuck"


def test_two_misses_of_an_idle_rank_are_no_proof() -> None:
    """However long ago the first was: the third question fails to reach it."""
    results = [AskResult.UNANSWERED, AskResult.UNANSWERED]
    run = Run(answering=lambda _: results.pop() if results else AskResult.FAILED)
    run.feed(at(t, IDLE) for t in every(5, 0, 1500))
    assert run.shown().misses == 2
    assert run.seen() == {"idle", "stalled"}


def test_any_miss_is_stalled() -> None:
    """One unanswered question to an idle rank: a person is told."""
    run = Run(answering=lambda _: AskResult.UNANSWERED)
    run.feed(at(t, IDLE) for t in every(5, 0, 325))
    assert run.seen() == {"idle"}
    assert run.take(at(335, IDLE)).verdict == "stalled"


def test_stuck_goes_before_failing() -> None:
    """Three server errors and then three misses: silence is the stronger sign."""
    results = [AskResult.SERVER_ERROR] * 3
    run = Run(with_limits(idle_ask_seconds=60.0), lambda _: results.pop() if results else AskResult.UNANSWERED)
    run.feed(at(t, IDLE) for t in every(5, 0, 2000))
    assert run.first("failing") is not None
    assert run.state.verdict == "stuck"


@pytest.mark.parametrize(
    ("what", "load", "blocked"),
    [
        ("everything waits for a peer", {"wait": 7, "deferred": 7}, True),
        ("one of them does not", {"wait": 7, "deferred": 6}, False),
        ("one is running", {"run": 1, "wait": 7, "deferred": 7}, False),
    ],
)
@pytest.mark.parametrize("peers", [True, False], ids=["peers", "no peers"])
def test_when_it_is_blocked(what: str, load: dict[str, float], blocked: bool, peers: bool) -> None:
    """Nothing runs and all that waits is deferred; its peers are configured, or it answers. Otherwise it is stuck."""
    run = Run(with_limits(kv_peers=peers))
    run.feed(at(t, sample(steps=5, **load)) for t in every(5, 0, 300))
    assert run.state.verdict == ("blocked" if blocked and peers else "stuck"), what
    run = Run(with_limits(kv_peers=peers), answers)
    for t in every(5, 0, 150):
        run.take(at(t, sample(steps=5 + len(run.asked), ended=len(run.asked), **load)))
    assert (run.state.verdict == "blocked") == blocked, what


def test_requests_that_wait_for_a_peer_are_busy_at_first() -> None:
    """Blocked stands still for the suspicion limit."""
    run = Run(with_limits(kv_peers=True))
    run.feed(at(t, sample(steps=5, wait=7, deferred=7)) for t in every(5, 0, 60))
    assert run.first("blocked") == 60
    assert {verdict for t, verdict in run.verdicts if t < 60} == {"busy"}


def test_stuck_goes_before_blocked_over_ranks() -> None:
    """One rank waits for a peer, another one is frozen: the frozen one decides."""
    run = Run(with_limits(kv_peers=True))
    waits = sample(steps=5, wait=7, deferred=7)
    run.feed(at(t, {"0": waits, "1": STOOD, "2": sample(steps=t, run=1)}) for t in every(5, 0, 600))
    assert run.state.verdict == "stuck"
    assert run.state.judgement.rank == ("tiny", "1")


def test_a_failure_after_stuck_leaves_no_proof() -> None:
    """Whatever the failure: a good page must come last."""
    for reason in ("timeout", "refused", "reset", "http_error", "empty"):
        run = Run()
        run.feed(at(t, STOOD) for t in every(5, 0, 200))
        assert run.state.verdict == "stuck"
        bad = failure(205)
        run.take(type(bad)(bad.began_at, bad.at, bad.wall, type(bad.reason)(reason), alive=True))
        assert run.state.verdict == "stalled"


def test_the_evidence_compares_two_pages() -> None:
    """The values and the times of the page before and of the latest one."""
    run = Run()
    run.feed([at(0, sample(steps=5, run=4)), at(5, sample(steps=7, run=3, wait=1, kv=0.25))])
    rank = deciding_rank(run.state, LIMITS)
    assert rank is not None
    assert rank["previous"] == {
        "at": EPOCH,
        "values": {"steps": 5, "tokens": 0, "ended": 0, "running": 4, "waiting": 0, "deferred": 0, "kv_use": 0.0},
    }
    assert rank["latest"] == {
        "at": EPOCH + 5,
        "values": {"steps": 7, "tokens": 0, "ended": 0, "running": 3, "waiting": 1, "deferred": 0, "kv_use": 0.25},
    }


class TestQuestions:
    """What the loop does with a question and with what comes back."""

    def ask(self, clock: Clock, asker: Asker, polls: int) -> Server:
        """Poll a server that stands, a second apart."""
        server = Server(steps=5, running=2)
        watch = watching(server, asker, clock)
        for _ in range(polls):
            watch.poll()
            join("ask-a")
            clock.now += 1
        return server

    def test_a_rejection_is_said_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A wrong key is a line in the log, not a line for each question."""
        asker = Asker(AskResult.REJECTED)
        asker.release.set()
        self.ask(Clock(), asker, 40)
        assert len(asker.asked) >= 2
        captured = capsys.readouterr()
        assert (captured.out + captured.err).count("asks are rejected") == 1

    def test_a_question_whose_page_has_grown_old_is_not_sent(self) -> None:
        """The thread that asks begins late: the page may be over."""

        class Late(Clock):
            def monotonic(self) -> float:
                return self.now + (2.0 if threading.current_thread().name == "ask-a" else 0.0)

        asker = Asker(AskResult.ANSWERED)
        asker.release.set()
        self.ask(Late(), asker, 10)
        assert asker.asked == []


def test_of_a_proxy_that_was_found_out_only_the_models_are_read() -> None:
    """Each reading of its metrics may come from another server, so there is none from then on."""
    server, clock = Server(), Clock()
    watch = watching(server, Asker(), clock)
    for start in (1_795_000_900, 1_795_000_100):
        server.body = f"vllm:generation_tokens_total 7\nprocess_start_time_seconds {start}\n"
        watch.poll()
        clock.now += 1
    assert watch.snapshot.state.verdict == "proxy"
    server.reads.clear()
    watch.poll()
    assert server.reads == ["models"]
