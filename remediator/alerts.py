"""Alertmanager's webhook JSON (version "4") to typed alerts. Pure, and lenient: fields come and go between versions.

Only what the remediator needs is kept. Nothing from an alert becomes a command, an address or a file name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

KEPT_CHARACTERS = 200
RESTART = "restart"


class Malformed(Exception):
    """The body is no version 4 payload; the text is one line."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `status` is its own, never the group's: "firing", "resolved" or "other"."""

    status: str
    backend: str
    """The label `backend`; empty when there is none."""
    name: str
    restart_asked: bool
    """It is labelled `remediation: restart`."""
    fingerprint: str
    starts_at: float | None
    ends_at: float | None
    """None while it fires: Alertmanager then writes the year 1."""


@dataclass(frozen=True, slots=True)
class Payload:
    """One delivery. `truncated` alerts were left out by Alertmanager, `skipped` could not be read."""

    alerts: tuple[Alert, ...]
    truncated: int
    skipped: int


def parse(body: bytes) -> Payload:
    """Read one delivery. Raises `Malformed`."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise Malformed("the body is not JSON") from None
    if not isinstance(document, dict):
        raise Malformed("the body is no JSON object")
    if document.get("version") != "4":
        raise Malformed('the body is no Alertmanager payload of version "4"')
    listed = document.get("alerts")
    if not isinstance(listed, list):
        raise Malformed("the payload has no list of alerts")
    alerts = [alert for alert in map(_alert, listed) if alert is not None]
    truncated = document.get("truncatedAlerts", 0)
    whole = isinstance(truncated, int) and not isinstance(truncated, bool) and 0 <= truncated < 2**31
    return Payload(tuple(alerts), truncated if whole else 0, len(listed) - len(alerts))


def _alert(found: object) -> Alert | None:
    if not isinstance(found, dict) or not isinstance(found.get("labels"), dict):
        return None
    labels = found["labels"]
    status = found.get("status")
    return Alert(
        status=status if status in ("firing", "resolved") else "other",
        backend=_text(labels.get("backend")),
        name=_text(labels.get("alertname")),
        restart_asked=labels.get("remediation") == RESTART,
        fingerprint=_text(found.get("fingerprint")),
        starts_at=_time(found.get("startsAt")),
        ends_at=_time(found.get("endsAt")),
    )


def _text(value: object) -> str:
    """Printable and short, so that it is safe in the journal, in logs and on a page. Not a string: empty."""
    if not isinstance(value, str):
        return ""
    return "".join(c if c.isprintable() else "?" for c in value[:KEPT_CHARACTERS])


def _time(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return None
    if at.year < 1970:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
