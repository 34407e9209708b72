"""One bounded HTTP exchange: a deadline for the whole of it, a cap on its size, and what happened when it failed.

A server that dribbles bytes cannot hold a caller: every receive and send gets only the time that is left.
Resolving a name is the one step without a deadline; the operating system bounds it.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead, RemoteDisconnected
from typing import Any, Literal
from urllib.parse import urljoin, urlsplit

import requests
from urllib3.exceptions import (
    DecodeError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
)
from urllib3.exceptions import (
    TimeoutError as AnyTimeoutError,
)

from stallwatch.deadline import DeadlineAdapter, Exchange, current, tls_context

Reason = Literal["refused", "timeout", "reset", "too_large", "redirect", "invalid"]
MOST_REDIRECTS = 3
MOST_PREPARED = 16
_DEFAULT_PORTS = {"http": 80, "https": 443}
CHUNK_BYTES = 64 * 1024


class HttpFailed(Exception):
    """No usable answer. `connected`, `written` and `received` tell how far the exchange came.

    `received` is true from the first byte; `status` is the HTTP status if the head of the answer was complete.
    """

    def __init__(
        self,
        reason: Reason,
        detail: str,
        *,
        connected: bool = False,
        written: bool = False,
        received: bool = False,
        status: int | None = None,
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail, self.status = reason, detail, status
        self.connected, self.written, self.received = connected, written, received


@dataclass(frozen=True, slots=True)
class Response:
    """An answer read to its end, whatever its status."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class Client:
    """A keep-alive client for one caller at a time. Proxy and netrc settings of the environment are ignored."""

    def __init__(self, headers: Mapping[str, str] | None = None, *, ca_file: str | None = None) -> None:
        self._headers = {"User-Agent": "stallwatch", "Accept-Encoding": "identity", **(headers or {})}
        self._verify: bool | str = ca_file or True
        self._adapter = DeadlineAdapter(tls_context(ca_file))
        self._prepared: dict[str, requests.PreparedRequest] = {}

    def close(self) -> None:
        """Close the connections that are kept."""
        self._adapter.close()

    def request(
        self,
        method: str,
        url: str,
        *,
        timeout_seconds: float,
        max_bytes: int,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
    ) -> Response:
        """Exchange one request for one answer. Raises `HttpFailed` and nothing else.

        A GET follows at most three redirects, to the same scheme, host and port only.
        """
        deadline = time.monotonic() + timeout_seconds
        for _ in range(MOST_REDIRECTS + 1):
            response = self._once(method, url, deadline, max_bytes, headers, json)
            location = response.headers.get("location")
            if method != "GET" or location is None or response.status not in (301, 302, 303, 307, 308):
                return response
            url = _redirected(url, location, response.status)
        raise _redirect_refused(f"more than {MOST_REDIRECTS} redirects", response.status)

    def _once(
        self, method: str, url: str, deadline: float, max_bytes: int, headers: Mapping[str, str] | None, json: Any
    ) -> Response:
        prepared = self._prepare(method, url, headers, json)
        for again in (True, False):
            exchange = current.exchange = Exchange(deadline)
            try:
                return self._send(prepared, exchange, max_bytes)
            except HttpFailed as failed:
                # A kept connection that the server had closed says nothing; one silent retry on a new one.
                stale = failed.reason == "reset" and not exchange.opened and not exchange.received
                if not (again and stale):
                    raise
        raise AssertionError("unreachable")

    def _prepare(self, method: str, url: str, headers: Mapping[str, str] | None, json: Any) -> requests.PreparedRequest:
        plain = method == "GET" and headers is None and json is None
        if plain and url in self._prepared:
            return self._prepared[url]
        try:
            merged = {**self._headers, **(headers or {})}
            prepared = requests.Request(method, url, headers=merged, json=json).prepare()
        except (requests.RequestException, ValueError) as error:
            raise HttpFailed("invalid", str(error)) from error
        if plain and len(self._prepared) < MOST_PREPARED:  # a server can redirect to ever new addresses
            self._prepared[url] = prepared
        return prepared

    def _send(self, prepared: requests.PreparedRequest, exchange: Exchange, max_bytes: int) -> Response:
        status = None
        try:
            left = exchange.remaining()
            answer = self._adapter.send(prepared, stream=True, timeout=left, verify=self._verify, proxies={})
            status = answer.status_code
            try:
                headers = {name.lower(): value for name, value in answer.headers.items()}
                length = headers.get("content-length")
                if length is not None and not (length.isascii() and length.isdigit()):
                    raise ValueError("bad Content-Length")  # the library would read on to the end of the connection
                body = _read(answer.raw, max_bytes)
            except BaseException:
                answer.raw.close()
                raise
            return Response(status, body, headers)
        except _TooLarge:
            raise _failed("too_large", f"more than {max_bytes} bytes", exchange, status) from None
        except (requests.RequestException, HTTPError, HTTPException, OSError, ValueError) as error:
            reason, detail = _explain(error)
            raise _failed(reason, detail, exchange, status) from None


