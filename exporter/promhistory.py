"""Pages of model servers from what a Prometheus has stored: raw samples, an hour at a time, in constant memory.

A range selector gives every sample with the instant of its scrape. The samples of one scrape share that instant, so
that they make the page again that was scraped. Nothing is interpolated, and no value is carried over a gap.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from exporter.runtimes import ROLES, Runtime
from stallwatch.http import Client, HttpFailed
from stallwatch.settings import SettingsError

CHUNK_SECONDS = 3600.0
SMALLEST_CHUNK_SECONDS = 60.0
MAX_ANSWER_BYTES = 32 * 1024 * 1024
DEFAULT_TIMEOUT_SECONDS = 60.0
_TARGET_LABELS = frozenset({"job", "instance"})
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SAID = 300
"""So much of what a server says is shown in an error."""


class HistoryError(SettingsError):
    """Prometheus cannot be read, refuses, or has no such series; one line."""


class NoSeriesError(HistoryError):
    """Nothing that the selector takes is stored for this range."""


class _TooMuch(Exception):
    """The answer is larger than either side allows; a shorter range may pass."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one scrape of one target stored: a page in the text format; b"" if only `up` is there, which is 0 then."""

    wall: float
    body: bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """Everything up to `end` (Unix seconds) that was not in the chunk before, by target, in the order of time."""

    end: float
    scrapes: Mapping[str, Sequence[Scrape]]


@dataclass
class History:
    """One Prometheus, and a runtime's series in it that `selector` takes, once they are found.

    `warnings` collects what Prometheus itself warns of, such as a part of its storage that did not answer.
    """

    url: str
    runtime: Runtime
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    token: str | None = None
    selector: str = ""
    warnings: set[str] = field(default_factory=set)
    _labels: frozenset[str] = _TARGET_LABELS

    def __post_init__(self) -> None:
        self._client = Client({"Authorization": f"Bearer {self.token}"} if self.token else None)

    def close(self) -> None:
        """Close the connection that is kept."""
        self._client.close()

    def find(self, selector: str, start: float, end: float) -> None:
        """Take a selector (matchers without braces) if it finds something; learn which labels are the target's own.

        Raises `HistoryError`; `NoSeriesError` if no series of work is in the range.
        """
        self.selector = selector
        work = _names(self.runtime, ("steps", "tokens", "ended"))
        found = self._series(work, start, end)
        if not (isinstance(found, list) and found):
            raise NoSeriesError(f"{self.url}: no series of {self.runtime.name} in this range for {{{self.selector}}}")
        targets = self._series(["up"], start, end)
        names = {name for labels in targets if isinstance(labels, dict) for name in labels}
        self._labels = _TARGET_LABELS | (names - {"__name__"})

    def _series(self, names: Sequence[str], start: float, end: float) -> Any:
        try:
            return self._ask("series", {"match[]": self._match(names), "start": f"{start:.3f}", "end": f"{end:.3f}"})
        except _TooMuch as much:
            raise HistoryError(f"{self.url}: {much}; name fewer servers by --selector") from None

    def chunks(self, start: float, end: float) -> Iterator[Chunk]:
        """Yield what was scraped after `start` up to `end`, in order. Raises `HistoryError`."""
        size = CHUNK_SECONDS
        match = self._match([*_names(self.runtime, ROLES), *self.runtime.live, "up"])
        while start < end:
            until = min(start + size, end)
            # A second more, since a range is open at its left end in one version and closed in another.
            query = f"{match}[{round((until - start) * 1000) + 1000}ms]"
            try:
                data = self._ask("query", {"query": query, "time": f"{until:.3f}"})
            except _TooMuch as much:
                if size <= SMALLEST_CHUNK_SECONDS:
                    raise HistoryError(f"{self.url}: {much}; name fewer servers by --selector") from None
                size = max(size / 4, SMALLEST_CHUNK_SECONDS)
                continue
            yield Chunk(until, self._scrapes(data, start, until))
            start = until

    def _match(self, names: Sequence[str]) -> str:
        return f'{{__name__=~"{"|".join(names)}",{self.selector}}}'  # the names are of word characters and colons

    def _scrapes(self, data: Any, start: float, end: float) -> Mapping[str, Sequence[Scrape]]:
        lines: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        try:
            if data["resultType"] != "matrix":
                raise ValueError(data["resultType"])
            for series in data["result"]:
                name, target, head = self._head(series["metric"])
                pages = lines[target]
                for instant, value in series.get("values", ()):
                    if start < instant <= end:
                        page = pages[round(instant * 1000)]
                        if name != "up":
                            page.append(f"{head} {value}\n")
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise HistoryError(f"{self.url}: an answer in an unknown shape: {type(error).__name__}") from error
        return {
            target: [Scrape(instant / 1000, "".join(pages[instant]).encode()) for instant in sorted(pages)]
            for target, pages in sorted(lines.items())
        }

    def _head(self, labels: Mapping[str, str]) -> tuple[str, str, str]:
        """A series' name, the target it was scraped from, and how its line began on the target's own page."""
        target = {name: value for name, value in labels.items() if name in self._labels}
        own = {}
        for name, value in labels.items():
            if name == "__name__" or name in target or not _LABEL_NAME.fullmatch(name):
                continue
            was = name.removeprefix("exported_")  # so Prometheus calls a page's label that the target has as well
            own[was if was in target else name] = value
        several = ",".join(f"{k}={quoted(v)}" for k, v in sorted(target.items()) if k not in _TARGET_LABELS)
        where = " ".join(filter(None, (target.get("job", ""), target.get("instance", ""))))
        name = labels["__name__"]
        inner = ",".join(f"{k}={quoted(v)}" for k, v in sorted(own.items()))
        return name, f"{where} {{{several}}}" if several else where, f"{name}{{{inner}}}"

    def _ask(self, what: str, parameters: Mapping[str, Any]) -> Any:
        """The data of an answer. Raises `HistoryError`, or `_TooMuch` if a shorter range may pass."""
        given = {**parameters, "timeout": f"{self.timeout_seconds:g}s"} if what == "query" else parameters
        url = f"{self.url}/api/v1/{what}?{urlencode(given, quote_via=quote)}"
        try:
            answer = self._client.request("GET", url, timeout_seconds=self.timeout_seconds, max_bytes=MAX_ANSWER_BYTES)
        except HttpFailed as failed:
            if failed.reason == "too_large":
                raise _TooMuch(failed.detail) from failed
            raise HistoryError(f"{self.url}: {failed.detail}") from failed
        try:
            content = json.loads(answer.body)
            status, error = content["status"], str(content.get("error", ""))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise HistoryError(
                f"{self.url}: status {answer.status}, and no answer of Prometheus's API: is a Prometheus there?"
            ) from None
        if status != "success":
            text = _one_line(error) or f"status {answer.status}"
            if "too many samples" in error:
                raise _TooMuch(text)
            raise HistoryError(f"{self.url}: {text}")
        if isinstance(said := content.get("warnings"), list) and len(self.warnings) < 10:
            self.warnings.update(_one_line(str(warning)) for warning in said[:10])
        return content.get("data")


def quoted(value: str) -> str:
    """A label value in quotes, for the text format as for PromQL."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:_SAID].strip()


def _names(runtime: Runtime, roles: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(n for role in roles for source in getattr(runtime, role) for n in source.names))
