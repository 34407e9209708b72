"""Who uses the page's buttons: a name and the webhook's secret, kept in a signed cookie that only this page sends.

A form is taken only from this program's own pages: the browser's word for it (Sec-Fetch-Site, else Origin), and a
token in the form that no other page can read. Without credentials, only at an address that no name of somebody else's
can be made to lead to (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from datetime import timedelta
from urllib.parse import urlsplit

from flask import Flask, Request, request, session
from flask.sessions import SecureCookieSessionInterface
from flask_wtf.csrf import CSRFError, CSRFProtect

from remediator.auth import Credentials, Refused

LIFETIME = timedelta(hours=12)
"""A shift. A secret that is changed ends all sessions at the next start."""
COOKIE = "stallwatch_remediator"
WHO = "who"


class _Cookies(SecureCookieSessionInterface):
    """The cookie is marked Secure where the request came by TLS."""

    def get_cookie_secure(self, app: Flask) -> bool:  # noqa: ARG002
        return request.is_secure


class SignIn:
    """Sessions of one program; replicas that share the secret take each other's."""

    def __init__(self, app: Flask, credentials: Credentials) -> None:
        self._credentials = credentials
        self._csrf = CSRFProtect()
        app.secret_key = _key(credentials)
        app.session_interface = _Cookies()
        app.permanent_session_lifetime = LIFETIME
        app.config.update(
            SESSION_COOKIE_NAME=COOKIE,
            SESSION_COOKIE_HTTPONLY=True,
            SESSION_COOKIE_SAMESITE="Strict",
            WTF_CSRF_CHECK_DEFAULT=False,  # the gate asks, and for forms alone
            WTF_CSRF_TIME_LIMIT=None,  # a page may stay open as long as its session
            WTF_CSRF_SSL_STRICT=False,  # wants a Referer, which our pages do not send; the gate looks at Origin
        )
        self._csrf.init_app(app)

    @property
    def asks_for_secret(self) -> bool:
        """Whether a name alone is not enough."""
        return self._credentials.needed

    @property
    def who(self) -> str | None:
        """The name of whoever sends this request, if signed in."""
        who = session.get(WHO)
        return who if isinstance(who, str) else None

    def admit(self, form: Request, *, signed_in: bool) -> None:
        """Raise `Refused` unless a form comes from our own page, and (`signed_in`) from somebody known."""
        if not _same_origin(form):
            raise Refused(403, "forms of other web pages are not accepted")
        if not self._credentials.needed and not _own_address(form.host):
            raise Refused(403, "without credentials, open this page at an IP address or at localhost")
        try:
            self._csrf.protect()
        except CSRFError:
            raise Refused(403, "this form is too old, or not ours: open the page again") from None
        if signed_in and self.who is None:
            raise Refused(401, "sign in first")

    def enter(self, who: str, secret: str) -> None:
        """Sign in. Raises `Refused` for a secret that is neither the token nor the password."""
        if not self._credentials.knows(secret):
            raise Refused(401, "that is not the token or password")
        session.clear()
        session.permanent = True
        session[WHO] = who

    def leave(self) -> None:
        """Sign out."""
        session.clear()


def _key(credentials: Credentials) -> bytes:
    known = [one for one in (credentials.token, credentials.password) if one is not None]
    if not known:
        return secrets.token_bytes(32)
    return hmac.new("\0".join(known).encode(), b"stallwatch remediator: sessions", hashlib.sha256).digest()


def _same_origin(form: Request) -> bool:
    site = form.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    origin = form.headers.get("Origin")
    return origin is not None and urlsplit(origin).netloc == form.host


def _own_address(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
