"""Who may change anything: one bearer token, compared in constant time, and never a web page of somebody else's."""

from __future__ import annotations

import hmac

from flask import Request


class Refused(Exception):
    """The caller may not do this; `status` is 401 or 403."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def check(request: Request, token: str | None) -> None:
    """Raise `Refused` unless the request carries the token, or none is configured (then only loopback listens)."""
    if "Origin" in request.headers:
        # A browser sends this with every POST: a page that an operator happens to visit must not reach loopback.
        raise Refused(403, "requests from web pages are not accepted")
    if token is None:
        return
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    same = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), token.encode())
    if scheme.lower() != "bearer" or not same:
        raise Refused(401, "a valid bearer token is needed")
