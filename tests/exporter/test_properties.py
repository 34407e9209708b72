"""Properties over generated histories: what must hold whatever a server does, in whatever order."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.model import AskResult, FailureReason, Limits, Observation, Page, Question
from exporter.state import stuck_after
from tests.exporter.history import LIMITS, Run, failure, page, sample

POLL = 5.0
SLACK = 1e-6

Phase = tuple[str, int]
"""What the server does, and for how many polls."""

KINDS = ("works", "prefills", "frozen", "idle", "fails", "gap", "paused", "asleep", "restarts", "aborts")
phases = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 50)), min_size=1, max_size=8)
results = st.lists(st.sampled_from(list(AskResult)), min_size=1, max_size=6)


def history(script: Sequence[Phase]) -> list[Observation]:
    """The pages and failures of a server that does one thing after the other."""
    seen: list[Observation] = []
    t, steps, kv, start, running = 0.0, 100.0, 0.0, 1_795_000_000.0, 4.0
    for kind, polls in script:
        if kind == "gap":
            t += polls * POLL
            continue
        if kind == "restarts":
            steps, kv, start, running = 0.0, 0.0, start + 100 + t, 0.0
        for _ in range(polls):
            t += POLL
            if kind == "fails":
                seen.append(failure(t, FailureReason.TIMEOUT, alive=True))
                continue
            if kind == "works":
                steps, running, kv = steps + 7, 4.0, 0.1
            elif kind == "prefills":
                running, kv = 1.0, min(1.0, kv + 0.004)
            elif kind == "frozen":
                running = 4.0
            elif kind == "idle":
                running, kv = 0.0, 0.0
            elif kind == "aborts":
                running = 106.0
            asleep, paused = kind == "asleep", kind == "paused"
            seen.append(page(t, sample(steps=steps, run=running, kv=kv), start, asleep=asleep, paused=paused))
    return seen


class Answers:
    """Answers in a given order, over and over."""

    def __init__(self, listed: Sequence[AskResult]) -> None:
        self._listed, self._next = list(listed), 0

    def __call__(self, _: Question) -> AskResult:
        self._next += 1
        return self._listed[(self._next - 1) % len(self._listed)]


def last_movement(pages: Sequence[Page], now: Page) -> float:
    """When the pages of the present process last differed in steps or process, looking back from `now`.

    KV use is left out: its falls are no movement, and its rises only after the third.
    """
    since = now.began_at
    for earlier in reversed(pages):
        a, b = earlier.reading, now.reading
        if a.start_time != b.start_time or any(a.samples[k].steps != s.steps for k, s in b.samples.items()):
            return since
        since = earlier.began_at
    return since


@given(phases, results)
@settings(max_examples=150, deadline=None)
def test_stuck_is_always_proven(script: list[Phase], listed: list[AskResult]) -> None:
    """Never stuck without work in flight and a miss, or three misses; never before the limit; never over movement."""
    run, pages = Run(answering=Answers(listed)), list[Page]()
    for observation in history(script):
        state = run.take(observation)
        if isinstance(observation, Page):
            if state.verdict == "stuck":
                rank = state.ranks["tiny", "0"]
                assert (rank.in_flight and rank.misses >= 1) or rank.misses >= 3
                stood = observation.began_at - last_movement(pages, observation)
                assert stood + SLACK >= LIMITS.stuck_after_seconds
                assert observation.reading.asleep is False
                assert observation.paused is False
            pages.append(observation)
        else:
            assert state.verdict != "stuck"


@given(phases, results)
@settings(max_examples=100, deadline=None)
def test_the_clock_never_exceeds_what_the_pages_prove(script: list[Phase], listed: list[AskResult]) -> None:
    """The stall clock is at most the time between the pages on which nothing moved."""
    run, pages = Run(answering=Answers(listed)), list[Page]()
    for observation in history(script):
        state = run.take(observation)
        if isinstance(observation, Page):
            for rank in state.ranks.values():
                assert rank.stalled_seconds <= observation.began_at - last_movement(pages, observation) + SLACK
            pages.append(observation)


@given(phases)
@settings(max_examples=100, deadline=None)
def test_a_server_that_always_answers_is_never_stuck(script: list[Phase]) -> None:
    """Whatever the page does: answers, even ones that move no page, never add up to a conviction."""
    run = Run(answering=lambda _: AskResult.ANSWERED)
    run.feed(history(script))
    assert "stuck" not in run.seen()


@given(phases, results, st.lists(st.booleans(), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_missing_readings_convict_nobody(script: list[Phase], listed: list[AskResult], kept: list[bool]) -> None:
    """A server that works whenever it is read is never stuck, whichever readings are missing."""
    working = [(kind if kind in ("works", "fails", "gap", "restarts") else "works", n) for kind, n in script]
    run = Run(answering=Answers(listed))
    run.feed(o for number, o in enumerate(history(working)) if kept[number % len(kept)])
    assert "stuck" not in run.seen()


@given(phases, results, st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
@settings(max_examples=150, deadline=None)
def test_the_wall_clock_decides_nothing(script: list[Phase], listed: list[AskResult], jumps: list[float]) -> None:
    """A wall clock that jumps about changes no verdict; only the very first page may compare it with a start time."""
    plain, jumping = Run(answering=Answers(listed)), Run(answering=Answers(listed))
    for number, observation in enumerate(history(script)):
        plain.take(observation)
        wall = observation.wall
        assert wall is not None
        moved = wall if number == 0 else wall + jumps[number % len(jumps)]
        jumping.take(dataclasses.replace(observation, wall=moved))
    assert plain.verdicts == jumping.verdicts


@given(phases)
@settings(max_examples=150, deadline=None)
def test_a_healthy_rank_hides_nothing(script: list[Phase]) -> None:
    """A rank that is convicted alone is convicted beside a rank that works all the time, too."""
    alone, beside = Run(), Run()
    for number, observation in enumerate(history(script)):
        alone.take(observation)
        if isinstance(observation, Page):
            samples = dict(observation.reading.samples)
            # Its counters begin anew with the process, and it works at each page.
            samples["tiny", "1"] = sample(steps=1.0 + number % 10_000 + observation.at, run=2)
            reading = dataclasses.replace(observation.reading, samples=samples)
            beside.take(dataclasses.replace(observation, reading=reading))
        else:
            beside.take(observation)
        # The rank that works ends the start-up sooner, so that a stall within it can have taught a longer limit.
        taught = stuck_after(beside.state, LIMITS) > stuck_after(alone.state, LIMITS)
        if alone.state.verdict == "stuck" and not taught:
            assert beside.state.verdict == "stuck"


@given(st.integers(10, 120), st.integers(40, 200), st.sampled_from([1.0, 2.0, 10.0, 15.0]))
@settings(max_examples=60, deadline=None)
def test_another_poll_interval_gives_the_same_verdict(before: int, frozen: int, interval: float) -> None:
    """The same freeze is found at another poll interval too, earlier or later by about one interval of each."""

    def found(poll: float) -> float | None:
        limits = Limits(**{**dataclasses.asdict(LIMITS), "poll_interval_seconds": poll})
        run = Run(limits)
        for number in range(int((before + frozen * POLL) / poll)):
            t = number * poll
            run.take(page(t, sample(steps=min(t, before) * 3, run=4)))
        return run.first("stuck")

    reference, other = found(POLL), found(interval)
    if reference is not None and other is not None:
        assert abs(reference - other) <= 2 * (POLL + interval)
    elif frozen * POLL > LIMITS.stuck_after_seconds + LIMITS.ask_timeout_seconds + 3 * (POLL + interval):
        raise AssertionError(f"found at {reference} with one interval and at {other} with the other")


@given(st.permutations(range(4)), st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_ranks_that_come_and_go_are_not_convicted_by_it(order: list[int], absent_from: int) -> None:
    """A family or a label that vanishes for a page, and pages in another order, make nobody stuck before the limit."""
    run = Run()
    for number in range(34):
        names = [str(n) for n in order]
        if number % 7 == absent_from % 7:
            names = names[:-1]
        run.take(page(number * POLL, {name: sample(steps=5, run=1) for name in names}))
    assert "stuck" not in run.seen()


SITUATIONS = ("works", "frozen", "idle", "refuses", "asleep", "prefills", "unreadable", "frozen idle")
situations = st.lists(st.tuples(st.sampled_from(SITUATIONS), st.integers(1, 60)), min_size=1, max_size=6)
"""What the server does, and for how many times 20 seconds."""


class Server:
    """A server as it is at any instant, so that it can be read at any interval."""

    def __init__(self, script: Sequence[Phase]) -> None:
        self._spans: list[tuple[float, float, str]] = []
        end = 0.0
        for kind, length in script:
            self._spans.append((end, end + 20.0 * length, kind))
            end += 20.0 * length
        self.end = end

    def kind(self, t: float) -> str:
        """What it does at `t`."""
        return next((kind for began, ended, kind in self._spans if began <= t < ended), self._spans[-1][2])

    def read(self, t: float) -> Observation:
        """What a reading at `t` gives."""
        kind = self.kind(t)
        if kind == "refuses":
            return failure(t)
        if kind == "unreadable":
            return failure(t, FailureReason.TIMEOUT, alive=False)
        worked = sum(max(0.0, min(t, ended) - began) for began, ended, what in self._spans if what == "works")
        read = sum(max(0.0, min(t, ended) - began) for began, ended, what in self._spans if what == "prefills")
        in_flight = 4.0 if kind in ("works", "frozen", "prefills") else 0.0
        kv = 0.1 + read * 1e-4
        return page(t, sample(steps=100 + 7 * worked, run=in_flight, kv=kv), asleep=kind == "asleep")

    def answer(self, question: Question) -> AskResult:
        """An idle server answers at once, a frozen one never."""
        kind = self.kind(question.sent_at)
        return AskResult.ANSWERED if kind in ("works", "idle", "asleep") else AskResult.UNANSWERED


@given(situations, st.sampled_from([1.0, 2.0, 10.0]))
@settings(max_examples=40, deadline=None)
def test_the_same_history_at_another_poll_interval(script: list[Phase], interval: float) -> None:
    """What one of two exporters says for long enough the other one says meanwhile, at whichever interval it polls."""
    server = Server(script)

    def spans(poll: float) -> list[tuple[float, float, str]]:
        limits = dataclasses.replace(LIMITS, poll_interval_seconds=poll)
        run = Run(limits, server.answer)
        t = 0.0
        while t < server.end:
            run.take(server.read(t))
            t += poll
        found: list[tuple[float, float, str]] = []
        for (at, verdict), (until, _) in itertools.pairwise([*run.verdicts, (server.end, "")]):
            if found and found[-1][2] == verdict:
                found[-1] = (found[-1][0], until, verdict)
            else:
                found.append((at, until, verdict))
        return found

    mine, other = spans(POLL), spans(interval)
    # Steps that wait for a poll: the page that asks, the one that confirms, the one that completes the time; a stall
    # that was longer by an interval also teaches a limit that is longer by two.
    tolerance = 6 * (POLL + interval)
    for said, heard in ((mine, other), (other, mine)):
        for began, ended, verdict in said:
            if ended - began > tolerance:
                assert any(v == verdict and b < ended and e > began for b, e, v in heard), (verdict, began, ended)
