"""Lines of a timeline: what the journal's events, an exporter's saved evidence and Prometheus's series say happened.

Pure. Nothing here trusts the shape of saved evidence: what is not as it should be is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from remediator.model import Outcome
from remediator.promql import Series

LAG_SECONDS = 60.0
"""How much later than the exporter Prometheus may show the same thing: an interval of scrapes."""
ENDS = frozenset(outcome.value for outcome in Outcome)


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened at an instant (Unix seconds). `fold`: lines of a kind that repeat it may be counted.

    `word` is the verdict, step, or result of an ask; `began_at` of `stuck` is when work stood still.
    """

    at: float
    source: str
    kind: str
    what: str
    fold: str | None = None
    word: str = ""
    began_at: float | None = None


def utc(at: float) -> str:
    """An instant as a person in any country reads it, to the second."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # from a clock that was never set
        return f"{at:.0f}"


def said(text: object) -> str:
    """A sentence of somebody else, in quotes; nothing for none."""
    return f': "{text}"' if text else ""


def of_journal(events: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Of the journal's events as its export gives them, evidence included, in order."""
    lines: list[Line] = []
    changes: dict[tuple[float, str], Line] = {}
    printed = set()
    for event in events:
        if event["kind"] == "attempt":
            if event["evidence_output"]:
                printed.add(event["id"])
            for line in _of_evidence(event["evidence"]):
                changes.setdefault((line.at, line.what), line)
        if (told := _of_event(event, printed)) is not None:
            lines.append(told)
    return sorted([*changes.values(), *lines], key=lambda one: one.at)


def _of_event(event: Mapping[str, Any], printed: set[Any]) -> Line | None:
    kind, at = event["kind"], event["at"]
    fold, word = None, ""
    match kind:
        case "alert":
            asks = ", asks for a restart" if event["restart_asked"] else ""
            fold = what = f"alert {event['name']} delivered: {event['status']}{asks}"
        case "decision":
            fold = f"decision: {event['decision']} ({event['reason']})"
            what = fold + said(event["detail"])
        case "order":
            over = f", overruling {event['overrules'].replace(',', ', ')}" if event["overrules"] else ""
            what = f"restart asked for by {event['who']}{over}{said(event['why'])}"
        case "attempt":
            word, what = "claimed", f"attempt {event['id']} claimed, driver {event['driver']}"
            what += f", identity {event['identity_before']}" if event["identity_before"] else ""
        case "step" if event["name"] != "claimed":  # the attempt's own line says that
            word = event["name"]
            ended = "ended: " if word in ENDS else "driver " if word in ("called", "returned") else ""
            number = f" (call {event['call']})" if word == "called" and event["call"] > 1 else ""
            more = "; its evidence command's output is in the export" if event["attempt_id"] in printed else ""
            what = f"attempt {event['attempt_id']} {ended}{word.replace('_', ' ')}{number}{said(event['detail'])}"
            what += more if word == "evidence_saved" else ""
        case "hold" if event["event"] == "held":
            until = f" until {utc(event['until'])}" if event["until"] else ""
            what = f"held by {event['who']}{until}{said(event['why'])}"
        case "hold":
            what = f"released by {event['ended_by'] or 'its time'}"
        case "budget" if event["event"] == "latched":
            what = "the budget is used up: no restart until a person resets it"
        case "budget":
            what = f"the budget was reset by {event['reset_by']}{said(event['reset_why'])}"
        case "storm":
            what = f"storm {event['event']}"
            if event["event"] == "overridden":
                what += f" by {event['overridden_by']}{said(event['overridden_why'])}"
        case "restart_seen":
            word = "ours" if event["ours"] else "others"
            whose = "by the remediator" if event["ours"] else "NOT by the remediator"
            what = f"another life of the server, {whose}: {event['identity_before']} became {event['identity_after']}"
        case _:
            return None
    return Line(at, "journal", kind, what, fold, word)


