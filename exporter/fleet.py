"""All loops: start, stop, reload. One thread per backend, so that one that hangs delays no other."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exporter.ask import Asker
from exporter.carry import carried
from exporter.config import Backend
from exporter.discovery import Counts
from exporter.fetch import Fetcher
from exporter.snapshot import Snapshot
from exporter.watch import Watch
from stallwatch.logs import get_logger
from stallwatch.settings import SettingsError

STOP_SECONDS = 1.0
"""Readings under way get this long; the whole program ends within two seconds."""

KEPT_SECONDS = 3600.0
"""A backend that vanished and comes back within so long goes on from what was known of it."""
MOST_KEPT = 10_000


@dataclass(frozen=True)
class Shard:
    """One of `count` exporters that share a configuration; `number` counts from 1."""

    number: int = 1
    count: int = 1

    def has(self, name: str) -> bool:
        """Whether this shard watches the backend: the same division as Prometheus's own `hashmod` on its name."""
        digest = hashlib.md5(name.encode(), usedforsecurity=False).digest()
        return int.from_bytes(digest[8:], "big") % self.count == self.number - 1


def watch_of(backend: Backend) -> Watch:
    """A watch with a real fetcher and a real asker."""
    headers = {"Authorization": f"Bearer {backend.api_key}"} if backend.api_key else {}
    return Watch(backend, Fetcher(backend.url, headers, backend.runtime.metrics_paths), Asker(backend.url, headers))


class Fleet:
    """The watches of all backends, configured and discovered."""

    def __init__(
        self,
        load: Callable[[], Sequence[Backend]],
        make_watch: Callable[[Backend], Watch] = watch_of,
        monotonic: Callable[[], float] = time.monotonic,
        discovered: Callable[[], Counts] = Counts,
    ) -> None:
        self._load, self._make_watch, self._monotonic = load, make_watch, monotonic
        self.discovered = discovered  # what the metrics say of it
        self._watches: dict[str, Watch] = {}
        self._gone: dict[str, tuple[float, Watch]] = {}  # by name: when it vanished, and its watch, which has ended
        self._lock = threading.Lock()
        self._changing = threading.Lock()  # an older list is never applied after a newer one
        self._log = get_logger("fleet")
        self.epoch = uuid.uuid4().hex  # tells one life of the exporter from the next
        self.last_reload_successful = True

    def start(self) -> None:
        """Load the configuration and start every loop. Raises `SettingsError`."""
        with self._changing:
            self._apply(self._load())

    def reload(self) -> str | None:
        """Load again; unchanged backends keep their state. Return the error line, with nothing changed, or None."""
        with self._changing:
            try:
                backends = self._load()
            except SettingsError as error:
                self.last_reload_successful = False
                self._log.error("reload failed", error=str(error))
                return str(error)
            self._apply(backends)
        self.last_reload_successful = True
        self._log.info("reloaded", backends=len(backends))
        return None

    def update(self, current: Callable[[], Sequence[Backend]]) -> None:
        """Watch what discovery found meanwhile; the configuration is not read again."""
        with self._changing:
            backends = current()
            self._apply(backends)
        self._log.info("discovery applied", backends=len(backends))

    def _apply(self, backends: Sequence[Backend]) -> None:
        with self._lock:
            now = self._monotonic()
            wanted = {backend.name: backend for backend in backends}
            for name in [n for n, w in self._watches.items() if wanted.get(n) != w.configured]:
                watch = self._watches.pop(name)
                watch.stop()
                self._gone.pop(name, None)
                self._gone[name] = (now, watch)
            new = [backend for backend in wanted.values() if backend.name not in self._watches]
            for number, backend in enumerate(new):
                watch = self._make_watch(backend)
                if backend.name in self._gone:
                    self._go_on(watch, *self._gone.pop(backend.name), now)
                self._watches[backend.name] = watch
                watch.start(backend.limits.poll_interval_seconds * number / max(1, len(new)))
            while self._gone:  # oldest first
                name, (left_at, _) = next(iter(self._gone.items()))
                if now - left_at <= KEPT_SECONDS and len(self._gone) <= MOST_KEPT:
                    break
                del self._gone[name]

    def _go_on(self, watch: Watch, left_at: float, before: Watch, now: float) -> None:
        """Give a new watch what is still true of its backend; nothing that is held against it."""
        if now - left_at > KEPT_SECONDS:
            return
        old, new = before.configured, watch.configured
        state = carried(
            before.snapshot.state,
            now,
            moved=old.url != new.url,
            same_kind=old.runtime.name == new.runtime.name,
            away=now > left_at,
        )
        watch.snapshot = dataclasses.replace(watch.snapshot, state=state, history=before.snapshot.history)

    def snapshots(self) -> list[Snapshot]:
        """The newest snapshot of every backend, in the order of their names."""
        with self._lock:
            return [self._watches[name].snapshot for name in sorted(self._watches)]

    def snapshot(self, name: str) -> Snapshot | None:
        """The newest snapshot of one backend, or None if there is no such backend."""
        with self._lock:
            watch = self._watches.get(name)
        return watch.snapshot if watch else None

    def halt(self) -> None:
        """Tell every loop to end after the reading under way; returns at once."""
        with self._lock:
            for watch in self._watches.values():
                watch.stop()

    def stop(self) -> bool:
        """End every loop within a second in all; return whether all ended, or a reading that hangs was left behind."""
        self.halt()
        with self._lock:
            watches = list(self._watches.values())
        deadline = time.monotonic() + STOP_SECONDS
        left = [watch for watch in watches if not watch.join(max(0.0, deadline - time.monotonic()))]
        return not left
