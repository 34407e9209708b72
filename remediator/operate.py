"""What persons change: holds, budgets, the storm stop, a restart by hand. All of it is journalled with who and why.

The API and the page's forms both end here; `web` lets nobody in without credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response, jsonify, request

from remediator.model import OVERRULABLE, Hold, Order, Reason
from remediator.parts import Parts
from stallwatch.logs import get_logger

MOST_CHARACTERS = 200
MOST_SECONDS = 366 * 86400.0
Body = Mapping[str, Any]


class BadRequest(Exception):
    """The body is not what it must be; the text is one line."""


class UnknownBackend(Exception):
    """No backend has this name; the text is one line."""


class Operator:
    """The changes themselves. Each raises `BadRequest`, `UnknownBackend` or `JournalFailed`, and returns its answer."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._log = parts, get_logger("web")
        self._holds, self._clock = parts.journal.holds, parts.clock

    def hold(self, name: str, body: Body) -> dict[str, Any]:
        """`who`, `why`, and `for_seconds`, without which it stands until it is released."""
        self._known(name, body, "who", "why", "for_seconds")
        who, why, now = one_line(body, "who"), one_line(body, "why"), self._clock.time()
        seconds = _seconds(body)
        self._holds.hold(Hold(name, who, why, now, None if seconds is None else now + seconds))
        self._log.info("held", backend=name, who=who, why=why, for_seconds=seconds)
        return {"backend": name, "held": True}

    def release(self, name: str, body: Body) -> dict[str, Any]:
        """`who`; whether there was a hold is `was_held`."""
        self._known(name, body, "who")
        who = one_line(body, "who")
        released = self._holds.release(name, who, self._clock.time())
        self._log.info("released", backend=name, who=who, was_held=released)
        return {"backend": name, "held": False, "was_held": released}

    def reset_budget(self, name: str, body: Body) -> dict[str, Any]:
        """`who` and `why`."""
        self._known(name, body, "who", "why")
        who, why = one_line(body, "who"), one_line(body, "why")
        self._holds.reset_budget(name, who, why, self._clock.time())
        self._log.info("budget reset", backend=name, who=who, why=why)
        return {"backend": name, "reset": True}

    def reset_storm(self, body: Body) -> dict[str, Any]:
        """`who` and `why`; whether there was a storm is `was_storm`."""
        _keys(body, "who", "why")
        who, why = one_line(body, "who"), one_line(body, "why")
        was = self._holds.override_storm(who, why, self._clock.time())
        self._log.info("storm reset", who=who, why=why, was_storm=was)
        return {"reset": True, "was_storm": was}

    def restart(self, name: str, body: Body) -> dict[str, Any]:
        """`who`, `why`, and `overrule`, a list of rungs; the request climbs the ladder as an alert's does."""
        self._known(name, body, "who", "why", "overrule")
        who, why, overrules = one_line(body, "who"), one_line(body, "why"), _overrules(body)
        number = self._parts.journal.orders.place(name, Order(who, why, self._clock.time(), overrules))
        self._log.warning(
            "restart asked for", backend=name, who=who, why=why, overrules=",".join(sorted(overrules)), request=number
        )
        self._parts.wake.set()
        return {"backend": name, "request": number, "overrules": sorted(overrules)}

    def _known(self, name: str, body: Body, *keys: str) -> None:
        if name not in self._parts.config.backends:
            raise UnknownBackend(f"no backend is named {name[:MOST_CHARACTERS]!r}")
        _keys(body, *keys)


def blueprint(operator: Operator) -> Blueprint:
    """The API's routes that change state; their bodies are JSON objects."""
    routes = Blueprint("operate", __name__)

    @routes.errorhandler(BadRequest)
    def _bad_request(error: BadRequest) -> tuple[Response, int]:
        return jsonify(error=str(error)), 400

    @routes.errorhandler(UnknownBackend)
    def _unknown(error: UnknownBackend) -> tuple[Response, int]:
        return jsonify(error=str(error)), 404

    @routes.post("/api/v1/backends/<name>/hold")
    def hold(name: str) -> Response:
        return jsonify(operator.hold(name, _body()))

    @routes.post("/api/v1/backends/<name>/release")
    def release(name: str) -> Response:
        return jsonify(operator.release(name, _body()))

    @routes.post("/api/v1/backends/<name>/budget/reset")
    def reset_budget(name: str) -> Response:
        return jsonify(operator.reset_budget(name, _body()))

    @routes.post("/api/v1/backends/<name>/restart")
    def restart(name: str) -> tuple[Response, int]:
        return jsonify(operator.restart(name, _body())), 202

    @routes.post("/api/v1/storm/reset")
    def reset_storm() -> Response:
        return jsonify(operator.reset_storm(_body()))

    return routes


def _body() -> dict[str, Any]:
    body = request.get_json(force=True, silent=True)
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def _keys(body: Body, *keys: str) -> None:
    for key in body:
        if key not in keys:
            raise BadRequest(f"{str(key)[:40]!r} is not one of {', '.join(keys)}")


def one_line(body: Body, key: str) -> str:
    """A text of the body: one line, not empty, not long. Raises `BadRequest`."""
    value = body.get(key)
    if not isinstance(value, str) or not value.strip():
        raise BadRequest(f"{key}: is missing")
    if len(value) > MOST_CHARACTERS or not value.isprintable():
        raise BadRequest(f"{key}: must be one line of at most {MOST_CHARACTERS} characters")
    return value.strip()


def _seconds(body: Body) -> float | None:
    value = body.get("for_seconds")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_SECONDS:
        raise BadRequest("for_seconds: must be a number of seconds above 0, at most a year")
    return float(value)


def _overrules(body: Body) -> frozenset[Reason]:
    value = body.get("overrule", [])
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise BadRequest("overrule: must be a list of rungs of the ladder")
    for word in value:
        if word not in OVERRULABLE:
            raise BadRequest(f"overrule: {word[:40]!r} is not one of {', '.join(sorted(OVERRULABLE))}")
    return frozenset(Reason(word) for word in value)
