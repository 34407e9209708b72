"""Histories for table tests: pages and failures in a line each, and the verdict run over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from exporter.model import (
    Answer,
    AskResult,
    AskWhen,
    Failure,
    FailureReason,
    Limits,
    Observation,
    Page,
    Question,
    RankKey,
    Reading,
    Sample,
)
from exporter.state import State
from exporter.verdict import Shown, advance, shown

LIMITS = Limits(names_ranks=True)
"""The defaults of vLLM: suspect 60 s, stuck 180 s, ask time-out 30 s, a poll every 5 s."""
EPOCH = 1_796_000_000.0


def sample(
    steps: float = 0,
    tokens: float = 0,
    ended: float = 0,
    run: float = 0,
    wait: float = 0,
    kv: float | None = 0.0,
    deferred: float = 0,
) -> Sample:
    """One rank's sample, by the names of the cases."""
    return Sample({"steps": steps}, {"tokens": tokens}, {"ended": ended}, run, wait, deferred, kv)


def page(
    t: float,
    ranks: Sample | dict[str, Sample],
    start: float | None = EPOCH - 5000,
    *,
    asleep: bool = False,
    paused: bool = False,
    seconds: float = 0.01,
) -> Page:
    """A good page read at `t`; one sample stands for rank 0."""
    keyed = ranks if isinstance(ranks, dict) else {"0": ranks}
    samples = {("tiny", name): value for name, value in keyed.items()}
    return Page(t, t + seconds, EPOCH + t, Reading(samples, start, asleep), paused)


def failure(
    t: float, reason: FailureReason = FailureReason.REFUSED, status: int | None = None, alive: bool | None = None
) -> Failure:
    """A reading that failed at `t`."""
    return Failure(t, t + 0.01, EPOCH + t, reason, status=status, alive=alive)


Answering = Callable[[Question], AskResult]


def silent(_: Question) -> AskResult:
    """A server that never answers."""
    return AskResult.UNANSWERED


def answers(_: Question) -> AskResult:
    """A server that answers at once."""
    return AskResult.ANSWERED


@dataclass
class Run:
    """A history being run: states by observation, and every question sent."""

    limits: Limits = LIMITS
    answering: Answering = silent
    state: State = field(default_factory=State)
    asked: list[tuple[float, RankKey]] = field(default_factory=list)
    verdicts: list[tuple[float, str]] = field(default_factory=list)
    pending: tuple[Question, AskResult, float] | None = None

    def take(self, observation: Observation) -> State:
        """Feed one observation, with any answer that came before it."""
        began = observation.at if isinstance(observation, Answer) else getattr(observation, "began_at", observation.at)
        if self.pending is not None and began >= self.pending[2]:
            question, result, at = self.pending
            self.pending = None
            answer = Answer(question.rank, question.sent_at, at, EPOCH + at, result)
            self.state, _ = advance(self.state, answer, self.limits, at)
            self.verdicts.append((at, self.state.verdict.value))
        self.state, question_now = advance(self.state, observation, self.limits, observation.at)
        self.verdicts.append((observation.at, self.state.verdict.value))
        if question_now is not None:
            self.asked.append((observation.at, question_now.rank))
            result = self.answering(question_now)
            delay = self.limits.ask_timeout_seconds if result is AskResult.UNANSWERED else 0.5
            self.pending = (question_now, result, question_now.sent_at + delay)
        return self.state

    def feed(self, observations: Iterable[Observation]) -> State:
        """Feed many."""
        for observation in observations:
            self.take(observation)
        return self.state

    def seen(self) -> set[str]:
        """Every verdict there was."""
        return {verdict for _, verdict in self.verdicts}

    def first(self, verdict: str) -> float | None:
        """When a verdict was first given, or None."""
        return next((t for t, v in self.verdicts if v == verdict), None)

    def shown(self) -> Shown:
        """The gauges now."""
        return shown(self.state, self.limits, self.verdicts[-1][0])


def every(seconds: float, start: float, end: float) -> list[float]:
    """Poll times from start to end."""
    count = int((end - start) / seconds + 1e-9) + 1
    return [start + n * seconds for n in range(count)]


def with_limits(**changes: float | AskWhen | bool) -> Limits:
    """The default limits with some changed."""
    return Limits(**{"names_ranks": True, **changes})  # type: ignore[arg-type]
