"""What a backtest found, as a Markdown table and as JSON. Pure.

Names in it come out of somebody's labels: they are shown, never obeyed.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass

from exporter.stands import End, Stand, Tally
from stallwatch.ui.words import duration, iso, utc

SPARE_FACTOR = 2
"""A limit is suggested at twice the longest healthy stand, as the exporter itself learns from one."""


@dataclass(frozen=True, slots=True)
class LookedAt:
    """What the counts are of: a runtime's series that `selector` takes, from `start` to `end` (Unix seconds)."""

    runtime: str
    default_seconds: float
    selector: str
    start: float
    end: float
    warnings: Collection[str] = ()


def suggested(tally: Tally) -> float | None:
    """Twice the longest stand that ended in progress, at its most; None where nothing stood."""
    longest = tally.longest_healthy_seconds
    return math.ceil(SPARE_FACTOR * longest) if longest else None


def to_json(looked_at: LookedAt, tally: Tally) -> dict[str, object]:
    """Everything as one object; times in seconds, instants in UTC."""
    return {
        "kind": "upper_bound",
        "selector": looked_at.selector,
        "runtime": looked_at.runtime,
        "from": iso(looked_at.start),
        "to": iso(looked_at.end),
        "first_page": iso(tally.first),
        "last_page": iso(tally.last),
        "pages": tally.pages,
        "unusable_pages": tally.unusable_pages,
        "failed_scrapes": tally.failed_scrapes,
        "scrape_interval_seconds": tally.interval_seconds,
        "busy_seconds": round(tally.busy_seconds, 3),
        "restarts": tally.restarts,
        "proxies": tally.proxies,
        "stands": tally.stands,
        "longest_healthy_seconds": round(tally.longest_healthy_seconds, 3),
        "suggested_stuck_after_seconds": suggested(tally),
        "kv_only_prefills": tally.prefills,
        "longest_kv_only_prefill_seconds": round(tally.longest_prefill_seconds, 3),
        "limits": [{**asdict(row), "stands": row.stands} for row in tally.reached],
        "longest": [{**asdict(stand), "start": iso(stand.start)} for stand in tally.top()],
        "warnings": sorted(looked_at.warnings),
    }


def to_markdown(looked_at: LookedAt, tally: Tally) -> list[str]:
    """The lines of the report, for a terminal as for an issue."""
    lines = [
        f"# Backtest of {_cell('{' + looked_at.selector + '}')}: an upper bound",
        "",
        f"Asked for {utc(looked_at.start)} to {utc(looked_at.end)} UTC, runtime {looked_at.runtime}. {_seen(tally)}",
        "History holds no asks: each line counts what would have been suspected; answered asks would have cleared a"
        " part of it. A stand lasts to the page that shows its end.",
        *(f"Prometheus warns: {warning}" for warning in sorted(looked_at.warnings)),
        *_notes(tally),
        "",
        "| limit | stands that reached it | ended in progress | new process | otherwise | time in them | longest"
        " | KV-only prefills as long (never counted) |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in tally.reached:
        healthy, replaced = row.by_end[End.PROGRESS], row.by_end[End.NEW_PROCESS]
        lines.append(
            f"| {row.limit_seconds:g} s | {row.stands} | {healthy} | {replaced} | {row.stands - healthy - replaced}"
            f" | {row.seconds:.0f} s | {row.longest_seconds:.0f} s | {row.prefills} |"
        )
    lines += ["", *_advice(looked_at, tally), ""]
    if tally.longest:
        lines += [
            "| start (UTC) | stood (at most) | ended by | running + waiting | rank | server |",
            "|---|--:|---|--:|---|---|",
        ]
        lines += [_row(stand) for stand in tally.top()]
    return lines


def _seen(tally: Tally) -> str:
    if not tally.pages:
        return f"No usable page; failed scrapes: {tally.failed_scrapes:,}."
    return (
        f"Found {tally.pages:,} pages from {utc(tally.first)} to {utc(tally.last)}, about {tally.interval_seconds:g} s"
        f" apart; with work in flight: {duration(tally.busy_seconds)}; failed scrapes: {tally.failed_scrapes:,};"
        f" restarts: {tally.restarts}."
    )


def _notes(tally: Tally) -> list[str]:
    notes = [
        f"Stands in all: {tally.stands:,}. Prefills in which only KV use rose, which is progress: {tally.prefills:,},"
        f" the longest {tally.longest_prefill_seconds:.0f} s. A server that froze while idle cannot be seen here."
    ]
    if any(limit <= 2 * tally.interval_seconds for limit in tally.limits):
        notes.append(
            f"Pages {tally.interval_seconds:g} s apart cannot show what is shorter: limits of up to"
            f" {2 * tally.interval_seconds:g} s are judged by one or two pages."
        )
    if tally.unusable_pages:
        notes.append(f"{tally.unusable_pages:,} pages had no series of work; they were left out.")
    if tally.proxies:
        notes.append(
            f"{tally.proxies:,} times the pages looked like several servers at one address. The exporter measures"
            " nothing through a proxy: watch the servers behind it."
        )
    return notes


def _advice(looked_at: LookedAt, tally: Tally) -> list[str]:
    limit, healthy = suggested(tally), tally.longest_healthy_seconds
    last = f" The default of {looked_at.runtime} is {looked_at.default_seconds:g} s."
    if not tally.pages:
        return ["No usable page in this range: nothing can be said."]
    if limit is None:
        return [f"No stand ended in progress: this history gives no reason for another limit.{last}"]
    return [
        f"No stand that ended in progress was longer than {healthy:.0f} s; a limit of twice that is {limit:g} s.{last}",
        "A freeze that ended by itself counts as healthy here, so this is an upper bound. Below the default only a"
        " history with your longest prompts is a reason.",
    ]


def _row(stand: Stand) -> str:
    load = f"{stand.running:g} + {stand.waiting:g}"
    cells = (
        utc(stand.start),
        f"{stand.seconds:.0f} s ({stand.at_most_seconds:.0f} s)",
        stand.end,
        load,
        _cell(stand.rank),
        _cell(stand.target),
    )
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    """A name out of somebody's labels: one line, one cell, nothing that a terminal obeys."""
    return "".join(c if c.isprintable() else "?" for c in text[:200]).replace("|", "\\|")
