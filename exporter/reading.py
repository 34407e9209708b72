"""One observation of a backend from the wire: its page, or whatever may be read in place of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from exporter.config import Backend
from exporter.fetch import FetchFailed
from exporter.model import Failure, FailureReason, Observation, Page, Presence, Resting
from exporter.page import PageError, detect, parser_of
from exporter.runtimes import builtin
from exporter.state import State
from stallwatch.logs import get_logger

MAX_PAGE_BYTES = 8 * 1024 * 1024
_ONE_AT_A_TIME = threading.Lock()
"""Pages are parsed one after the other: the interpreter runs one thread at a time anyway, and a queue at this lock
sleeps, while one for the interpreter does not."""


class Fetching(Protocol):
    """The readings a watch needs; `fetch.Fetcher` is the real one."""

    def page(self, timeout_seconds: float, max_bytes: int) -> bytes: ...
    def alive(self, timeout_seconds: float) -> bool | None: ...
    def models(self, timeout_seconds: float) -> bool: ...
    def paused(self, timeout_seconds: float) -> bool: ...
    def look(self, path: str, timeout_seconds: float) -> Mapping[str, object]: ...
    def use_paths(self, metrics_paths: Sequence[str]) -> None: ...
    def forget_pause(self) -> None: ...
    def close(self) -> None: ...


class Reader:
    """Reads one backend for the thread of its loop; what may take long is read beside it."""

    def __init__(
        self,
        backend: Backend,
        fetcher: Fetching,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.backend = backend  # knows, in time, what kind of server it is
        self._fetcher, self._parser = fetcher, parser_of(backend.runtime)
        self._monotonic, self._wall = monotonic, wall
        self._pause_check: threading.Thread | None = None
        self._paused_at = float("-inf")  # when the server last said that it was paused
        self._log = get_logger("reader")

    def forget(self) -> None:
        """Another process may have other endpoints."""
        self._fetcher.forget_pause()

    def close(self) -> None:
        """Let go of connections."""
        self._fetcher.close()

    def observe(self, state: State) -> Observation:
        """The next observation, given what is known."""
        began = self._monotonic()
        timeout, first = self.backend.limits.poll_timeout_seconds, self.backend.runtime.look_first
        if self.backend.proxy or state.proxy:
            return Presence(self._monotonic(), self._wall(), self._fetcher.models(timeout))
        if first is not None:
            said = self._fetcher.look(first.path, timeout)
            if said.get(first.asleep) is True:
                return Resting(began, self._monotonic(), self._wall())
            if first.router is not None and said.get(first.router[0]) == first.router[1]:
                return Presence(self._monotonic(), self._wall(), alive=True, why="it says that it is a router")
            if said and self._left_alone(state, began):
                return Resting(began, self._monotonic(), self._wall(), "left_alone")
        return self._read(state, began, timeout)

    def _left_alone(self, state: State, now: float) -> bool:
        """Whether an idle server is left unread, so that it can fall asleep: each reading starts its idle time anew."""
        idle = self.backend.sleep_idle_seconds
        page, limits = state.last_page, self.backend.limits
        if idle is None or page is None or state.last_failure is not None:
            return False
        quiet = all(not rank.in_flight and not rank.misses and not rank.ask for rank in state.ranks.values())
        return quiet and now - page.at < idle + 2 * limits.poll_interval_seconds

    def _read(self, state: State, began: float, timeout: float) -> Page | Failure:
        try:
            body = self._fetcher.page(timeout, MAX_PAGE_BYTES)
            at = self._monotonic()
            if self.backend.undetected:
                self._detect(body)
            with _ONE_AT_A_TIME:
                reading = self._parser.parse(body)
        except FetchFailed as failed:
            return self._failure(began, failed.reason, failed.detail, failed.status)
        except PageError as error:
            return self._failure(began, error.reason, str(error), 200)
        return Page(began, at, self._wall(), reading, self._paused(state, began))

    def _detect(self, body: bytes) -> None:
        runtime = detect(body, self.backend.candidates or builtin().values())
        if runtime is not None:
            self.backend = self.backend.detected(runtime)
            self._parser = parser_of(runtime)
            if runtime.list_at_metrics and body.lstrip().startswith(b"["):
                self._fetcher.use_paths(runtime.metrics_paths)  # text is read again where it was found
            self._log.info("runtime told from the page", backend=self.backend.name, runtime=runtime.name)

    def _paused(self, state: State, began: float) -> bool:
        """Whether the server said so since the page before this one; it is asked beside the loop when a page stands.

        A frozen engine holds the answer to /is_sleeping for ever, which must not delay the next page.
        """
        checking = self._pause_check is not None and self._pause_check.is_alive()
        if state.stands_still and not checking:
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
