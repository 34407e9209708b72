"""The sub-command `timeline`: one Markdown document from the journal and from Prometheus, either may be missing."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from typing import Any, TextIO

from remediator import story
from remediator.config import Config, check_journal_url
from remediator.document import Source, Wanted, document
from remediator.errors import JournalFailed
from remediator.export import export
from remediator.plot import Mark, Plot, draw
from remediator.promql import Prometheus, PrometheusFailed, quoted, step_for
from remediator.story import Line
from stallwatch.settings import SettingsError

BEFORE_SECONDS = 7200.0
"""An attempt that began so long before the span still gives it its evidence."""
_DURATION = re.compile("".join(rf"(?:([0-9]{{1,9}}){unit})?" for unit in "ywdhms"))
_UNITS = (31_536_000, 604_800, 86_400, 3600, 60, 1)


def duration(text: str) -> float:
    """Seconds of a duration as Prometheus writes it. Raises `SettingsError`."""
    found = _DURATION.fullmatch(text)
    seconds = sum(int(n) * unit for n, unit in zip(found.groups("0"), _UNITS, strict=True)) if found else 0
    if not 0 < seconds <= 20 * _UNITS[0]:
        raise SettingsError(f"--since: {text!r} is no duration such as 30m, 6h or 2d")
    return float(seconds)


def instant(text: str) -> float:
    """Unix seconds of a time as ISO 8601 (UTC unless it says otherwise) or Unix seconds. Raises `SettingsError`."""
    try:
        if re.fullmatch(r"[0-9]{1,10}(\.[0-9]+)?", text):
            return float(text)
        found = datetime.fromisoformat(text)
        seconds = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        if not 0 <= seconds < 1e10:
            raise ValueError(text)
        return seconds
    except (ValueError, OverflowError):
        raise SettingsError(f"--until: {text!r} is no time such as 2026-05-01T10:00:00Z") from None


def backend_name(text: str) -> str:
    """A name as the configurations allow it. Raises `SettingsError`."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", text) or text in (".", ".."):
        raise SettingsError(f"--backend: {text!r} is no name of a backend")
    return text


def write(config: Config, wanted: Wanted, out: TextIO) -> None:
    """Write the document, and the plot if there is one. Raises `SettingsError` if no source has anything."""
    step = step_for(wanted.start, wanted.end)
    drawing = Plot(wanted.backend, wanted.start, wanted.end, step)
    told, read = _from_journal(config, wanted), _from_prometheus(wanted, step, drawing)
    if told.missing and read.missing:
        raise SettingsError(f"nothing is known of {wanted.backend}: {told.note}; {read.note}")
    lines = story.merged(told.lines, read.lines, step)
    lines = [line for line in lines if wanted.start <= line.at <= wanted.end]
    if wanted.plot is not None:
        drawing.marks = [Mark(line.at, text) for line in lines if (text := _marked(line))]
        try:
            wanted.plot.write_text(draw(drawing), encoding="utf-8")
        except (OSError, ValueError) as error:
            raise SettingsError(f"--plot: {str(wanted.plot)!r} cannot be written: {error}") from error
    out.write(document(wanted, told, read, lines))


def _from_journal(config: Config, wanted: Wanted) -> Source:
    events = _Events()
    where = check_journal_url(config.journal_url)
    since = wanted.start - BEFORE_SECONDS
    try:
        export(where, config.journal_password, events, since=since, backend=wanted.backend)
    except JournalFailed as error:
        return Source(note=f"the journal cannot be read ({error})")
    lines = story.of_journal(events.found)
    if not any(wanted.start <= line.at <= wanted.end for line in lines if line.kind != "storm"):
        return Source(lines, "the journal has nothing on it in this span")
    return Source(lines, "the journal", missing=False)


class _Events(io.StringIO):
    """Takes the export's lines as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, Any]] = []

    def write(self, text: str) -> int:
        self.found.append(json.loads(text))
        return len(text)


def _from_prometheus(wanted: Wanted, step: int, drawing: Plot) -> Source:
    if wanted.prometheus is None:
        return Source(note="Prometheus was not asked (--prometheus)")
    server, it = Prometheus(wanted.prometheus), f"{{backend={quoted(wanted.backend)}}}"
    try:

        def ask(query: str) -> Any:
            return server.range(query, wanted.start, wanted.end, step)

        verdicts = ask(f"max by (verdict) (stallwatch_backend_verdict{it}) == 1")
        rates, stalled = ask(f"max(engine_progress_rate{it})"), ask(f"max(stalled_seconds{it})")
        limits = ask(f"max(stallwatch_backend_stuck_after_seconds{it})")
        alerts = ask(f"max by (alertname, alertstate) (ALERTS{it})")
        restarts = ask(f"max(restart_detected{it})")
        asks = ask(f"max by (result) (stallwatch_backend_asks_total{it})")
    except PrometheusFailed as failed:
        return Source(note=f"Prometheus gave nothing ({failed})")
    finally:
        server.close()
    if not any((verdicts, rates, stalled, alerts)):
        return Source(note=f"Prometheus ({server.url}) has nothing on it in this span")
    drawing.rate, drawing.stalled, drawing.limit = (one[0].points if one else () for one in (rates, stalled, limits))
    clock = dict(drawing.stalled)
    lines = story.of_verdicts(verdicts, clock, step) + story.of_alerts(alerts, step, wanted.end)
    lines += story.of_restarts(restarts) + story.of_asks(asks)
    return Source(lines, f"Prometheus ({server.url}), read every {step} s", missing=False)


def _marked(line: Line) -> str:
    if line.kind == "verdict" and line.word == "stuck":
        return "proven stuck"
    if line.kind == "step" and line.word in ("called", *story.ENDS):
        return "restart called" if line.word == "called" else f"attempt ended: {line.word}"
    if line.kind == "process":
        return "a new server process"
    return "restarted by somebody else" if line.kind == "restart_seen" and line.word == "others" else ""
