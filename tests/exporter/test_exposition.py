"""The text format, held byte for byte against the library's own rendering."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from exporter.exposition import of_backend, render


class Registry:
    """What the library renders: something that has families."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> tuple[Metric, ...]:
        return self._families


LABELS = st.dictionaries(st.sampled_from(["backend", "group", "url", "runtime"]), st.text(), max_size=4)
VALUES = st.floats() | st.integers(min_value=-(2**60), max_value=2**60) | st.sampled_from([0.0, -0.0, 1.0, math.nan])


@given(st.lists(st.tuples(LABELS, VALUES), max_size=5), st.text())
def test_same_bytes_as_the_library(rows: list[tuple[dict[str, str], float]], text: str) -> None:
    """Whatever labels, values and help texts hold."""
    gauge, counter = GaugeMetricFamily("one", text), CounterMetricFamily("two", text)
    for labels, value in rows:
        gauge.samples.append(Sample("one", labels, value))
        counter.samples.append(Sample("two_total", labels, value))
    assert render([gauge, counter]) == generate_latest(Registry(gauge, counter))  # type: ignore[arg-type]


def test_labels_that_are_kept_are_rendered_alike() -> None:
    """Their text is made once; quotes, backslashes and line ends are escaped in it."""
    family = GaugeMetricFamily("one", "Help.")
    for value in ('a"b', "a\\b", "a\nb", "ü"):
        family.samples.append(Sample("one", of_backend(value, "reason", value), 1.0))
        family.samples.append(Sample("one", of_backend(value), -0.0))
    assert render([family]) == generate_latest(Registry(family))  # type: ignore[arg-type]
    assert of_backend("a", "reason", "x") is of_backend("a", "reason", "x")
