"""`create_app`: the webhook, /metrics, health, the record of actions, the status page.

The webhook only parses and writes to the journal: it answers before anything is decided.
"""

from __future__ import annotations

from collections.abc import Callable

from flask import Flask, Response, jsonify, request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge, TooManyRequests

from remediator import alerts, auth, forms, operate, status
from remediator.database import JournalFailed
from remediator.metrics import JournalCollector
from remediator.parts import Parts
from remediator.rate import Rate
from remediator.signin import SignIn
from stallwatch import ui
from stallwatch.logs import get_logger

MAX_BODY_BYTES = 8 * 1024 * 1024
"""More than ten thousand alerts; what is larger is no delivery of an Alertmanager."""
POSTS_PER_SECOND = 200.0
"""Four times what fifty Alertmanagers that repeat every second would send."""
REFUSALS_PER_SECOND = 5.0
LOGGED_PER_SECOND = 1.0
SHOWN, MOST_SHOWN = 50, 500
LOGGED_ALERTS = 20
"""Alerts of one delivery that get a line of their own in the log."""


def create_app(parts: Parts, is_alive: Callable[[], bool]) -> Flask:
    """The remediator's web application; `is_alive` tells whether the loop of decisions goes round."""
    app = Flask("stallwatch-remediator", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    parts.metrics.registry.register(JournalCollector(parts.config, parts.journal, parts.clock.time))
    ui.add_to(app, "remediator")
    sign, operator = SignIn(app, parts.config.credentials), operate.Operator(parts)
    _add_gate(app, parts, sign)
    app.register_blueprint(operate.blueprint(operator))
    app.register_blueprint(forms.blueprint(parts, sign, operator))
    _add_webhook(app, parts)
    _add_pages(app, parts, sign)
    _add_health(app, parts, is_alive)
    _add_errors(app, parts)
    return app


def _add_gate(app: Flask, parts: Parts, sign: SignIn) -> None:
    """Whatever changes state is a POST, and no POST passes here without credentials: no route can forget to ask."""
    known = Rate(POSTS_PER_SECOND, 2 * POSTS_PER_SECOND, parts.clock.monotonic)
    unknown = Rate(REFUSALS_PER_SECOND, 10 * REFUSALS_PER_SECOND, parts.clock.monotonic)

    @app.before_request
    def gate() -> None:
        if request.method in ("GET", "HEAD", "OPTIONS"):
            return
        try:
            if request.blueprint == forms.NAME:
                sign.admit(request, signed_in=request.endpoint != forms.SIGN_IN)
            else:
                auth.check(request, parts.config.credentials)
            rate = unknown if request.endpoint == forms.SIGN_IN else known  # a secret can be guessed there
        except auth.Refused:
            rate = unknown  # of its own: whoever knows no secret must not use up what Alertmanager needs
            if rate.allows():
                raise
            raise _too_many() from None
        if not rate.allows():
            raise _too_many()


def _too_many() -> TooManyRequests:
    return TooManyRequests("more requests than this program takes")


def _add_webhook(app: Flask, parts: Parts) -> None:
    log, metrics = get_logger("webhook"), parts.metrics

    @app.post("/api/v1/alerts")
    def receive() -> tuple[Response, int]:
        payload = alerts.parse(request.get_data(cache=False))
        opened = parts.journal.inbox.receive(payload.alerts, parts.clock.time())
        for alert in payload.alerts:
            metrics.webhook_alerts.labels(alert.status).inc()
        metrics.webhook_truncated.inc(payload.truncated)
        firing = [alert for alert in payload.alerts if alert.status == "firing"]
        log.info(
            "webhook received",
            firing=len(firing),
            resolved=sum(alert.status == "resolved" for alert in payload.alerts),
            opened=len(opened),
            truncated=payload.truncated,
            skipped=payload.skipped,
        )
        for alert in [alert for alert in firing if alert.backend in opened][:LOGGED_ALERTS]:
            log.info("alert received", backend=alert.backend, alert=alert.name, fingerprint=alert.fingerprint)
        if opened:
            parts.wake.set()
        return jsonify(status="accepted", alerts=len(payload.alerts), opened=len(opened)), 202

    @app.after_request
    def count(response: Response) -> Response:
        if request.method == "POST" and request.path == "/api/v1/alerts":
            metrics.webhook_requests.labels(str(response.status_code)).inc()
        return response


def _add_pages(app: Flask, parts: Parts, sign: SignIn) -> None:
    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(parts.metrics.registry), content_type=CONTENT_TYPE_LATEST)

    @app.get("/")
    def page() -> Response:
        return status.render(parts, sign)

    @app.get("/api/v1/actions")
    def actions() -> Response:
        limit = request.args.get("limit", SHOWN, type=int)
        return jsonify(status.document(parts, min(max(1, limit), MOST_SHOWN)))

    @app.get("/api/v1/actions/<int:attempt_id>/evidence")
    def evidence(attempt_id: int) -> tuple[Response, int]:
        found = parts.journal.reader.evidence(attempt_id) if attempt_id < 2**31 else None
        if found is None:
            return jsonify(error=f"there is no attempt {attempt_id}"), 404
        return jsonify(found), 200


def _add_health(app: Flask, parts: Parts, is_alive: Callable[[], bool]) -> None:
    @app.get("/-/healthy")
    def healthy() -> tuple[str, int]:
        if not is_alive():
            return "The loop of decisions stands still.\n", 503
        return "stallwatch remediator is healthy.\n", 200

    @app.get("/-/ready")
    def ready() -> tuple[str, int]:
        parts.journal.check_writable(parts.clock.time())
        return "stallwatch remediator is ready.\n", 200


def _add_errors(app: Flask, parts: Parts) -> None:
    log, rate = get_logger("web"), Rate(LOGGED_PER_SECOND, 20, parts.clock.monotonic)

    def answer(text: str, code: int) -> tuple[Response, int]:
        tell = log.warning if rate.allows() else log.debug  # what anybody can cause must not fill a disk
        tell("request refused", path=request.path[:100], code=code, error=text, client=request.remote_addr)
        return jsonify(error=text), code

    @app.errorhandler(alerts.Malformed)
    def malformed(error: alerts.Malformed) -> tuple[Response, int]:
        return answer(str(error), 400)

    @app.errorhandler(auth.Refused)
    def refused(error: auth.Refused) -> tuple[Response, int, dict[str, str]]:
        return *answer(str(error), error.status), auth.challenge(error, parts.config.credentials)

    @app.errorhandler(RequestEntityTooLarge)
    def too_large(_error: RequestEntityTooLarge) -> tuple[Response, int]:
        return answer(f"the body is larger than {MAX_BODY_BYTES} bytes", 413)

    @app.errorhandler(TooManyRequests)
    def too_many(error: TooManyRequests) -> tuple[Response, int, dict[str, str]]:
        return *answer(str(error.description), 429), {"Retry-After": "1"}

    @app.errorhandler(JournalFailed)
    def unwritable(error: JournalFailed) -> tuple[Response, int]:
        return answer(f"the journal cannot be used: {error}", 503)

    @app.errorhandler(HTTPException)
    def other(error: HTTPException) -> tuple[Response, int]:
        return jsonify(error=error.description or error.name), error.code or 500
