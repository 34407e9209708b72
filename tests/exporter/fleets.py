"""Fleets that stand still, for the pages: backends of every verdict, each come to by observations and the real table.

All times are seconds before the present, which is `NOW` on the monotonic and `WALL` on the wall clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from exporter import evidence
from exporter.config import backend
from exporter.fleet import Fleet
from exporter.model import AskResult, Failure, FailureReason, Limits, Observation, Page, Presence, Reading, Sample
from exporter.runtimes import builtin
from exporter.snapshot import Change, Snapshot
from tests.exporter.history import EPOCH, Answering, Run, answers, every, silent

NOW = 200_000.0
WALL = EPOCH + NOW


class Still(Fleet):
    """A fleet without loops: what it holds is put in by the test."""

    def __init__(self, snapshots: Iterable[Snapshot] = ()) -> None:
        super().__init__(list)
        self.now, self.held = NOW, {snapshot.backend.name: snapshot for snapshot in snapshots}

    def snapshots(self) -> list[Snapshot]:
        return [self.held[name] for name in sorted(self.held)]

    def snapshot(self, name: str) -> Snapshot | None:
        return self.held.get(name)

    def put(self, snapshot: Snapshot) -> None:
        """Add a backend, or put another state in the place of the one it had."""
        self.held[snapshot.backend.name] = snapshot

    def monotonic(self) -> float:
        """The monotonic clock of the pages."""
        return self.now

    def wall(self) -> float:
        """Their wall clock."""
        return EPOCH + self.now


def vllm(steps: float, run: float = 0, wait: float = 0, kv: float = 0.1, deferred: float = 0) -> Sample:
    """What a vLLM page says after so many steps."""
    return Sample(
        {"vllm:iteration_tokens_total_count": steps},
        {"vllm:generation_tokens_total": 4 * steps, "vllm:prompt_tokens_total": 11 * steps},
        {'vllm:request_success_total{finished_reason="stop"}': steps // 200},
        run,
        wait,
        deferred,
        kv,
    )


def seen(
    ago: float,
    ranks: Sample | Mapping[str, Sample],
    *,
    model: str = "llama-70b",
    age: float = 90_000,
    asleep: bool = False,
) -> Page:
    """A good page read so many seconds before the present, of a process that is `age` seconds old by now."""
    keyed = {"0": ranks} if isinstance(ranks, Sample) else ranks
    samples = {(model, name): value for name, value in keyed.items()}
    at = NOW - ago
    return Page(at - 0.02, at, EPOCH + at, Reading(samples, WALL - age, asleep))


def failed(ago: float, reason: FailureReason, status: int | None = None, *, alive: bool | None = None) -> Failure:
    """A reading that failed so many seconds before the present."""
    at = NOW - ago
    return Failure(at - 0.02, at, EPOCH + at, reason, "", status, alive)


def ticks(first: float, last: float) -> list[float]:
    """Polls every five seconds, from `first` to `last` seconds ago."""
    return [-t for t in every(5, -first, -last)]


@dataclass
class Story:
    """How a backend came to its verdict."""

    name: str
    observations: Sequence[Observation]
    group: str = "llama-70b"
    answering: Answering = silent
    limits: Mapping[str, bool] = field(default_factory=dict)
    runtime: str = "vllm"
    url: str = ""

    def snapshot(self) -> Snapshot:
        """Run the real verdict over the observations, and keep every change with its evidence."""
        target = backend(
            self.name, self.url or f"http://10.0.0.7:8000/{self.name}", builtin()[self.runtime], {}, group=self.group
        )
        limits: Limits = dataclasses.replace(target.limits, **self.limits)  # type: ignore[arg-type]
        target = dataclasses.replace(target, limits=limits)
        run, history, failures = Run(limits, self.answering), list[Change](), dict[str, int]()
        for observation in self.observations:
            before = run.state.judgement
            state = run.take(observation)
            if isinstance(observation, Failure):
                failures[observation.reason.value] = failures.get(observation.reason.value, 0) + 1
            if (state.judgement.verdict, state.judgement.reason) != (before.verdict, before.reason):
                told = evidence.sentence(state, limits)
                decided = evidence.deciding_rank(state, limits)
                judged = state.judgement
                history.append(Change(observation.wall, judged.verdict.value, judged.reason, told, decided))
        good, last = isinstance(self.observations[-1], Page | Presence), self.observations[-1].at
        count = len(self.observations)
        return Snapshot(target, run.state, last, good, count, failures, 0.018, last, tuple(history[-20:]))


def moving(first: float, last: float, run: float = 4, wait: float = 0) -> list[Page]:
    """A healthy busy server."""
    return [seen(ago, vllm(120_000 - 9 * ago, run, wait, 0.4 + 0.001 * (ago % 30))) for ago in ticks(first, last)]


def standing(first: float, last: float, run: float = 4, wait: float = 2) -> list[Page]:
    """A server on whose page nothing moves."""
    return [seen(ago, vllm(119_500, run, wait, 0.62)) for ago in ticks(first, last)]


def errors(_: object) -> AskResult:
    """A server that answers every short request with an error."""
    return AskResult.SERVER_ERROR


def stories() -> dict[str, Story]:
    """A backend of every verdict, by its verdict."""
    resting = [seen(ago, vllm(900, kv=0.0)) for ago in ticks(1500, 0)]
    waiting = [seen(ago, vllm(5000, 0, 3, 0.3, deferred=3)) for ago in ticks(120, 0)]
    young = [seen(ago, vllm(0, kv=0.0), age=40) for ago in ticks(25, 0)]
    asleep = [seen(ago, vllm(700, kv=0.0), asleep=True) for ago in ticks(60, 0)]
    no_metrics = [failed(ago, FailureReason.HTTP_ERROR, 404, alive=True) for ago in ticks(100, 0)]
    refused = [failed(ago, FailureReason.REFUSED) for ago in ticks(75, 0)]
    silence = [failed(ago, FailureReason.TIMEOUT, alive=True) for ago in ticks(320, 0)]
    present = [Presence(NOW - ago, WALL - ago, alive=True) for ago in ticks(50, 0)]
    return {
        "stuck": Story("gb10-a", [*moving(300, 215), *standing(210, 0)]),
        "down": Story("gb10-b", [*moving(150, 80), *refused]),
        "failing": Story("embed-1", resting, "embeddings", errors),
        "unreachable": Story("gb10-c", [*[seen(ago, vllm(500)) for ago in ticks(400, 325)], *silence]),
        "stalled": Story("gb10-d", [*moving(200, 100), *standing(95, 0, run=1, wait=0)]),
        "blocked": Story("decode-1", waiting, "disaggregated", limits={"kv_peers": True}),
        "unmeasured": Story("tgi-old", no_metrics, "tgi-old"),
        "starting": Story("gb10-e", young),
        "paused": Story("night-1", asleep, "night"),
        "proxy": Story("router", present, "front"),
        "busy": Story("gb10-f", moving(100, 0, run=6, wait=1)),
        "idle": Story("gb10-g", [seen(ago, vllm(3000, kv=0.0)) for ago in ticks(350, 0)], answering=answers),
    }


def all_verdicts() -> list[Snapshot]:
    """The snapshots of `stories`."""
    return [story.snapshot() for story in stories().values()]


def many(count: int) -> list[Snapshot]:
    """A fleet of many: the stories again and again under other names."""
    once = all_verdicts()
    return [
        dataclasses.replace(
            snapshot, backend=dataclasses.replace(snapshot.backend, name=f"{snapshot.backend.name}-{number:04}")
        )
        for number, snapshot in ((n, once[n % len(once)]) for n in range(count))
    ]
