"""What the remediator shows: the record of actions as plain data, and the same as a page."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from flask import Flask, render_template_string

from remediator.budget import budget_remaining, cooldown_until
from remediator.parts import Parts

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"
SHOWN_ON_PAGE = 20

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>stallwatch remediator</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
 :root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
 body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
 table { border-collapse: collapse; width: 100%; margin-bottom: 2rem; }
 th, td { text-align: left; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid #8884; vertical-align: top; }
 td { overflow-wrap: anywhere; }
 .failed, .unknown, .storm { color: #c0392b; font-weight: 600; }
 .wait { color: #b9770e; font-weight: 600; }
</style></head><body>
<h1>stallwatch remediator</h1>
<p>Mode <strong>{{ mode }}</strong>{% if mode == "advise" %}: it decides, writes down, and restarts nothing{% endif %}.
{% if storm and not storm.overridden %}<strong class="storm">Storm since {{ storm.since | when }}: too many groups
are in trouble at once, so nothing is restarted.</strong>{% endif %}</p>
<table><caption hidden>Backends</caption>
<thead><tr><th>Backend<th>Group<th>Now<th>Restarts left<th>Cooldown until<th>Held</tr></thead><tbody>
{% for b in backends %}<tr><td>{{ b.name }}<td>{{ b.group }}<td class="{{ b.decision or '' }}">{{ b.now }}
<td>{{ b.budget_remaining }}<td>{{ b.cooldown_until | when }}
<td>{% if b.hold %}by {{ b.hold.who }}: {{ b.hold.why }}
{% if b.hold.until %}(until {{ b.hold.until | when }}){% endif %}{% endif %}</tr>
{% endfor %}</tbody></table>
<h2>Attempts</h2>
<table><thead><tr><th>Number<th>Backend<th>Claimed<th>Outcome<th>Steps<th>Why</tr></thead><tbody>
{% for a in attempts %}<tr><td><a href="api/v1/actions/{{ a.id }}/evidence">{{ a.id }}</a><td>{{ a.backend }}
<td>{{ a.claimed_at | when }}<td class="{{ a.outcome or '' }}">{{ a.outcome or "under way" }}{% if a.reason %}
({{ a.reason }}){% endif %}
<td>{% for s in a.steps %}{{ s.name }} {{ s.at | clock }}{% if not loop.last %}, {% endif %}{% endfor %}
<td>{{ a.sentence }} {{ a.detail or "" }}</tr>
{% else %}<tr><td colspan="6">none yet{% endfor %}</tbody></table>
<h2>Restarts that were seen</h2>
<table><thead><tr><th>When<th>Backend<th>By<th>Before<th>Now</tr></thead><tbody>
{% for r in restarts %}<tr><td>{{ r.at | when }}<td>{{ r.backend }}<td class="{{ "" if r.ours else "wait" }}">
{{ "this program" if r.ours else "somebody else" }}<td>{{ r.identity_before }}<td>{{ r.identity_after }}</tr>
{% else %}<tr><td colspan="5">none yet{% endfor %}</tbody></table>
<h2>Decisions</h2>
<table><thead><tr><th>When<th>Backend<th>Decision<th>Reason<th>Why</tr></thead><tbody>
{% for d in decisions %}<tr><td>{{ d.at | when }}<td>{{ d.backend }}<td class="{{ d.decision }}">{{ d.decision }}
<td>{{ d.reason }}<td>{{ d.detail }}</tr>
{% else %}<tr><td colspan="5">none yet{% endfor %}</tbody></table>
<p>Times are UTC. <a href="metrics">metrics</a> · <a href="api/v1/actions">the same as JSON</a></p></body></html>
"""


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


def render(parts: Parts) -> str:
    """The status page."""
    return render_template_string(PAGE, **document(parts, SHOWN_ON_PAGE))


def add_filters(app: Flask) -> None:
    """The two ways in which the page writes a time."""
    app.add_template_filter(lambda at: _utc(at, "%Y-%m-%d %H:%M:%S"), "when")
    app.add_template_filter(lambda at: _utc(at, "%H:%M:%S"), "clock")


def _utc(at: float | None, form: str) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime(form)


def _state(request: dict[str, Any] | None) -> str:
    if request is None:
        return "no request"
    if request["state"] == "acting":
        return "restarting"
    return f"{request['decision'] or 'new'}: {request['reason'] or 'undecided'}"
