"""What the remediator shows: the record of actions as plain data, and the same as a page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flask import Response

from remediator.budget import budget_remaining, cooldown_until
from remediator.ledger import StoredAttempt
from remediator.model import History, Step
from remediator.parts import Parts
from remediator.policy import GRACE_SECONDS
from remediator.signin import SignIn
from stallwatch import ui

SHOWN_ON_PAGE = 20
PROGRAM = "stallwatch remediator"
Row = dict[str, Any]


def document(parts: Parts, limit: int) -> Row:
    """The record of actions, newest first, for the API and the page. Times are Unix seconds.

    `attempts` (id, backend, group, driver, request_id, claimed_at, called_at, ended_at, outcome, reason, detail,
    identity_before, identity_after, sentence, step_ends_at, steps of name, at, detail), `requests` that are open,
    `orders` of persons (who, why, overrules, and what was decided on their request), `decisions`, `restarts` that were
    seen (backend, identity_before, identity_after, at, ours), `backends` (budget, cooldown, hold), `storm` or null,
    `mode`. Raises `JournalFailed`.
    """
    reader, now = parts.journal.reader, parts.clock.time()
    history = reader.history(now)
    requests = reader.open_requests(limit)
    waiting = {row["backend"]: row for row in requests if row["restart_asked"]}
    return {
        "mode": parts.config.mode,
        "attempts": _attempts(parts, reader.recent_attempts(limit)),
        "requests": requests,
        "orders": parts.journal.orders.recent(limit),
        "decisions": reader.recent_decisions(limit),
        "restarts": [asdict(restart) for restart in parts.journal.restarts.recent(limit)],
        "backends": [_backend(parts, name, history, waiting.get(name), now) for name in parts.config.backends],
        "storm": _storm(history),
    }


def of_backend(parts: Parts, name: str, limit: int) -> Row:
    """The same of one backend, which is configured.

    `backend`, `request` or None, `attempts`, `orders`, `storm`, `mode`. Raises `JournalFailed`.
    """
    now = parts.clock.time()
    history = parts.journal.reader.history(now)
    asked = [row for row in parts.journal.reader.open_requests(None, name) if row["restart_asked"]]
    found = asked[0] if asked else None
    return {
        "mode": parts.config.mode,
        "overrule_seconds": parts.config.limits.overrule_seconds,
        "backend": _backend(parts, name, history, found, now),
        "request": found,
        "attempts": _attempts(parts, parts.journal.reader.recent_attempts(limit, name)),
        "orders": parts.journal.orders.recent(limit, name),
        "storm": _storm(history),
    }


def render(parts: Parts, sign: SignIn) -> Response:
    """The status page. Raises `JournalFailed`."""
    shown = document(parts, SHOWN_ON_PAGE)
    under_way = sum(attempt["outcome"] is None for attempt in shown["attempts"])
    return page("status.html", parts, sign, under_way=under_way, shown=SHOWN_ON_PAGE, **shown)


def page(template: str, parts: Parts, sign: SignIn, code: int = 200, **values: Any) -> Response:
    """A page of this program, with who has signed in."""
    named = {"program": PROGRAM, "at": parts.clock.time(), "me": sign.who, "secret_wanted": sign.asks_for_secret}
    return ui.page(template, code, **named, **values)


def step_ends_at(parts: Parts, stored: StoredAttempt) -> float | None:
    """Until when an attempt under way stays in its step at the longest (Unix seconds); None for steps of moments."""
    backend = parts.config.backends.get(stored.backend)
    if backend is None:
        return None
    match stored.last_step:
        case Step.CALLED:
            return stored.deadline_at
        case Step.RETURNED:
            return stored.at[Step.RETURNED] + parts.config.identity_change_seconds
        case Step.IDENTITY_CHANGED:
            grace = stored.grace_seconds if stored.grace_seconds is not None else GRACE_SECONDS
            return stored.at[Step.IDENTITY_CHANGED] + grace
    return None


def _attempts(parts: Parts, rows: list[Row]) -> list[Row]:
    ends = {}
    if any(row["outcome"] is None for row in rows):
        ends = {stored.id: step_ends_at(parts, stored) for stored in parts.journal.ledger.unfinished()}
    return [{**row, "step_ends_at": ends.get(row["id"])} for row in rows]


def _backend(parts: Parts, name: str, history: History, request: Row | None, now: float) -> Row:
    backend, limits = parts.config.backends[name], parts.config.limits
    hold = history.holds.get(name)
    until = cooldown_until(history.attempts, name, limits, now)
    return {
        "name": name,
        "group": backend.group,
        "decision": request["decision"] if request else None,
        "now": _state(request),
        "budget_remaining": budget_remaining(history, name, limits, now),
        "cooldown_until": until if until is not None and until > now else None,
        "hold": None if hold is None else {"who": hold.who, "why": hold.why, "until": hold.until},
    }


def _storm(history: History) -> Row | None:
    storm = history.storm
    return None if storm is None else {"since": storm.since, "overridden": storm.overridden}


def _state(request: Row | None) -> str:
    if request is None:
        return "no request"
    if request["state"] == "acting":
        return "restarting"
    return f"{request['decision'] or 'new'}: {request['reason'] or 'undecided'}"
