"""The page of one backend, and the forms by which persons hold, release, reset and restart.

Whatever a form does is done by `operate.Operator`, as for the API; who may send one, `signin.SignIn` tells.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from flask import Blueprint, Response, flash, redirect, request
from werkzeug.wrappers import Response as AnyResponse

from remediator import operate, status
from remediator.auth import Refused
from remediator.model import Reason
from remediator.operate import MOST_CHARACTERS, BadRequest, UnknownBackend
from remediator.parts import Parts
from remediator.signin import SignIn
from stallwatch.logs import get_logger
from stallwatch.ui import root_of

NAME = "forms"
SIGN_IN = f"{NAME}.sign_in"
OVERRULES: dict[Reason, str] = {
    Reason.NOT_CONFIRMED: "it is not proven stuck: it may be healthy, and its work will be lost",
    Reason.STARTING: "it is still loading",
    Reason.COOLDOWN: "its last restart was a short while ago",
    Reason.BUDGET_EXHAUSTED: "its restart budget is used up",
    Reason.GROUP_BUSY: "its group still settles after another restart",
    Reason.BELOW_MINIMUM_HEALTHY: "a part of it works, and too few others of its group do",
    Reason.STORM: "too many groups are in trouble at once",
    Reason.NOT_OPTED_IN: "it is not set up to be restarted automatically (restart_on)",
}
"""The rungs that a person may overrule, as the form says them."""
SPANS = {"900": "15 min", "3600": "1 h", "14400": "4 h", "86400": "1 day", "604800": "1 week", "": "until released"}


def blueprint(parts: Parts, sign: SignIn, operator: operate.Operator) -> Blueprint:
    """The pages and forms. Reading needs nobody's name; every form does."""
    routes = Blueprint(NAME, __name__)
    log = get_logger("web")

    def page(template: str, code: int = 200, **values: Any) -> Response:
        return status.page(template, parts, sign, code, **values)

    def sign_in_page(code: int = 200, wrong: str = "", who: str = "") -> Response:
        to = request.values.get("to", "")
        return page("sign_in.html", code, wrong=wrong, name=who, to=to if to in parts.config.backends else "")

    def done(text: str, name: str = "") -> AnyResponse:
        flash(text)
        return redirect(_way(name), 303)

    @routes.errorhandler(Refused)
    def _refused(error: Refused) -> Response:
        log.warning("form refused", path=request.path[:100], error=str(error), client=request.remote_addr)
        if error.status == 401:
            return sign_in_page(401, str(error), request.form.get("who", "")[:MOST_CHARACTERS])
        return page("notice.html", error.status, title="Not accepted", text=str(error))

    @routes.errorhandler(BadRequest)
    def _bad_request(error: BadRequest) -> Response:
        return page("notice.html", 400, title="Not accepted", text=str(error))

    @routes.errorhandler(UnknownBackend)
    def _unknown(error: UnknownBackend) -> Response:
        return page("notice.html", 404, title="Not found", text=str(error))

    @routes.get("/sign-in")
    def sign_in_form() -> Response:
        return sign_in_page()

    @routes.post("/sign-in")
    def sign_in() -> AnyResponse:
        who = operate.one_line(request.form, "who")
        sign.enter(who, request.form.get("secret", ""))
        log.info("signed in", who=who, client=request.remote_addr)
        to = request.form.get("to", "")
        return redirect(_way(to if to in parts.config.backends else ""), 303)

    @routes.post("/sign-out")
    def sign_out() -> AnyResponse:
        sign.leave()
        return redirect(_way(), 303)

    @routes.get("/backends/<name>")
    def one_backend(name: str) -> Response:
        if name not in parts.config.backends:
            raise UnknownBackend(f"no backend is named {name[:MOST_CHARACTERS]!r}")
        shown = status.of_backend(parts, name, status.SHOWN_ON_PAGE)
        return page("backend.html", spans=SPANS, overrules=OVERRULES, longest=MOST_CHARACTERS, **shown)

    @routes.post("/backends/<name>/hold")
    def hold(name: str) -> AnyResponse:
        span = request.form.get("for_seconds", "")
        if span not in SPANS:
            raise BadRequest("for_seconds: is not one of those that the form offers")
        operator.hold(name, {**said("why"), "for_seconds": float(span) if span else None})
        return done(f"{name} is held: nothing restarts it.", name)

    @routes.post("/backends/<name>/release")
    def release(name: str) -> AnyResponse:
        operator.release(name, said())
        return done(f"{name} is released.", name)

    @routes.post("/backends/<name>/budget/reset")
    def reset_budget(name: str) -> AnyResponse:
        operator.reset_budget(name, said("why"))
        return done(f"The restart budget of {name} is full again.", name)

    @routes.post("/backends/<name>/restart")
    def restart(name: str) -> AnyResponse:
        operator.restart(name, {**said("why"), "overrule": request.form.getlist("overrule")})
        return done("Restart asked for. What is decided stands under Restarts by hand.", name)

    @routes.post("/storm/reset")
    def reset_storm() -> AnyResponse:
        was = operator.reset_storm(said("why"))["was_storm"]
        return done("The storm stop is lifted." if was else "There was no storm any more.")

    def said(*keys: str) -> dict[str, Any]:
        return {"who": sign.who, **{key: request.form.get(key, "") for key in keys}}

    return routes


def _way(name: str = "") -> str:
    """The relative way to a backend's page, or to the first page, from where the browser is."""
    return root_of(request.path) + (f"backends/{quote(name, safe='')}" if name else "")
