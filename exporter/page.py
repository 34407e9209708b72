"""Exposition text and a runtime in; one sample per rank out, or a typed failure. Pure.

Of the 440 samples of a vLLM page about 20 are wanted. The page is filtered for them before the library's parser sees
it: parsing all of it costs ten times as much. What a line's name and labels mean is kept: from page to page only the
values change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple
from weakref import WeakValueDictionary

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample as ParsedSample

from exporter.model import FailureReason, RankKey, Reading, Sample
from exporter.runtimes import ROLES, Runtime, Source

_LOOKS_LIKE_EXPOSITION = re.compile(rb"^(?:# (?:HELP|TYPE) |[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{[^\n]*\})? [-+0-9NI])", re.M)


_PLAIN_NUMBER = re.compile(r"[ \t]+[-+]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|NaN|Inf)")
MOST_KNOWN = 2**16
"""Series whose meaning is kept; pages with ever new labels are read all the same."""


class PageError(Exception):
    """The page cannot be used; `reason` says why, the text names what was missing or wrong."""

    def __init__(self, reason: FailureReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def _one_of(names: Collection[str]) -> str:
    """An expression for any of the names that shares their beginnings: seven times as fast as a plain list of them."""
    if not names:
        return ""
    first, last = min(names), max(names)
    shared = first[: next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]
    rests = [name[len(shared) :] for name in names]
    if len(rests) == 1:
        return re.escape(shared)
    starts: dict[str, set[str]] = {}
    for rest in rests:
        starts.setdefault(rest[:1], set()).add(rest)
    return re.escape(shared) + "(?:" + "|".join(_one_of(group) for _, group in sorted(starts.items())[::-1]) + ")"


class PageParser:
    """Parses pages of one runtime, in any thread. Keeps what names and labels mean, nothing of any page's values."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sources: dict[str, list[tuple[str, Source]]] = {}
        for role in ROLES:
            for source in getattr(runtime, role):
                for name in source.names:
                    self._sources.setdefault(name, []).append((role, source))
        self._live = frozenset(runtime.live)
        self._known: dict[str, _Series] = {}
        # Each line is found by the line end before it: a literal, which the expression's engine looks for fastest.
        self._wanted = re.compile(rb"\n" + _one_of({*self._sources, *self._live}).encode() + rb"[{ \t][^\n]*")

    def parse(self, body: bytes) -> Reading:
        """Return what the page says of each rank.

        Raises `PageError` (empty, unparsable, missing_series) and nothing else, whatever the bytes are.
        """
        if not self._runtime.measured:
            raise PageError(FailureReason.MISSING_SERIES, "configured as a server without metrics")
        if not body.strip():
            raise PageError(FailureReason.EMPTY, "the page has no text")
        lines = self._wanted.findall(b"\n" + body)
        if not lines and not _LOOKS_LIKE_EXPOSITION.search(body):
            raise PageError(FailureReason.UNPARSABLE, "the page is not in the Prometheus text format")
        try:
            samples = [sample for line in lines for sample in self._line(line.decode("utf-8", "replace").strip())]
        except Exception as error:  # the library raises ValueError, IndexError and others on broken lines
            raise PageError(FailureReason.UNPARSABLE, f"a wanted line cannot be parsed: {error}") from error
        return self._read(samples)

    def _line(self, line: str) -> list[tuple[_Series, float]]:
        """The samples of one line: one, as a rule."""
        head, brace, rest = line.rpartition("}")
        head, rest = (head + brace, rest) if brace else (line[: len(line.split(None, 1)[0])], line.split(None, 1)[-1])
        known = self._known.get(head)
        if known is not None and _PLAIN_NUMBER.fullmatch(rest):
            return [(known, float(rest))]
        parsed = _parse(line)
        found = [(self._series(sample.name, sample.labels), float(sample.value)) for sample in parsed]
        if len(found) == 1 and len(self._known) < MOST_KNOWN and _is_head(head, parsed[0]):
            self._known[head] = found[0][0]
        return found

    def _series(self, name: str, labels: dict[str, str]) -> _Series:
        """What a series is good for."""
        uses = []
        model, rank = self._runtime.model_label, self._runtime.rank_label
        key = (labels.get(model or "", ""), labels.get(rank or "", ""))
        rest = ",".join(f"{k}={v}" for k, v in sorted(labels.items()) if k not in (rank, model))
        for role, source in self._sources.get(name, ()):
            if source.takes(labels):
                uses.append((role, key, f"{source.names[0]}{{{rest}}}" if rest else source.names[0]))
        return _Series(tuple(uses), name in self._live)

    def _read(self, samples: list[tuple[_Series, float]]) -> Reading:
        ranks: dict[RankKey, _Gathering] = {}
        start_time: float | None = None
        asleep = paused = False
        live = not self._live
        for series, value in samples:
            if not math.isfinite(value):
                continue
            live = live or series.live
            for role, key, counter in series.uses:
                if role == "start_time":
                    start_time = max(value, start_time or 0.0)
                elif role == "awake":
                    asleep = asleep or value == 0
                elif role == "paused":
                    paused = paused or value > 0
                else:
                    ranks.setdefault(key, _Gathering()).add(role, counter, value)
        measured = {key: gathering.sample() for key, gathering in ranks.items() if gathering.counts}
        if not measured:
            wanted = ", ".join(s.names[0] for s in (*self._runtime.steps, *self._runtime.tokens, *self._runtime.ended))
            raise PageError(FailureReason.MISSING_SERIES, f"none of {wanted} is on the page")
        return Reading(measured, start_time, asleep, paused, live)


