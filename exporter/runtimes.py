"""Kinds of model server, as data: which series mean what, how to ask, default limits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from exporter.model import LIMIT_KEYS, AskWhen
from stallwatch.settings import Seconds, Strict, load_yaml

SeriesName = Annotated[str, Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$")]
AskPath = Literal["/v1/completions", "/v1/chat/completions", "/v1/embeddings"]
Labels = Mapping[str, list[str]]

ROLES = ("steps", "tokens", "ended", "running", "waiting", "deferred", "kv_use", "start_time", "awake", "paused")
"""The roles a series can have; `page.parse` knows what to do with each."""


class Source(Strict):
    """One series of a role: counted where every `only` label has a listed value and no `except` label has.

    Several names are one series that was renamed: however many of them a page holds, it counts once.
    """

    series: SeriesName | list[SeriesName]
    only: Labels = {}
    excluded: Labels = Field(default={}, alias="except")

    @property
    def names(self) -> list[str]:
        """Every name it goes by, the present one first."""
        return [self.series] if isinstance(self.series, str) else self.series

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Whether a sample with these labels belongs to the role."""
        return all(labels.get(k) in v for k, v in self.only.items()) and not any(
            labels.get(k) in v for k, v in self.excluded.items()
        )


class HowToAsk(Strict):
    """Where a short request goes, and the header that names a rank (None: the runtime cannot name one)."""

    path: AskPath = "/v1/completions"
    rank_header: str | None = None
    when: AskWhen = Field(default=AskWhen.DOUBTFUL, strict=False)


class LookFirst(Strict):
    """A path that is read before /metrics, since reading that would wake or load what sleeps.

    `asleep`: a key that is true while the server sleeps. `router`: a key and the value by which a router is known.
    """

    path: str
    asleep: str
    router: list[str] | None = Field(default=None, min_length=2, max_length=2)


class Runtime(Strict):
    """One kind of server. `limits` are its defaults where they differ from `model.Limits`.

    `live`: series one of which must be on the page for its counters to be live; without them a stand of the
    counters means little, and nobody with work in flight is convicted. Empty: always live.
    `list_at_metrics`: /metrics is a JSON list that reading drains, so that it is known by it and read no more.
    `measured: false`: a server without metrics. `seen`: how it is known that all this is so.
    """

    name: str
    seen: str = ""
    measured: bool = True
    metrics_paths: list[str] = ["/metrics"]
    list_at_metrics: bool = False
    look_first: LookFirst | None = None
    live: list[SeriesName] = []
    rank_label: str | None = None
    model_label: str | None = None
    steps: list[Source] = []
    tokens: list[Source] = []
    ended: list[Source] = []
    running: list[Source] = []
    waiting: list[Source] = []
    deferred: list[Source] = []
    kv_use: list[Source] = []
    start_time: list[Source] = []
    awake: list[Source] = []
    paused: list[Source] = []
    ask: HowToAsk = HowToAsk()
    limits: Mapping[str, Seconds] = {}

    @field_validator("limits")
    @classmethod
    def _limits_are_known(cls, limits: Mapping[str, float]) -> Mapping[str, float]:
        unknown = sorted(set(limits) - set(LIMIT_KEYS))
        if unknown:
            raise ValueError(f"{unknown[0]} is no limit; they are {', '.join(LIMIT_KEYS)}")
        return limits


def load_runtime(path: Path) -> Runtime:
    """A runtime from its file. Raises `SettingsError`: one line naming the path."""
    return load_yaml(path, Runtime)


@cache
def builtin() -> Mapping[str, Runtime]:
    """The runtimes that come with stallwatch, by name."""
    folder = resources.files("exporter") / "runtime_files"
    loaded = [load_runtime(Path(str(entry))) for entry in folder.iterdir() if entry.name.endswith(".yml")]
    return {runtime.name: runtime for runtime in loaded}
