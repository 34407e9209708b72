"""Service discovery: the backends of the configuration and of its lists of targets, never two of one name.

A backend that the file names goes before a discovered one, and one that is watched already before a new one.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from exporter.config import Backend, BackendSettings, Config, DiscoverySettings
from exporter.discovered import Unusable, settings_of
from exporter.kubernetes_sd import PodSource
from exporter.relabel import Rule, relabel
from exporter.source_settings import FileSettings, HttpSettings, KubernetesSettings
from exporter.sources import MECHANISMS, FileSource, HttpSource, Labels, Source
from stallwatch.logs import get_logger
from stallwatch.settings import SettingsError

MOST_BACKENDS = 10_000
"""Each is a thread and a connection; more belong to several exporters, by --shard."""
TICK_SECONDS = 2.0
REFUSALS = ("unusable", "duplicate_name", "duplicate_url", "too_many")
"""Why a discovered target is not watched. A closed list: it is a metric label."""
LOGGED = 100
"""Refusals that get a line of their own."""

_Settings = FileSettings | HttpSettings | KubernetesSettings


@dataclass(frozen=True)
class Refusal:
    """A target that is not watched, and why."""

    reason: str
    backend: str
    detail: str


@dataclass(frozen=True)
class Counts:
    """What the metrics say of discovery: failures so far, by mechanism; backends and refusals now."""

    failures: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(MECHANISMS, 0))
    backends: int = 0
    refused: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSALS, 0))


@dataclass(frozen=True)
class _Entry:
    settings: DiscoverySettings
    sources: tuple[Source, ...]
    rules: tuple[Rule, ...]


class Discovery:
    """All backends that shall be watched. `load` reads everything again; `tick` looks for changes of the lists."""

    def __init__(
        self,
        read: Callable[[], Config],
        keep: Callable[[str], bool] = bool,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._keep, self._monotonic = read, keep, monotonic
        self._config: Config | None = None
        self._entries: tuple[_Entry, ...] = ()
        self._sources: dict[str, Source] = {}
        self._failures: Counter[str] = Counter(dict.fromkeys(MECHANISMS, 0))
        self._seen: tuple[int, ...] = ()
        self._watched: Mapping[str, str] = {}
        self._made: dict[str, tuple[BackendSettings, Backend]] = {}  # by name, as it was last resolved
        self._said: set[Refusal] = set()
        self._counts = Counts()
        self._log = get_logger("discovery")

    def load(self, *, checking: bool = False) -> list[Backend]:
        """Read the configuration and every list again. Raises `SettingsError`, with nothing changed.

        Servers are asked beside the caller; a list whose source is still configured stays until its next answer.
        `checking`: only files are read, and what is wrong with them is left to `file_errors`.
        """
        config = self._read()
        sources: dict[str, Source] = {}
        entries = []
        for entry in config.discovery:
            found = []
            configured = (*entry.file_sd_configs, *entry.http_sd_configs, *entry.kubernetes_sd_configs)
            for settings in cast("tuple[_Settings, ...]", configured):
                key = f"{config.path.parent} {settings!r}"
                if key not in sources:
                    sources[key] = self._sources.get(key) or self._source(config.path.parent, settings, quiet=checking)
                found.append(sources[key])
            entries.append(_Entry(entry, tuple(found), tuple(Rule(rule) for rule in entry.relabel_configs)))
        self._config, self._sources, self._entries = config, sources, tuple(entries)
        for source in sources.values():
            if not checking or isinstance(source, FileSource):
                source.tick(self._monotonic(), force=True)
        return self.current()

    def _source(self, folder: Path, settings: _Settings, *, quiet: bool) -> Source:
        if isinstance(settings, FileSettings):
            return FileSource(settings, folder, self._failures, quiet=quiet)
        if isinstance(settings, KubernetesSettings):
            return PodSource(settings, self._failures)
        return HttpSource(settings, self._failures)

    def current(self) -> list[Backend]:
        """The backends by what the lists say now."""
        assert self._config is not None
        self._seen = self._versions()
        refusals: list[Refusal] = []
        wanted = list(_usable(self._entries, refusals))
        fixed = self._config.backends
        wanted = _without_duplicates(wanted, fixed, self._watched, refusals)
        found = self._resolved([settings for settings in wanted if self._keep(settings.name)], refusals)
        refusals += [Refusal("too_many", b.name, f"above {MOST_BACKENDS}") for b in found[MOST_BACKENDS:]]
        found = found[:MOST_BACKENDS]
        self._watched = {settings.name: settings.url for settings in wanted}  # of every shard: all decide alike
        self._tell(refusals)
        by_reason = Counter(refusal.reason for refusal in refusals)
        self._counts = Counts(backends=len(found), refused={reason: by_reason[reason] for reason in REFUSALS})
        return [*(backend for backend in fixed if self._keep(backend.name)), *found]

    def _resolved(self, wanted: Iterable[BackendSettings], refusals: list[Refusal]) -> list[Backend]:
        assert self._config is not None
        made: dict[str, tuple[BackendSettings, Backend]] = {}
        for settings in wanted:
            known, backend = self._made.get(settings.name, (None, None))
            try:
                backend = self._config.resolve(settings, "its labels")
            except SettingsError as error:
                if known != settings or backend is None:
                    refusals.append(Refusal("unusable", settings.name, str(error)))
                    continue
                # A key that cannot be read for once ends no watch.
            made[settings.name] = settings, backend
        self._made = made
        return [backend for _, backend in made.values()]

    def _tell(self, refusals: Sequence[Refusal]) -> None:
        new = [refusal for refusal in refusals if refusal not in self._said]
        for refusal in new[:LOGGED]:
            self._log.error("target refused", reason=refusal.reason, backend=refusal.backend, why=refusal.detail)
        if new[LOGGED:]:
            self._log.error("more targets refused", number=len(new) - LOGGED)
        self._said = set(refusals)

    def counts(self) -> Counts:
        """For the metrics."""
        return Counts(dict(self._failures), self._counts.backends, self._counts.refused)

    def file_errors(self) -> list[str]:
        """One line for each file of targets that is broken now."""
        return [line for source in self._sources.values() if isinstance(source, FileSource) for line in source.errors()]

    def tick(self) -> bool:
        """Look at every source; return whether a list is another one than `current` last saw."""
        for source in self._sources.values():
            source.tick(self._monotonic())
        return self._versions() != self._seen

    def run(self, stop: threading.Event, changed: Callable[[], object]) -> None:
        """Tick until `stop`; call `changed` when a list has changed."""
        while not stop.wait(TICK_SECONDS):
            try:
                if self.tick():
                    changed()
            except Exception:  # one bad list must not end the looking
                self._log.exception("discovery failed unexpectedly")

    def _versions(self) -> tuple[int, ...]:
        return tuple(source.version for source in self._sources.values())


def _usable(entries: Iterable[_Entry], refusals: list[Refusal]) -> Iterable[BackendSettings]:
    """Settings of every target that its relabelling kept, in the order of the configuration."""
    for entry in entries:
        for labels in (labels for source in entry.sources for labels in source.targets()):
            changed = relabel(_with_defaults(labels), entry.rules)
            if changed is None:
                continue
            try:
                yield settings_of(changed, entry.settings.ask, entry.settings.limits)
            except Unusable as unusable:
                name = changed.get("backend") or changed.get("__address__", "")
                refusals.append(Refusal("unusable", name[:100], str(unusable)))


def _with_defaults(labels: Labels) -> Labels:
    return {"__scheme__": "http", "__metrics_path__": "/metrics", **labels}


def _without_duplicates(
    wanted: Sequence[BackendSettings],
    fixed: Sequence[Backend],
    watched: Mapping[str, str],
    refusals: list[Refusal],
) -> list[BackendSettings]:
    """One backend a name and one name an address. Who is watched already goes first, so that a flood displaces nobody;
    else the first one wins."""
    by_name: dict[str, BackendSettings] = {}
    by_url: dict[str, str] = {backend.url: backend.name for backend in fixed}
    names = {backend.name: backend.url for backend in fixed}
    for settings in sorted(wanted, key=lambda settings: watched.get(settings.name) != settings.url):
        name, url = settings.name, settings.url
        known = by_name.get(name)
        if known == settings or names.get(name) == url:
            continue
        if known is not None or name in names:
            other = known.url if known is not None else names[name]
            refusals.append(Refusal("duplicate_name", name, f"{url} has the name of {other}"))
        elif url in by_url:
            refusals.append(Refusal("duplicate_url", name, f"{url} is already watched as {by_url[url]}"))
        else:
            by_name[name], by_url[url] = settings, name
    return list(by_name.values())
