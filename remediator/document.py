"""The timeline as Markdown: a head with what it comes to, and a table in which no value can break a cell."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from remediator import story
from remediator.story import Line, utc

MOST_CHARACTERS = 700
"""Of one thing that is told."""
APART_SECONDS = 7200.0
"""Lines that repeat each other are counted together only if they are no further apart."""
WELL = frozenset({"busy", "idle"})
OTHER_WORDS = {"alert": "deliveries", "ask": "of these", "decision": "of these"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for: a backend, a span (Unix seconds), and where else to look and to write."""

    backend: str
    start: float
    end: float
    prometheus: str | None = None
    plot: Path | None = None


@dataclass(slots=True)
class Source:
    """What one source gave, or why it gave nothing."""

    lines: Sequence[Line] = ()
    note: str = ""
    missing: bool = True


def escaped(text: str) -> str:
    """Text that stays in its cell of a table and means nothing to Markdown or HTML; on one line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    line = line if len(line) <= MOST_CHARACTERS else line[:MOST_CHARACTERS] + "…"
    return re.sub(r"([\\`*\[\]|])", r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;"))


def folded(lines: Sequence[Line]) -> list[tuple[Line, str]]:
    """Each line with what is to be said of the ones that repeat it. Other kinds may stand between them."""
    runs: dict[str, list[Line]] = {}
    kept: list[list[Line]] = []
    for line in lines:
        run = runs.get(line.kind)
        if run and line.fold is not None and run[0].fold == line.fold and line.at - run[-1].at <= APART_SECONDS:
            run.append(line)
            continue
        runs[line.kind] = [line]
        kept.append(runs[line.kind])
    return [(run[0], _others(run)) for run in kept]


def _others(run: Sequence[Line]) -> str:
    more = len(run) - 1
    if more == 0:
        return ""
    word = OTHER_WORDS.get(run[0].kind, "of these")
    if more == 1:
        return f" (one more at {utc(run[-1].at)})"
    return f" ({more} more {word} until {utc(run[-1].at)})"


def document(wanted: Wanted, told: Source, read: Source, lines: Sequence[Line]) -> str:
    """The whole of it; `told` is the journal and `read` Prometheus, and `lines` are what both say, by time."""
    return "\n".join([*_head(wanted, told, read, lines), *_table(lines)]) + "\n"


def _head(wanted: Wanted, told: Source, read: Source, lines: Sequence[Line]) -> list[str]:
    sources = [one.note for one in (told, read) if not one.missing]
    head = [
        f"# Timeline of {wanted.backend}",
        "",
        f"- Span: {utc(wanted.start)} to {utc(wanted.end)}. All times are UTC.",
        f"- Sources: {escaped(' and '.join(sources))}.",
        *(f"- Missing: {escaped(one.note)}." for one in (told, read) if one.missing),
        f"- {_counted(lines)}",
        "",
        *_incidents(lines),
    ]
    if wanted.plot is not None:
        head += [f"![Work rate and stalled seconds](<{_address(wanted.plot)}>)", ""]
    return head


def _address(path: Path) -> str:
    return "".join(c for c in str(path) if c.isprintable() and c not in "<>\\")


def _counted(lines: Sequence[Line]) -> str:
    def of(kind: str, words: Sequence[str] | None = None) -> int:
        return sum(line.kind == kind and (words is None or line.word in words) for line in lines)

    ends = [f"{of('step', [word])} {word}" for word in sorted(story.ENDS) if of("step", [word])]
    ended = f" ({', '.join(ends)})" if ends else ""
    return (
        f"Alerts delivered: {of('alert')}; decisions: {of('decision')}; "
        f"attempts: {of('attempt')}{ended}; restarts by others: {of('restart_seen', ['others'])}."
    )


def _incidents(lines: Sequence[Line]) -> list[str]:
    """One row for each time it was proven stuck."""
    stuck = [line for line in lines if line.kind == "verdict" and line.word == "stuck"]
    if not stuck:
        return ["It was not proven stuck in this span.", ""]
    rows = [
        "| stall began | proven stuck | time to detect | restart called | time to restart | well again "
        "| time to recover |",
        "|---|---|---|---|---|---|---|",
    ]
    for one, following in zip(stuck, [*stuck[1:], None], strict=True):
        later = [line for line in lines if line.at > one.at and (following is None or line.at < following.at)]
        called = _first(later, lambda line: line.kind == "step" and line.word == "called")
        after = [line for line in later if called is None or line.at > called]
        well = _first(after, lambda line: line.kind == "step" and line.word == "recovered")
        if well is None:
            well = _first(after, lambda line: line.kind == "verdict" and line.word in WELL)
        cells = [
            *(_time(one.began_at), _time(one.at), _span(one.began_at, one.at), _time(called), _span(one.at, called)),
            *(_time(well), _span(one.at if called is None else called, well)),
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return [*rows, "", "Detect: from the stall to the proof; restart: to the driver's call; recover: to the end.", ""]


def _first(lines: Sequence[Line], good: Callable[[Line], bool]) -> float | None:
    return next((line.at for line in lines if good(line)), None)


def _time(at: float | None) -> str:
    return "not seen" if at is None else utc(at)


def _span(start: float | None, end: float | None) -> str:
    return "" if start is None or end is None else f"{end - start:.0f} s"


def _table(lines: Sequence[Line]) -> list[str]:
    rows = [f"| {utc(line.at)} | {line.source} | {escaped(line.what)}{more} |" for line, more in folded(lines)]
    return ["| time (UTC) | source | what |", "|---|---|---|", *rows]
