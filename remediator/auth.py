"""Who may change anything: a bearer token or a name and password, and never a web page of somebody else's."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from flask import Request


class Refused(Exception):
    """The caller may not do this; `status` is 401 or 403."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Credentials:
    """What a caller must show: either of those that are set. Never part of any text."""

    token: str | None = field(default=None, repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def needed(self) -> bool:
        """Whether callers must show anything at all; if not, only loopback listens unless a person allowed more."""
        return self.token is not None or self.password is not None

    def knows(self, secret: str) -> bool:
        """Whether a secret is the token or the password. Each is compared, in constant time; True if none is needed."""
        found = [_same(secret, wanted) for wanted in (self.token, self.password) if wanted is not None]
        return any(found) or not found


NOBODY = Credentials()
"""Nothing has to be shown."""


def check(request: Request, credentials: Credentials) -> None:
    """Raise `Refused` unless the request carries what is needed. Compared in constant time."""
    if "Origin" in request.headers:
        # A browser sends this with every POST: a page that an operator happens to visit must not reach loopback.
        raise Refused(403, "requests from web pages are not accepted")
    if not credentials.needed:
        return
    given = request.authorization
    if given is not None and given.type == "bearer" and credentials.token is not None:
        accepted = _same(given.token, credentials.token)
    elif given is not None and given.type == "basic" and credentials.password is not None:
        # Both are always compared: the time must not tell which of them was wrong.
        name, password = _same(given.username, credentials.username), _same(given.password, credentials.password)
        accepted = name and password
    else:
        accepted = False
    if not accepted:
        raise Refused(401, "valid credentials are needed")


def challenge(refused: Refused, credentials: Credentials) -> dict[str, str]:
    """The header that tells a client how to show who it is; empty where that would not help."""
    if refused.status != 401:
        return {}
    return {"WWW-Authenticate": 'Basic realm="stallwatch"' if credentials.password is not None else "Bearer"}


def _same(given: str | None, wanted: str | None) -> bool:
    return hmac.compare_digest((given or "").encode("utf-8", "surrogateescape"), (wanted or "").encode())