def _parse(line: str) -> list[ParsedSample]:
    return [sample for family in text_string_to_metric_families(line + "\n") for sample in family.samples]


def _is_head(head: str, sample: ParsedSample) -> bool:
    """Whether any number may follow `head`, so that what it means need not be looked at again."""
    again = _parse(f"{head} 1\n{head} 2")
    return [(s.name, s.labels, s.value) for s in again] == [(sample.name, sample.labels, n) for n in (1, 2)]


class _Series(NamedTuple):
    """What one series of a page is good for: its roles, each with the rank and the counter's name in it."""

    uses: tuple[tuple[str, RankKey, str], ...]
    live: bool


class _Gathering:
    """One rank's series while a page is being read."""

    __slots__ = ("ended", "gauges", "steps", "tokens")

    def __init__(self) -> None:
        self.steps: dict[str, float] = {}
        self.tokens: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.gauges: dict[str, float] = {}

    @property
    def counts(self) -> bool:
        """Whether any counter of work is there; gauges alone measure nothing."""
        return bool(self.steps or self.tokens or self.ended)

    def add(self, role: str, counter: str, value: float) -> None:
        if role in ("steps", "tokens", "ended"):
            counters: dict[str, float] = getattr(self, role)
            counters[counter] = max(value, counters.get(counter, value))  # an old name beside the new one counts once
        else:
            # Several API servers each publish the gauge under their own pid: seven zeros and the truth.
            self.gauges[role] = max(value, self.gauges.get(role, 0.0))

    def sample(self) -> Sample:
        gauges = self.gauges
        return Sample(
            self.steps,
            self.tokens,
            self.ended,
            running=gauges.get("running", 0.0),
            waiting=gauges.get("waiting", 0.0),
            deferred=gauges.get("deferred", 0.0),
            kv_use=gauges.get("kv_use"),
        )


_SHARED: WeakValueDictionary[int, PageParser] = WeakValueDictionary()


def parser_of(runtime: Runtime) -> PageParser:
    """The parser of this runtime, which all its backends share: a fleet serves few models, and each is learnt once."""
    parser = _SHARED.get(id(runtime))  # the parser keeps its runtime alive, so that no other one can have its id
    if parser is None:
        parser = _SHARED[id(runtime)] = PageParser(runtime)
    return parser


def detect(body: bytes, runtimes: Iterable[Runtime]) -> Runtime | None:
    """The first runtime whose series of work this page holds, or that has a list where this is one; or None."""
    if body.lstrip().startswith(b"["):
        return next((runtime for runtime in runtimes if runtime.list_at_metrics), None)
    for runtime in runtimes:
        try:
            PageParser(runtime).parse(body)
        except PageError:
            continue
        return runtime
    return None
