"""A small client of Prometheus's query API: bounded range queries, and label values in quotes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from stallwatch.http import Client, HttpFailed
from stallwatch.settings import SettingsError

MOST_POINTS = 4400
"""Of one series. Prometheus itself refuses more than 11,000; a span that is longer is read in longer steps."""
MOST_SERIES = 500
MAX_BYTES = 32 * 1024 * 1024
TIMEOUT_SECONDS = 20.0
_SAID = 200


class PrometheusFailed(Exception):
    """It gave no usable answer; the text is one line."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series: its labels, and its (Unix seconds, value) pairs; values that are no finite number are left out."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


def quoted(value: str) -> str:
    """A label value in quotes: nothing in it can end the string."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def step_for(start: float, end: float) -> int:
    """Whole seconds between two points, so that a span (Unix seconds) has at most `MOST_POINTS`."""
    return max(1, math.ceil((end - start) / MOST_POINTS))


class Prometheus:
    """One server. Every exchange has a deadline and a cap on its size."""

    def __init__(self, url: str) -> None:
        """Raises `SettingsError` if the address is none that can be asked."""
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good or "@" in parts.netloc or parts.query or parts.fragment or not url.isprintable() or " " in url:
            raise SettingsError("--prometheus: must be an http or https address without credentials, query or fragment")
        self.url = url.rstrip("/")
        self._client = Client()

    def close(self) -> None:
        """Close the connection that is kept."""
        self._client.close()

    def range(self, query: str, start: float, end: float, step: int) -> list[Series]:
        """The values of an expression at `start`, `start` + `step` and so on to `end`. Raises `PrometheusFailed`."""
        asked = {
            "query": query,
            "start": f"{start:.3f}",
            "end": f"{end:.3f}",
            "step": str(step),
            "timeout": f"{TIMEOUT_SECONDS:g}s",
        }
        url = f"{self.url}/api/v1/query_range?{urlencode(asked, quote_via=quote)}"
        try:
            answer = self._client.request("GET", url, timeout_seconds=TIMEOUT_SECONDS, max_bytes=MAX_BYTES)
        except HttpFailed as failed:
            raise PrometheusFailed(f"{self.url}: {failed.detail}") from failed
        data = self._data(answer.status, answer.body)
        try:
            if data["resultType"] != "matrix" or len(data["result"]) > MOST_SERIES:
                raise ValueError(data["resultType"])
            return [Series(_labels(one["metric"]), _points(one["values"])) for one in data["result"]]
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise PrometheusFailed(f"{self.url}: an answer in an unknown shape") from error

    def _data(self, status: int, body: bytes) -> Any:
        try:
            content = json.loads(body)
            if content["status"] == "success":
                return content["data"]
            said = str(content["error"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise PrometheusFailed(
                f"{self.url}: status {status}, and no answer of Prometheus's API: is a Prometheus there?"
            ) from None
        raise PrometheusFailed(f"{self.url}: {''.join(c if c.isprintable() else ' ' for c in said)[:_SAID]}")


def _labels(metric: Mapping[Any, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in metric.items()}


def _points(values: Sequence[Any]) -> list[tuple[float, float]]:
    pairs = [(float(at), float(value)) for at, value in values]
    return [(at, value) for at, value in pairs if math.isfinite(at) and math.isfinite(value)]
