"""What the remediator shows: the record of actions as plain data, and the same as a page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flask import Response

from remediator.budget import budget_remaining, cooldown_until
from remediator.parts import Parts
from stallwatch import ui

SHOWN_ON_PAGE = 20
PROGRAM = "stallwatch remediator"


def document(parts: Parts, limit: int) -> dict[str, Any]:
    """The record of actions, newest first, for the API and the page. Times are Unix seconds.

    `attempts` (id, backend, group, driver, request_id, claimed_at, called_at, ended_at, outcome, reason, detail,
    identity_before, identity_after, sentence, steps of name, at, detail), `requests` that are open, `decisions`,
    `restarts` that were seen (backend, identity_before, identity_after, at, ours), `backends` (budget, cooldown,
    hold), `storm` or null, `mode`. Raises `JournalFailed`.
    """
    reader, now = parts.journal.reader, parts.clock.time()
    history = reader.history(now)
    requests = reader.open_requests(limit)
    waiting = {row["backend"]: row for row in requests if row["restart_asked"]}
    backends = []
    for name, backend in parts.config.backends.items():
        hold, request = history.holds.get(name), waiting.get(name)
        until = cooldown_until(history.attempts, name, parts.config.limits, now)
        backends.append(
            {
                "name": name,
                "group": backend.group,
                "decision": request["decision"] if request else None,
                "now": _state(request),
                "budget_remaining": budget_remaining(history, name, parts.config.limits, now),
                "cooldown_until": until if until is not None and until > now else None,
                "hold": None if hold is None else {"who": hold.who, "why": hold.why, "until": hold.until},
            }
        )
    storm = history.storm
    return {
        "mode": parts.config.mode,
        "attempts": reader.recent_attempts(limit),
        "requests": requests,
        "decisions": reader.recent_decisions(limit),
        "restarts": [asdict(restart) for restart in parts.journal.restarts.recent(limit)],
        "backends": backends,
        "storm": None if storm is None else {"since": storm.since, "overridden": storm.overridden},
    }


def render(parts: Parts) -> Response:
    """The status page. Raises `JournalFailed`."""
    shown = document(parts, SHOWN_ON_PAGE)
    under_way = sum(attempt["outcome"] is None for attempt in shown["attempts"])
    named: dict[str, Any] = {
        "program": PROGRAM,
        "at": parts.clock.time(),
        "under_way": under_way,
        "shown": SHOWN_ON_PAGE,
    }
    return ui.page("status.html", **named, **shown)


def _state(request: dict[str, Any] | None) -> str:
    if request is None:
        return "no request"
    if request["state"] == "acting":
        return "restarting"
    return f"{request['decision'] or 'new'}: {request['reason'] or 'undecided'}"
