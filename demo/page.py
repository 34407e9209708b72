"""Renders the `/metrics` page of the simulated server: pure text from statistics. About 440 samples, 0.5 ms."""

import gc
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from demo.engine import Histogram, Stats
from demo.families import CACHE_CONFIG, ENGINE_FAMILIES, HTTP_COARSE_SECONDS, HTTP_FINE_SECONDS, SLEEP_SECONDS, Family

Labels = tuple[tuple[str, str], ...]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def number(value: float) -> str:
    """A sample value as the Prometheus client writes it: `4.0`, `1.79607725e+09`."""
    text = repr(float(value))
    point = text.find(".")
    if value <= 0 or point <= 6 or "e" in text:
        return text
    digits = (text[:point] + text[point + 1 :]).rstrip("0")
    return f"{digits[0]}.{digits[1:] or '0'}e+{point - 1:02d}"


def _braces(labels: Iterable[tuple[str, str]]) -> str:
    text = ",".join(f'{name}="{value}"' for name, value in sorted(labels))
    return f"{{{text}}}" if text else ""


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _created(name: str, text: str, samples: Iterable[tuple[Labels, float]]) -> list[str]:
    lines = [f"{name}_created{_braces(labels)} {number(at)}" for labels, at in samples]
    return [*_head(f"{name}_created", "gauge", text), *lines] if lines else []


def _bucket_names(name: str, labels: Labels, bounds: tuple[float, ...]) -> list[str]:
    limits = [*(repr(bound) for bound in bounds), "+Inf"]
    buckets = [f"{name}_bucket{_braces((*labels, ('le', limit)))}" for limit in limits]
    return [*buckets, f"{name}_count{_braces(labels)}", f"{name}_sum{_braces(labels)}"]


def _bucket_values(seen: Histogram) -> list[float]:
    cumulative = list(accumulate(seen.counts))
    return [*cumulative, cumulative[-1], seen.sum]


def _value(stats: Stats, key: str) -> list[float]:
    return [stats.values.get(key, 0.0)]


class HttpStats:
    """The HTTP layer's own counters; they move whatever the engine does, and know only the paths used so far."""

    def __init__(self, started_at: float) -> None:
        self._started_at = started_at
        self._fine = Histogram(HTTP_FINE_SECONDS)
        self._totals: dict[Labels, list[float]] = {}  # count, created
        self._requests: dict[Labels, list[float]] = {}  # count, bytes, created
        self._responses: dict[Labels, list[float]] = {}
        self._coarse: dict[Labels, tuple[Histogram, float]] = {}

    def add(
        self, handler: str, method: str, *, status: int, sizes: tuple[int, int], seconds: float, now: float
    ) -> None:
        """Count one answered (or abandoned) call; `sizes` are the bytes of request and response body."""
        by_handler: Labels = (("handler", handler),)
        by_method: Labels = (*by_handler, ("method", method))
        self._totals.setdefault((*by_method, ("status", f"{status // 100}xx")), [0, now])[0] += 1
        for table, size in ((self._requests, sizes[0]), (self._responses, sizes[1])):
            row = table.setdefault(by_handler, [0, 0, now])
            row[0] += 1
            row[1] += size
        self._fine.observe(seconds)
        self._coarse.setdefault(by_method, (Histogram(HTTP_COARSE_SECONDS), now))[0].observe(seconds)

    def lines(self, *, created: bool) -> Iterator[str]:
        """The http_* families."""
        name, text = "http_requests_total", "HTTP calls by handler, method and class of status."
        yield from _head(name, "counter", text)
        yield from (f"{name}{_braces(labels)} {number(row[0])}" for labels, row in self._totals.items())
        if created:
            yield from _created("http_requests", text, ((labels, row[1]) for labels, row in self._totals.items()))
        for name, table in (
            ("http_request_size_bytes", self._requests),
            ("http_response_size_bytes", self._responses),
        ):
            text = "Bytes of body as the header announces them, by handler."
            yield from _head(name, "summary", text)
            for labels, row in table.items():
                yield f"{name}_count{_braces(labels)} {number(row[0])}"
                yield f"{name}_sum{_braces(labels)} {number(row[1])}"
            if created:
                yield from _created(name, text, ((labels, row[2]) for labels, row in table.items()))
        fine: dict[Labels, tuple[Histogram, float]] = {(): (self._fine, self._started_at)}
        for name, text, histograms in (
            ("http_request_duration_highr_seconds", "Duration of all HTTP calls, finely.", fine),
            ("http_request_duration_seconds", "Duration of HTTP calls by handler, coarsely.", self._coarse),
        ):
            yield from _histogram_lines(name, text, histograms, created=created)


def _histogram_lines(
    name: str, text: str, histograms: dict[Labels, tuple[Histogram, float]], *, created: bool
) -> Iterator[str]:
    yield from _head(name, "histogram", text)
    for labels, (seen, _) in histograms.items():
        for series, value in zip(_bucket_names(name, labels, seen.bounds), _bucket_values(seen), strict=True):
            yield f"{series} {number(value)}"
    if created:
        yield from _created(name, text, ((labels, at) for labels, (_, at) in histograms.items()))


