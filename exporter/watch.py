"""The loop of one backend: fetch, parse, advance, publish. Questions are asked beside the loop, never in it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from exporter.asking import PAGE_AGE_SECONDS
from exporter.config import Backend
from exporter.evidence import sentence
from exporter.fetch import FetchFailed
from exporter.model import (
    Answer,
    AskResult,
    Failure,
    FailureReason,
    Observation,
    Page,
    Presence,
    Question,
    RankKey,
    Verdict,
)
from exporter.page import PageError, PageParser
from exporter.snapshot import Change, Snapshot
from exporter.state import State
from exporter.verdict import advance
from stallwatch.logs import get_logger

MAX_PAGE_BYTES = 8 * 1024 * 1024


class Fetching(Protocol):
    """The readings a watch needs; `fetch.Fetcher` is the real one."""

    def page(self, timeout_seconds: float, max_bytes: int) -> bytes: ...
    def alive(self, timeout_seconds: float) -> bool | None: ...
    def models(self, timeout_seconds: float) -> bool: ...
    def paused(self, timeout_seconds: float) -> bool: ...
    def forget_pause(self) -> None: ...
    def close(self) -> None: ...


class Asking(Protocol):
    """One short request; `ask.Asker` is the real one."""

    def ask(self, rank: RankKey, deadline_seconds: float, named: bool, model: str | None) -> tuple[AskResult, str]: ...


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
        self.backend = backend
        self._fetcher, self._asker = fetcher, asker
        self._parser = PageParser(backend.runtime)
        self._monotonic, self._wall = monotonic, wall
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pause_check: threading.Thread | None = None
        self._paused_at = float("-inf")  # when the server last said that it was paused
        self._log = get_logger("watch")
        self._rejections: set[str] = set()
        self._failures: Counter[str] = Counter()
        self._polls = 0
        now = monotonic()
        self.snapshot = Snapshot(backend, State(), now)

    def start(self, delay_seconds: float = 0.0) -> None:
        """Start polling, the first time after `delay_seconds`, so that a fleet does not poll in step."""
        name = f"watch-{self.backend.name}"
        self._thread = threading.Thread(target=self._run, args=(delay_seconds,), name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the loop to end; it does at the end of the reading under way."""
        self._stop.set()

    def join(self, timeout_seconds: float) -> None:
        """Wait for the loop to end; a hanging reading is left to its deadline."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

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
        self._fetcher.close()

    def poll(self) -> None:
        """One reading, taken into the state and published."""
        began = self._monotonic()
        proxy = self.backend.proxy or bool(self.snapshot.state.proxy)
        observation = self._presence() if proxy else self._observe(began)
        self._polls += 1
        if isinstance(observation, Failure):
            self._failures[observation.reason.value] += 1
        question = self._take(observation, polled=self._monotonic() - began)
        if question is not None:
            self._start_asking(question)

    def _presence(self) -> Presence:
        alive = self._fetcher.models(self.backend.limits.poll_timeout_seconds)
        return Presence(self._monotonic(), self._wall(), alive)

    def _observe(self, began: float) -> Page | Failure:
        timeout = self.backend.limits.poll_timeout_seconds
        try:
            body = self._fetcher.page(timeout, MAX_PAGE_BYTES)
            at = self._monotonic()
            reading = self._parser.parse(body)
        except FetchFailed as failed:
            return self._failure(began, failed.reason, failed.detail, failed.status)
        except PageError as error:
            return self._failure(began, error.reason, str(error), 200)
        return Page(began, at, self._wall(), reading, self._paused(began))

    def _paused(self, began: float) -> bool:
        """Whether the server said so since the page before this one; it is asked beside the loop when a page stands.

        A frozen engine holds the answer to /is_sleeping for ever, which must not delay the next page.
        """
        checking = self._pause_check is not None and self._pause_check.is_alive()
        if self.snapshot.state.stands_still and not checking:
            name = f"pause-{self.backend.name}"
            self._pause_check = threading.Thread(target=self._check_pause, name=name, daemon=True)
            self._pause_check.start()
        limits = self.backend.limits
        return began - self._paused_at <= 2 * limits.poll_interval_seconds + limits.poll_timeout_seconds

    def _check_pause(self) -> None:
        began = self._monotonic()
        if self._fetcher.paused(self.backend.limits.poll_timeout_seconds):
            self._paused_at = began
        else:
            self._paused_at = float("-inf")

    def _failure(self, began: float, kind: FailureReason, detail: str, status: int | None) -> Failure:
        alive = None
        if kind not in (FailureReason.REFUSED, FailureReason.LOADING):
            alive = self._fetcher.alive(self.backend.limits.poll_timeout_seconds)
        return Failure(began, self._monotonic(), self._wall(), kind, detail, status, alive)

    def _take(self, observation: Observation, polled: float | None = None) -> Question | None:
        with self._lock:
            before, now = self.snapshot, self._monotonic()
            state, question = advance(before.state, observation, self.backend.limits, now)
            history = before.history
            was, now_is = before.state.judgement, state.judgement
            if (was.verdict, was.reason) != (now_is.verdict, now_is.reason):
                changed = Change(
                    observation.wall, state.verdict.value, state.judgement.reason, sentence(state, self.backend.limits)
                )
                history = (*history, changed)[-50:]
                self._tell(before.state, state, changed)
            if state.restarts != before.state.restarts:
                self._fetcher.forget_pause()
                self._log.info("restart seen", backend=self.backend.name, restarts=state.restarts)
            good = isinstance(observation, Page) or (isinstance(observation, Presence) and observation.alive)
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
            model = self.backend.ask_model or question.rank[0] or None
            try:
                result, detail = self._asker.ask(question.rank, question.deadline_seconds, question.named, model)
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
        self._fetcher.close()

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
