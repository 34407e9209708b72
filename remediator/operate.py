"""What persons change over HTTP: holds, budgets, the storm stop. All of it is journalled; `web` lets nobody in
without credentials."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify, request

from remediator.model import Hold
from remediator.parts import Parts
from stallwatch.logs import get_logger

MOST_CHARACTERS = 200
MOST_SECONDS = 366 * 86400.0


class BadRequest(Exception):
    """The body is not what it must be; the text is one line."""


def blueprint(parts: Parts) -> Blueprint:
    """The routes that change state."""
    routes = Blueprint("operate", __name__)
    log, holds, clock = get_logger("web"), parts.journal.holds, parts.clock

    @routes.errorhandler(BadRequest)
    def _bad_request(error: BadRequest) -> tuple[Response, int]:
        return jsonify(error=str(error)), 400

    @routes.post("/api/v1/backends/<name>/hold")
    def hold(name: str) -> tuple[Response, int]:
        if name not in parts.config.backends:
            return _unknown(name)
        body = _body("who", "why", "for_seconds")
        who, why, now = _text(body, "who"), _text(body, "why"), clock.time()
        seconds = _seconds(body)
        holds.hold(Hold(name, who, why, now, None if seconds is None else now + seconds))
        log.info("held", backend=name, who=who, why=why, for_seconds=seconds)
        return jsonify(backend=name, held=True), 200

    @routes.post("/api/v1/backends/<name>/release")
    def release(name: str) -> tuple[Response, int]:
        if name not in parts.config.backends:
            return _unknown(name)
        who = _text(_body("who"), "who")
        released = holds.release(name, who, clock.time())
        log.info("released", backend=name, who=who, was_held=released)
        return jsonify(backend=name, held=False, was_held=released), 200

    @routes.post("/api/v1/backends/<name>/budget/reset")
    def reset_budget(name: str) -> tuple[Response, int]:
        if name not in parts.config.backends:
            return _unknown(name)
        body = _body("who", "why")
        who, why = _text(body, "who"), _text(body, "why")
        holds.reset_budget(name, who, why, clock.time())
        log.info("budget reset", backend=name, who=who, why=why)
        return jsonify(backend=name, reset=True), 200

    @routes.post("/api/v1/storm/reset")
    def reset_storm() -> tuple[Response, int]:
        body = _body("who", "why")
        who, why = _text(body, "who"), _text(body, "why")
        was = holds.override_storm(who, why, clock.time())
        log.info("storm reset", who=who, why=why, was_storm=was)
        return jsonify(reset=True, was_storm=was), 200

    return routes


def _unknown(name: str) -> tuple[Response, int]:
    return jsonify(error=f"no backend is named {name!r}"), 404


def _body(*keys: str) -> dict[str, Any]:
    body = request.get_json(force=True, silent=True)
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    for key in body:
        if key not in keys:
            raise BadRequest(f"{str(key)[:40]!r} is not one of {', '.join(keys)}")
    return body


def _text(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value.strip():
        raise BadRequest(f"{key}: is missing")
    if len(value) > MOST_CHARACTERS or not value.isprintable():
        raise BadRequest(f"{key}: must be one line of at most {MOST_CHARACTERS} characters")
    return value.strip()


def _seconds(body: dict[str, Any]) -> float | None:
    value = body.get("for_seconds")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_SECONDS:
        raise BadRequest("for_seconds: must be a number of seconds above 0, at most a year")
    return float(value)