def sleep_lines(operations: dict[str, tuple[Histogram, float]], *, created: bool) -> Iterator[str]:
    """The families of sleep mode, which exist from the first `/sleep` or `/wake_up` on."""
    if operations:
        histograms: dict[Labels, tuple[Histogram, float]] = {(("operation", o),): h for o, h in operations.items()}
        name = "vllm:sleep_mode_operation_duration_seconds"
        yield from _histogram_lines(name, "Time one operation of sleep mode took.", histograms, created=created)
        yield from _head("vllm:sleep_mode_operations_in_flight", "gauge", "Operations of sleep mode under way.")
        yield from (f'vllm:sleep_mode_operations_in_flight{{operation="{o}"}} 0.0' for o in operations)


def sleep_histogram() -> Histogram:
    """An empty histogram for `sleep_lines`."""
    return Histogram(SLEEP_SECONDS)


def process_lines(started_at: float) -> Iterator[str]:
    """What the Prometheus client says of its own process; `started_at` is Unix time, given to 10 ms."""
    collections = gc.get_stats()
    for name, key, text in (
        ("python_gc_objects_collected_total", "collected", "Objects that garbage collection freed."),
        ("python_gc_objects_uncollectable_total", "uncollectable", "Objects that it could not free."),
        ("python_gc_collections_total", "collections", "Runs of garbage collection."),
    ):
        yield from _head(name, "counter", text)
        yield from (f'{name}{{generation="{at}"}} {number(row[key])}' for at, row in enumerate(collections))
    major, minor, patch = sys.version_info[:3]
    version: Labels = (("major", str(major)), ("minor", str(minor)), ("patchlevel", str(patch)))
    yield from _head("python_info", "gauge", "Version of Python.")
    implementation = platform.python_implementation()
    whole = (*version, ("implementation", implementation), ("version", platform.python_version()))
    yield f"python_info{_braces(whole)} 1.0"
    with open("/proc/self/statm", encoding="ascii") as file:
        virtual, resident = (int(word) * _PAGE_BYTES for word in file.read().split()[:2])
    for name, kind, value in (
        ("process_virtual_memory_bytes", "gauge", virtual),
        ("process_resident_memory_bytes", "gauge", resident),
        ("process_start_time_seconds", "gauge", round(started_at, 2)),
        ("process_cpu_seconds_total", "counter", round(time.process_time() * _TICKS) / _TICKS),
        ("process_open_fds", "gauge", len(os.listdir("/proc/self/fd"))),
        ("process_max_fds", "gauge", resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    ):
        yield from _head(name, kind, f"{name.replace('_', ' ').capitalize()}, as the kernel says.")
        yield f"{name} {number(value)}"


class _Slot(NamedTuple):
    """Series of one rank whose names are rendered once: their values follow on every page."""

    names: list[str]
    stats: Stats
    read: Callable[[], Sequence[float]]
    needs_step: bool


class EnginePage:
    """The vllm: families of some ranks. `created` is off where several API servers share a page."""

    def __init__(self, ranks: Sequence[Stats], model: str, started_at: float, *, several_api_servers: bool) -> None:
        self._parts: list[str | _Slot] = []
        self._created_at = None if several_api_servers else started_at
        self._several = several_api_servers
        for family in ENGINE_FAMILIES:
            self._add(family, ranks, model)
        self._parts += _head("vllm:cache_config_info", "gauge", "The configuration of the KV cache, as labels.")
        for rank in range(len(ranks)):
            pairs = [pair.partition("=") for pair in CACHE_CONFIG.format(rank=rank).split()]
            self._parts.append(f"vllm:cache_config_info{_braces((key, value) for key, _, value in pairs)} 1.0")

    def lines(self) -> Iterator[str]:
        """The page's lines now; the caller holds the lock under which the engines step."""
        for part in self._parts:
            if isinstance(part, str):
                yield part
            elif part.stats.stepped or not part.needs_step:
                for name, value in zip(part.names, part.read(), strict=True):
                    yield f"{name} {number(value)}"

    def _add(self, family: Family, ranks: Sequence[Stats], model: str) -> None:
        self._parts += _head(family.name, family.kind, family.text)
        all_labels: list[Labels] = []
        # With several API servers the gauges that a step publishes do not exist before the first step.
        needs_step = self._several and family.kind == "gauge" and family.label != "sleep_state"
        for value in family.values:
            for rank, stats in enumerate(ranks if family.per_rank else ranks[:1]):
                labels: Labels = (("model_name", model),)
                labels += (("engine", str(rank)),) if family.per_rank else ()
                labels += ((family.label, value),) if family.label else ()
                all_labels.append(labels)
                if family.kind == "histogram":
                    seen = stats.histograms[family.key()]
                    names = _bucket_names(family.name, labels, family.bounds)
                    self._parts.append(_Slot(names, stats, partial(_bucket_values, seen), needs_step))
                else:
                    names = [f"{family.name}{_braces(labels)}"]
                    self._parts.append(_Slot(names, stats, partial(_value, stats, family.key(value)), needs_step))
        if self._created_at is not None and family.kind != "gauge":
            base, at = family.name.removesuffix("_total") if family.kind == "counter" else family.name, self._created_at
            self._parts += _created(base, family.text, ((labels, at) for labels in all_labels))
