"""The exporter's configuration: YAML to validated, frozen settings, or one error that names the path."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from exporter.model import AskWhen, Limits
from exporter.runtimes import AskPath, HowToAsk, Runtime, builtin
from stallwatch.settings import Name, Seconds, SettingsError, Strict, Url, load_yaml, read_secret

LIMIT_KEYS = tuple(f.name for f in dataclasses.fields(Limits) if f.name.endswith("_seconds"))
"""Every limit that a file or a flag may set, with its unit in its name."""


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


class AskSettings(Strict):
    """How and when a short request is sent to this backend."""

    when: AskWhen = Field(default=AskWhen.DOUBTFUL, strict=False)
    api_key_file: str | None = None
    model: str | None = None
    path: AskPath | None = None


class BackendSettings(Strict):
    """One model server to watch."""

    name: Name
    url: Url
    runtime: str = "vllm"
    group: Name | None = None
    proxy: bool = False
    ask: AskSettings = AskSettings()
    limits: LimitSettings = LimitSettings()

    @field_validator("runtime")
    @classmethod
    def _runtime_is_known(cls, name: str) -> str:
        if name not in builtin():
            raise ValueError(f"must be one of {', '.join(sorted(builtin()))}")
        return name


class ExporterSettings(Strict):
    """The whole file."""

    poll_interval_seconds: Seconds = 5.0
    poll_timeout_seconds: Seconds = 5.0
    limits: LimitSettings = LimitSettings()
    backends: Annotated[list[BackendSettings], Field(min_length=1)]

    @field_validator("backends")
    @classmethod
    def _names_are_unique(cls, backends: list[BackendSettings]) -> list[BackendSettings]:
        seen: set[str] = set()
        for backend in backends:
            if backend.name in seen:
                raise ValueError(f"the name {backend.name} is used twice")
            seen.add(backend.name)
        return backends


@dataclass(frozen=True)
class Backend:
    """A backend with everything resolved: its runtime, its limits, its secrets read from their files."""

    name: str
    url: str
    group: str
    runtime: Runtime
    limits: Limits
    how_to_ask: HowToAsk
    proxy: bool = False
    ask_model: str | None = None
    api_key: str | None = dataclasses.field(default=None, repr=False)


def load(path: Path, overrides: Mapping[str, float] | None = None) -> list[Backend]:
    """Read the file; `overrides` are limits given as flags. Raises `SettingsError`: one line naming the path."""
    settings = load_yaml(path, ExporterSettings)
    shared = {
        "poll_interval_seconds": settings.poll_interval_seconds,
        "poll_timeout_seconds": settings.poll_timeout_seconds,
        **_given(settings.limits),
        **(overrides or {}),
    }
    return [_resolve(path, number, backend, shared) for number, backend in enumerate(settings.backends)]


def _resolve(path: Path, number: int, settings: BackendSettings, shared: Mapping[str, float]) -> Backend:
    key = None
    if settings.ask.api_key_file is not None:
        try:
            key = read_secret(settings.ask.api_key_file)
        except SettingsError as error:
            raise SettingsError(f"{path}: backends[{number}].ask.api_key_file: {error}") from error
    resolved = backend(
        settings.name,
        settings.url,
        builtin()[settings.runtime],
        {**shared, **_given(settings.limits)},
        group=settings.group or settings.name,
        ask=settings.ask,
        proxy=settings.proxy,
        api_key=key,
    )
    suspect, stuck = resolved.limits.suspect_after_seconds, resolved.limits.stuck_after_seconds
    if suspect > stuck:
        raise SettingsError(
            f"{path}: backends[{number}].limits: suspect_after_seconds ({suspect:g}) must not be above "
            f"stuck_after_seconds ({stuck:g})"
        )
    return resolved


def backend(
    name: str,
    url: str,
    runtime: Runtime,
    limits: Mapping[str, float],
    *,
    group: str = "",
    ask: AskSettings | None = None,
    proxy: bool = False,
    api_key: str | None = None,
) -> Backend:
    """A resolved backend; `limits` go before the runtime's own."""
    ask = ask or AskSettings()
    how = runtime.ask if ask.path is None else HowToAsk.model_validate({**runtime.ask.model_dump(), "path": ask.path})
    resolved = Limits(**{**runtime.limits, **limits}, ask_when=ask.when, names_ranks=how.rank_header is not None)
    return Backend(name, url, group or name, runtime, resolved, how, proxy, ask.model, api_key)


def _given(limits: LimitSettings) -> dict[str, float]:
    return {key: value for key, value in limits.model_dump().items() if value is not None}
