"""The loop of one backend: fetch, parse, advance, publish. Questions are asked beside the loop, never in it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from exporter import evidence
from exporter.asking import PAGE_AGE_SECONDS
from exporter.config import Backend
from exporter.model import (
    Answer,
    AskResult,
    Failure,
    Observation,
    Page,
    Presence,
    Question,
    RankKey,
    Resting,
    Verdict,
)
from exporter.reading import Fetching, Reader
from exporter.runtimes import HowToAsk
from exporter.snapshot import Change, Snapshot
from exporter.state import State
from exporter.verdict import advance
from stallwatch.logs import get_logger

MAX_PAGE_BYTES = 8 * 1024 * 1024


KEPT_CHANGES = 20
"""Changes of verdict kept per backend, each with its evidence: some kilobytes."""


class Asking(Protocol):
    """One short request; `ask.Asker` is the real one."""

    def ask(
        self, how: HowToAsk, rank: RankKey, deadline_seconds: float, named: bool, model: str | None
    ) -> tuple[AskResult, str]: ...


class Watch:
    """Watches one backend in a thread of its own."""

    def __init__(
        self,
        backend: Backend,
        fetcher: Fetching,
        asker: Asking,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.configured = backend
        self._reader = Reader(backend, fetcher, monotonic=monotonic, wall=wall)
        self._asker = asker
        self._monotonic, self._wall = monotonic, wall
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._log = get_logger("watch")
        self._rejections: set[str] = set()
        self._failures: Counter[str] = Counter()
        self._polls = 0
        now = monotonic()
        self.snapshot = Snapshot(backend, State(), now)

    @property
    def backend(self) -> Backend:
        """The backend as configured, with what was told from its page."""
        return self._reader.backend

    def start(self, delay_seconds: float = 0.0) -> None:
        """Start polling, the first time after `delay_seconds`, so that a fleet does not poll in step."""
        name = f"watch-{self.backend.name}"
        self._thread = threading.Thread(target=self._run, args=(delay_seconds,), name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the loop to end; it does at the end of the reading under way."""
        self._stop.set()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the loop to end; return whether it has. A hanging reading is left to its deadline."""
        if self._thread is None:
            return True
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self, delay_seconds: float) -> None:
        interval = self.backend.limits.poll_interval_seconds
        due = self._monotonic() + delay_seconds
        while not self._stop.wait(max(0.0, due - self._monotonic())):
            try:
                self.poll()
            except Exception:  # one bad page must not end the watching
                self._log.exception("poll failed unexpectedly", backend=self.backend.name)
            # A fixed rate; ticks missed during a slow reading are skipped, not made up for.
            now = self._monotonic()
            due += interval * max(1, int((now - due) // interval) + 1)
        self._reader.close()

    def poll(self) -> None:
        """One reading, taken into the state and published."""
        began = self._monotonic()
        observation = self._reader.observe(self.snapshot.state)
        self._polls += 1
        if isinstance(observation, Failure):
            self._failures[observation.reason.value] += 1
        question = self._take(observation, polled=self._monotonic() - began)
        if question is not None:
            self._start_asking(question)

    def _take(self, observation: Observation, polled: float | None = None) -> Question | None:
        with self._lock:
            before, now = self.snapshot, self._monotonic()
            state, question = advance(before.state, observation, self.backend.limits, now)
            history = before.history
            was, now_is = before.state.judgement, state.judgement
            if (was.verdict, was.reason) != (now_is.verdict, now_is.reason):
                changed = Change(
                    observation.wall,
                    state.verdict.value,
                    state.judgement.reason,
                    evidence.sentence(state, self.backend.limits),
                    evidence.deciding_rank(state, self.backend.limits),
                )
                history = (*history, changed)[-KEPT_CHANGES:]
                self._tell(before.state, state, changed)
            if state.restarts != before.state.restarts:
                self._reader.forget()
                self._log.info("restart seen", backend=self.backend.name, restarts=state.restarts)
            good = isinstance(observation, Page | Resting) or (isinstance(observation, Presence) and observation.alive)
            self.snapshot = Snapshot(
                self.backend,
                state,
                now,
                up=before.up if polled is None else good,
                polls=self._polls,
                poll_failures=dict(self._failures),
                poll_duration_seconds=before.poll_duration_seconds if polled is None else polled,
                polled_at=before.polled_at if polled is None else now,
                history=history,
            )
        return question

    def _tell(self, before: State, after: State, change: Change) -> None:
        loud = after.verdict in (Verdict.STUCK, Verdict.STALLED, Verdict.DOWN, Verdict.UNREACHABLE, Verdict.FAILING)
        if after.verdict is before.verdict and not loud:
            return
        log = self._log.warning if loud else self._log.info
        log(
            "verdict",
            backend=self.backend.name,
            verdict=change.verdict,
            was=before.verdict.value,
            reason=change.reason,
            why=change.sentence,
        )

    def _start_asking(self, question: Question) -> None:
        name = f"ask-{self.backend.name}"
        threading.Thread(target=self._ask, args=(question,), name=name, daemon=True).start()

    def _ask(self, question: Question) -> None:
        self._log.info("asked", backend=self.backend.name, rank=question.rank[1] or "0")
        late = self._monotonic() - self.snapshot_page_began() > PAGE_AGE_SECONDS
        if late or self._stop.is_set():
            result, detail = AskResult.FAILED, "not sent: the page it was meant for had grown old"
        else:
            model = self.backend.asked.model or question.rank[0] or None
            try:
                how, deadline = self.backend.how_to_ask, question.deadline_seconds
                result, detail = self._asker.ask(how, question.rank, deadline, question.named, model)
            except Exception as error:  # an unanswered question would be the last one of this backend
                self._log.exception("ask failed unexpectedly", backend=self.backend.name)
                result, detail = AskResult.FAILED, type(error).__name__
        at = self._monotonic()
        if result is AskResult.REJECTED:
            self._say_once(detail)
        else:
            self._log.info("ask ended", backend=self.backend.name, result=result.value, detail=detail)
        self._take(Answer(question.rank, question.sent_at, at, self._wall(), result, detail))

    def close(self) -> None:
        """Let go of connections; for a watch that is polled by hand."""
        self._stop.set()
        self._reader.close()

    def snapshot_page_began(self) -> float:
        """When the reading of the latest good page began (monotonic)."""
        page = self.snapshot.state.last_page
        return page.began_at if page else float("-inf")

    def _say_once(self, detail: str) -> None:
        if detail not in self._rejections:
            self._rejections.add(detail)
            self._log.warning(
                "asks are rejected: configuration or load, no sign of a stuck server",
                backend=self.backend.name,
                detail=detail,
            )