class _TooLarge(Exception):
    pass


def _read(raw: Any, max_bytes: int) -> bytes:
    parts, size = [], 0
    while chunk := raw.read(CHUNK_BYTES, decode_content=True):
        size += len(chunk)
        if size > max_bytes:
            raise _TooLarge
        parts.append(chunk)
    return b"".join(parts)


def _redirected(url: str, location: str, status: int) -> str:
    """Where a redirect leads, if that is the same server: what is in the headers must go nowhere else."""
    try:
        target = urljoin(url, location)
        same = _origin(target) == _origin(url)
    except ValueError:
        raise _redirect_refused("the server redirects to what is no address", status) from None
    if not same:
        raise _redirect_refused("the server redirects to another host", status)
    return target


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ValueError("credentials")
    return parts.scheme, parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme)


def _redirect_refused(detail: str, status: int) -> HttpFailed:
    return HttpFailed("redirect", detail, connected=True, written=True, received=True, status=status)


def _failed(reason: Reason, detail: str, exchange: Exchange, status: int | None) -> HttpFailed:
    return HttpFailed(
        reason,
        detail,
        connected=exchange.connected,
        written=exchange.written,
        received=exchange.received,
        status=status,
    )


def _explain(error: BaseException) -> tuple[Reason, str]:
    """The reason behind a library's error, and a short text without addresses or credentials."""
    causes = _causes(error)
    # A bad length of a chunk comes as an incomplete read made from a ValueError; an empty one is the connection's end.
    garbled = any(isinstance(cause, ValueError) and not str(cause).endswith("b''") for cause in causes)
    for cause in causes:
        if isinstance(cause, ConnectionRefusedError):
            return "refused", "connection refused"
        if isinstance(cause, NameResolutionError | socket.gaierror):
            return "timeout", "the host name cannot be resolved"
        if isinstance(cause, ssl.SSLError):
            return "invalid", f"TLS: {getattr(cause, 'verify_message', '') or cause.reason or 'failed'}"
        if isinstance(cause, TimeoutError | ReadTimeoutError | requests.Timeout) or (
            isinstance(cause, AnyTimeoutError) and not isinstance(cause, NewConnectionError)
        ):
            return "timeout", "no complete answer by the deadline"
        if isinstance(cause, ConnectionError | RemoteDisconnected) or (
            isinstance(cause, IncompleteRead) and not garbled
        ):
            return "reset", "the connection was closed before the answer was complete"
    for cause in causes:
        if isinstance(cause, HTTPException | DecodeError | ProtocolError | ValueError):
            return "invalid", f"not HTTP as it should be: {type(cause).__name__}"
    return "timeout", f"unreachable: {type(error).__name__}"


def _causes(error: BaseException) -> list[BaseException]:
    """The error and all it was made from, innermost first."""
    found: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting and len(found) < 30:
        cause = waiting.pop()
        if isinstance(cause, BaseException) and cause not in found:
            found.append(cause)
            waiting += [cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args]
    return found[::-1]
