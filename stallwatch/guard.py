"""Basic authentication and headers before a WSGI application, as `--web.config.file` says: for every path of it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stallwatch.webconfig import Web, WebConfig

KEPT = 100
"""Verified pairs of user and password that are remembered, as digests, so that a scrape costs no bcrypt."""
AT_ONCE = 4
"""Passwords that are tried at the same time; of the eight threads the others stay for those who are known."""
_NOBODY = "." * 53

Application = Callable[..., Iterable[bytes]]


class Busy(Exception):
    """More passwords are being tried than this program tries at once."""


class Guard:
    """Verifies passwords against bcrypt hashes. An unknown user takes as long as a known one."""

    def __init__(self) -> None:
        self._salt, self._lock = secrets.token_bytes(32), threading.Lock()
        self._verified: OrderedDict[bytes, None] = OrderedDict()
        self._trying = threading.BoundedSemaphore(AT_ONCE)

    def accepts(self, authorization: str, users: Mapping[str, str]) -> bool:
        """Whether the header names one of the users with his password. Raises `Busy`."""
        given = _basic(authorization)
        if given is None:
            return False
        name, password = given
        known = users.get(name.decode("utf-8", "replace"))
        # The dearest of the costs in use: which users there are must not show in the time.
        hashed = known or f"$2b${max(value[4:6] for value in users.values())}${_NOBODY}"
        digest = self._digest(name, hashed.encode(), password)
        with self._lock:
            if digest in self._verified:
                self._verified.move_to_end(digest)
                return True
        if not self._trying.acquire(blocking=False):
            raise Busy
        try:
            right = _matches(password, hashed) and known is not None
        finally:
            self._trying.release()
        if right:
            with self._lock:
                self._verified[digest] = None
                while len(self._verified) > KEPT:
                    self._verified.popitem(last=False)
        return right

    def _digest(self, *parts: bytes) -> bytes:
        digest = hashlib.sha256(self._salt)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()


def guarded(app: Application, config: WebConfig) -> Application:
    """The application behind what the file says. Headers that the application sets itself stay its own."""
    guard = Guard()

    def serve(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        web = config.current()

        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            own = {name.lower() for name, _ in headers}
            added = [(name, value) for name, value in web.headers.items() if name.lower() not in own]
            return start_response(status, [*headers, *added], *more)

        refused = _refusal(guard, environ, web)
        if refused is None:
            return app(environ, start)
        status, *headers = refused
        body = f"{status[4:]}\n".encode()
        start(status, [*headers, ("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
        return [body]

    return serve


def _refusal(guard: Guard, environ: Mapping[str, Any], web: Web) -> tuple[Any, ...] | None:
    if not web.users:
        return None
    try:
        if guard.accepts(environ.get("HTTP_AUTHORIZATION", ""), web.users):
            return None
    except Busy:
        return "503 Service Unavailable", ("Retry-After", "1")
    return "401 Unauthorized", ("WWW-Authenticate", 'Basic realm="stallwatch", charset="UTF-8"')


def _basic(authorization: str) -> tuple[bytes, bytes] | None:
    kind, _, encoded = authorization.partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


def _matches(password: bytes, hashed: str) -> bool:
    import bcrypt  # noqa: PLC0415  # an extra: only who has users needs it

    try:
        return bcrypt.checkpw(password[:72], hashed.encode())  # bcrypt reads no more, here as there
    except ValueError:
        return False