def _of_evidence(document: object) -> Iterable[Line]:
    """The exporter's last changes of verdict, and the asks that stand in them."""
    history = document.get("history") if isinstance(document, dict) else None
    for change in history if isinstance(history, list) else ():
        if not isinstance(change, dict) or not (at := _number(change.get("at"))):
            continue
        verdict = str(change.get("verdict"))
        found = change.get("rank")
        rank = found if isinstance(found, dict) else {}
        stalled = _number(rank.get("stalled_seconds"))
        began = at - stalled if verdict == "stuck" and stalled is not None else None
        what = f"verdict {verdict}{said(change.get('sentence'))}"
        yield Line(at, "evidence", "verdict", what, None, verdict, began)
        asks = rank.get("asks")
        for ask in asks if isinstance(asks, list) else ():
            if isinstance(ask, dict) and (ended := _number(ask.get("at"))):
                result = str(ask.get("result"))
                what = f"short request to rank {rank.get('rank')}: {result}"
                yield Line(ended, "evidence", "ask", what, what, result)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # JSON's whole numbers have no end
        return None


def of_verdicts(verdicts: Sequence[Series], stalled: Mapping[float, float], step: int) -> list[Line]:
    """Changes of the verdict, from series that are 1 while it is that."""
    seen: dict[float, list[str]] = {}
    for series in verdicts:
        for at, _ in series.points:
            seen.setdefault(at, []).append(series.labels.get("verdict", "?"))
    lines: list[Line] = []
    before, last = "", None
    for at in sorted(seen):
        if last is not None and at - last > 1.5 * step:
            lines.append(Line(last + step, "prometheus", "verdict", "no verdict any more: nobody watches it"))
            before = ""
        now = " and ".join(sorted(seen[at]))
        if now != before:
            began = at - stalled[at] if now == "stuck" and at in stalled else None
            note = "" if before else " (the first reading)"
            lines.append(Line(at, "prometheus", "verdict", f"verdict {now}{note}", None, now, began))
        before, last = now, at
    return lines


def of_alerts(alerts: Sequence[Series], step: int, end: float) -> list[Line]:
    """When each alert became pending or firing, and when it fired no more, if that was before `end`."""
    lines = []
    for series in alerts:
        name, state = series.labels.get("alertname", "?"), series.labels.get("alertstate", "?")
        for first, last in _runs([at for at, value in series.points if value], step):
            lines.append(Line(first, "prometheus", "rule", f"alert {name} is {state}"))
            if state == "firing" and last + step <= end:
                lines.append(Line(last + step, "prometheus", "rule", f"alert {name} fires no more", word="over"))
    return lines


def _runs(instants: Sequence[float], step: int) -> Iterable[tuple[float, float]]:
    first = last = None
    for at in instants:
        if first is None or last is None or at - last > 1.5 * step:
            if first is not None and last is not None:
                yield first, last
            first = at
        last = at
    if first is not None and last is not None:
        yield first, last


def of_restarts(detected: Sequence[Series]) -> list[Line]:
    """When the exporter saw a new process, whoever caused it."""
    lines = []
    for series in detected:
        before = 1.0  # what was seen before the span began is none of it
        for at, value in series.points:
            if value > before:
                lines.append(Line(at, "prometheus", "process", "the exporter sees a new server process"))
            before = value
    return lines


def of_asks(asks: Sequence[Series]) -> list[Line]:
    """Short requests that ended, from counters by result."""
    lines = []
    for series in asks:
        result, before = series.labels.get("result", "?"), None
        for at, value in series.points:
            if before is not None and value > before:
                what = f"short request: {result}"
                lines.append(Line(at, "prometheus", "ask", what, what, result))
            before = value
    return lines


def merged(told: Sequence[Line], read: Sequence[Line], step: int) -> list[Line]:
    """Lines of the journal with those of Prometheus, without what evidence has told more exactly; by time.

    Evidence is whole between its first and last change; Prometheus shows the last of them up to a scrape later.
    """
    changes = [line for line in told if line.source == "evidence" and line.kind == "verdict"]
    asks = [line for line in told if line.source == "evidence" and line.kind == "ask"]
    lag = step + LAG_SECONDS
    kept = []
    for line in sorted(read, key=lambda one: one.at):
        if line.kind == "verdict" and _told(line, changes, lag):
            continue
        if line.kind == "ask":
            same = [ask for ask in asks if ask.word == line.word and line.at - lag <= ask.at <= line.at + 1]
            if same:
                asks.remove(same[0])
                continue
        kept.append(line)
    return sorted([*told, *kept], key=lambda one: one.at)


def _told(line: Line, changes: list[Line], lag: float) -> bool:
    """Whether evidence has this change. What it has up to there is taken out: a later change is another one."""
    for index, change in enumerate(changes):
        if change.word == line.word and line.at - lag <= change.at <= line.at + 1:
            del changes[: index + 1]
            return True
    return False
