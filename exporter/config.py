"""The exporter's configuration: YAML to validated, frozen settings, or one error that names the path."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from exporter.model import AskWhen, Limits
from exporter.relabel import RelabelSettings
from exporter.runtimes import AskPath, HowToAsk, Runtime, builtin, load_runtime
from exporter.source_settings import FileSettings, HttpSettings, KubernetesSettings
from stallwatch.settings import Name, Seconds, SettingsError, Strict, Url, load_yaml, read_secret

AUTO = "auto"
"""The kind of server is told from its first page."""


class LimitSettings(Strict):
    """Limits as a file names them; what is left out comes from the level above, then from the runtime."""

    suspect_after_seconds: Seconds | None = None
    stuck_after_seconds: Seconds | None = None
    ask_timeout_seconds: Seconds | None = None
    idle_ask_seconds: Seconds | None = None
    startup_grace_seconds: Seconds | None = None
    down_after_seconds: Seconds | None = None
    unreachable_after_seconds: Seconds | None = None
    restart_hold_seconds: Seconds | None = None
    long_prefill_seconds: Seconds | None = None
    restart_unconfirmed_after_seconds: Seconds | None = None


class AskSettings(Strict):
    """How and when a short request is sent to this backend; what is left out comes from its runtime."""

    when: AskWhen | None = Field(default=None, strict=False)
    api_key_file: str | None = None
    model: str | None = None
    path: AskPath | None = None


class BackendSettings(Strict):
    """One model server to watch."""

    name: Name
    url: Url
    runtime: str = AUTO
    group: Name | None = None
    proxy: bool = False
    maintenance: bool = False
    kv_peers: list[Name] = []
    sleep_idle_seconds: Seconds | None = None
    ask: AskSettings = AskSettings()
    limits: LimitSettings = LimitSettings()


class DiscoverySettings(Strict):
    """Lists of targets that share their relabelling, and what all of their backends have in common."""

    file_sd_configs: list[FileSettings] = []
    http_sd_configs: list[HttpSettings] = []
    kubernetes_sd_configs: list[KubernetesSettings] = []
    relabel_configs: list[RelabelSettings] = []
    ask: AskSettings = AskSettings()
    limits: LimitSettings = LimitSettings()


class ExporterSettings(Strict):
    """The whole file. `runtime_files`, relative to it, add kinds of server or replace built-in ones of their name."""

    poll_interval_seconds: Seconds = 5.0
    poll_timeout_seconds: Seconds = 5.0
    limits: LimitSettings = LimitSettings()
    runtime_files: list[str] = []
    backends: list[BackendSettings] = []
    discovery: list[DiscoverySettings] = []

    @model_validator(mode="after")
    def _something_is_watched_once(self) -> ExporterSettings:
        if not self.backends and not self.discovery:
            missing = "backends" not in self.model_fields_set
            raise ValueError("backends: is missing" if missing else "backends: must hold at least 1")
        seen: set[str] = set()
        for backend in self.backends:
            if backend.name in seen:
                raise ValueError(f"backends: the name {backend.name} is used twice")
            seen.add(backend.name)
        return self


@dataclass(frozen=True)
class Backend:
    """A backend with everything resolved: its runtime, its limits, its secrets read from their files.

    `asked` and `given` are what the file said, so that the rest can be resolved again when the runtime is known.
    `sleep_idle_seconds`: the server falls asleep after so long, and is left alone for that.
    """

    name: str
    url: str
    group: str
    runtime: Runtime
    limits: Limits
    how_to_ask: HowToAsk
    asked: AskSettings = dataclasses.field(default_factory=AskSettings)
    given: Mapping[str, float] = dataclasses.field(default_factory=dict)
    proxy: bool = False
    sleep_idle_seconds: float | None = None
    api_key: str | None = dataclasses.field(default=None, repr=False)
    candidates: tuple[Runtime, ...] = ()  # what `auto` may turn out to be

    @property
    def undetected(self) -> bool:
        """Whether the kind of server has still to be told from its page."""
        return self.runtime.name == AUTO

    def detected(self, runtime: Runtime) -> Backend:
        """The same backend, now that its runtime is known."""
        limits, how = _for_runtime(runtime, self.given, self.asked)
        known = self.limits
        limits = dataclasses.replace(limits, maintenance=known.maintenance, kv_peers=known.kv_peers)
        return dataclasses.replace(self, runtime=runtime, limits=limits, how_to_ask=how)


@dataclass(frozen=True)
class Config:
    """The file with everything resolved; discovered backends are resolved when they are found."""

    path: Path
    backends: tuple[Backend, ...]
    discovery: tuple[DiscoverySettings, ...]
    shared: Mapping[str, float]
    runtimes: Mapping[str, Runtime]

    def resolve(self, settings: BackendSettings, where: str) -> Backend:
        """A backend with its runtime, limits and key. Raises `SettingsError`: `where` and the key, then why."""
        return _resolve(where, settings, self.shared, self.runtimes)


def read(path: Path, overrides: Mapping[str, float] | None = None) -> Config:
    """Read the file; `overrides` are limits given as flags. Raises `SettingsError`: one line naming the path."""
    settings = load_yaml(path, ExporterSettings)
    shared = {
        "poll_interval_seconds": settings.poll_interval_seconds,
        "poll_timeout_seconds": settings.poll_timeout_seconds,
        **_given(settings.limits),
        **(overrides or {}),
    }
    extra = [load_runtime(path.parent / name) for name in settings.runtime_files]
    runtimes = {**builtin(), **{runtime.name: runtime for runtime in extra}}
    backends = [_resolve(f"{path}: backends[{n}]", b, shared, runtimes) for n, b in enumerate(settings.backends)]
    for number, entry in enumerate(settings.discovery):
        where = f"{path}: discovery[{number}]"
        _secret(f"{where}.ask.api_key_file", entry.ask.api_key_file)
        for place, http in enumerate(entry.http_sd_configs):
            _secret(f"{where}.http_sd_configs[{place}].bearer_token_file", http.bearer_token_file)
        for place, cluster in enumerate(entry.kubernetes_sd_configs):
            _secret(f"{where}.kubernetes_sd_configs[{place}].bearer_token_file", cluster.bearer_token_file)
    return Config(path, tuple(backends), tuple(settings.discovery), shared, runtimes)


def load(path: Path, overrides: Mapping[str, float] | None = None) -> list[Backend]:
    """The backends that the file names itself. Raises `SettingsError`."""
    return list(read(path, overrides).backends)


def _secret(where: str, file: str | None) -> str | None:
    try:
        return None if file is None else read_secret(file)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error


def _resolve(
    where: str, settings: BackendSettings, shared: Mapping[str, float], runtimes: Mapping[str, Runtime]
) -> Backend:
    if settings.runtime != AUTO and settings.runtime not in runtimes:
        known = ", ".join([AUTO, *sorted(runtimes)])
        raise SettingsError(f"{where}.runtime: must be one of {known}")
    resolved = backend(
        settings.name,
        settings.url,
        runtime_named(settings.runtime, runtimes),
        {**shared, **_given(settings.limits)},
        group=settings.group or settings.name,
        ask=settings.ask,
        proxy=settings.proxy,
        sleep_idle_seconds=settings.sleep_idle_seconds,
        api_key=_secret(f"{where}.ask.api_key_file", settings.ask.api_key_file),
    )
    resolved = dataclasses.replace(
        resolved,
        limits=dataclasses.replace(resolved.limits, maintenance=settings.maintenance, kv_peers=bool(settings.kv_peers)),
        candidates=tuple(runtimes.values()),
    )
    suspect, stuck = resolved.limits.suspect_after_seconds, resolved.limits.stuck_after_seconds
    if suspect > stuck:
        raise SettingsError(
            f"{where}.limits: suspect_after_seconds ({suspect:g}) must not be above stuck_after_seconds ({stuck:g})"
        )
    return resolved


def runtime_named(name: str, runtimes: Mapping[str, Runtime] | None = None) -> Runtime:
    """A runtime by its name, or the one that stands for "told from the page"."""
    if name == AUTO:
        # What sleeps must not be woken, nor a router load a model, before it is known what it is.
        first = next((known.look_first for known in (runtimes or builtin()).values() if known.look_first), None)
        return Runtime(name=AUTO, look_first=first, ask=HowToAsk(when=AskWhen.NEVER))
    return (runtimes or builtin())[name]


def backend(
    name: str,
    url: str,
    runtime: Runtime,
    limits: Mapping[str, float],
    *,
    group: str = "",
    ask: AskSettings | None = None,
    proxy: bool = False,
    sleep_idle_seconds: float | None = None,
    api_key: str | None = None,
) -> Backend:
    """A resolved backend; `limits` go before the runtime's own."""
    asked = ask or AskSettings()
    resolved, how = _for_runtime(runtime, limits, asked)
    return Backend(
        name, url, group or name, runtime, resolved, how, asked, dict(limits), proxy, sleep_idle_seconds, api_key
    )


def _for_runtime(runtime: Runtime, given: Mapping[str, float], asked: AskSettings) -> tuple[Limits, HowToAsk]:
    over = {"path": asked.path, "when": asked.when}
    how = runtime.ask.model_copy(update={key: value for key, value in over.items() if value is not None})
    numbers: dict[str, Any] = {**runtime.limits, **given}
    return Limits(**numbers, ask_when=how.when, names_ranks=how.rank_header is not None), how


def _given(limits: LimitSettings) -> dict[str, float]:
    return {key: value for key, value in limits.model_dump().items() if value is not None}
