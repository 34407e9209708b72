"""Families to the Prometheus text format, for a page of many thousands of samples.

The library's own rendering looks anew at every name and label of every sample: at 46 samples for each of 1,000
backends that was most of a scrape, and made polls late meanwhile. Here the text of a set of labels is made once and
kept from scrape to scrape. What comes out is byte for byte what the library would write, which the tests hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

KEPT_LABELS = 2**18
"""Sets of labels whose text is kept: 30 for each of 8,000 backends, at a third of a kilobyte each."""
_SUFFIX = {"counter": "_total", "info": "_info"}
_number: Callable[[float], str] = floatToGoString
_FREQUENT = {float(n): _number(n) for n in range(1, 1000)}  # not zero: it equals -0.0


class Labels(dict[str, str]):
    """A sample's labels, with the text that they have on a page."""

    __slots__ = ("text",)

    def __init__(self, labels: dict[str, str]) -> None:
        super().__init__(labels)
        self.text = _text(labels)


@lru_cache(maxsize=KEPT_LABELS)
def of_backend(backend: str, label: str | None = None, value: str = "") -> Labels:
    """The labels of a backend's sample, with one more label if it has one; shared, not to be changed."""
    return Labels({"backend": backend} if label is None else {"backend": backend, label: value})


def render(families: Iterable[Metric]) -> bytes:
    """Render gauges and counters; samples have neither timestamps nor exemplars."""
    lines: list[str] = []
    for family in families:
        name = family.name + _SUFFIX.get(family.type, "")
        described = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {name} {described}\n# TYPE {name} {family.type}\n")
        for sample in family.samples:
            labels, value = sample.labels, sample.value
            text = labels.text if isinstance(labels, Labels) else _text(labels)
            lines.append(f"{sample.name}{text} {_FREQUENT.get(value) or _number(value)}\n")
    return "".join(lines).encode()


def _text(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(labels[key])}"' for key in sorted(labels)) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
