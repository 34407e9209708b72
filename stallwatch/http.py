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
from http.client import HTTPException, RemoteDisconnected
from typing import Any, Literal
from urllib.parse import urljoin, urlsplit

import requests
from urllib3.exceptions import (
    DecodeError,
    HTTPError,
    IncompleteRead,
    InvalidChunkLength,
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
CHUNK_BYTES = 64 * 1024


class HttpFailed(Exception):
    """No usable answer. `connected`, `written` and `received` tell how far the exchange came."""

    def __init__(
        self, reason: Reason, detail: str, *, connected: bool = False, written: bool = False, received: bool = False
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail
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
            target = urljoin(url, location)
            if urlsplit(target)[:2] != urlsplit(url)[:2]:
                raise HttpFailed("redirect", "the server redirects to another host", received=True)
            url = target
        raise HttpFailed("redirect", f"more than {MOST_REDIRECTS} redirects", received=True)

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
        if plain:
            self._prepared[url] = prepared
        return prepared

    def _send(self, prepared: requests.PreparedRequest, exchange: Exchange, max_bytes: int) -> Response:
        try:
            left = exchange.remaining()
            answer = self._adapter.send(prepared, stream=True, timeout=left, verify=self._verify, proxies={})
            try:
                body = _read(answer.raw, max_bytes)
            except BaseException:
                answer.raw.close()
                raise
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return Response(answer.status_code, body, headers)
        except _TooLarge:
            raise _failed("too_large", f"more than {max_bytes} bytes", exchange) from None
        except (requests.RequestException, HTTPError, HTTPException, OSError, ValueError) as error:
            reason, detail = _explain(error)
            raise _failed(reason, detail, exchange) from None


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


def _failed(reason: Reason, detail: str, exchange: Exchange) -> HttpFailed:
    return HttpFailed(
        reason, detail, connected=exchange.connected, written=exchange.written, received=exchange.received
    )


def _explain(error: BaseException) -> tuple[Reason, str]:
    """The reason behind a library's error, and a short text without addresses or credentials."""
    for cause in _causes(error):
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
        if isinstance(cause, ConnectionError | RemoteDisconnected | IncompleteRead) and not isinstance(
            cause, InvalidChunkLength
        ):
            return "reset", "the connection was closed before the answer was complete"
    for cause in _causes(error):
        if isinstance(cause, HTTPException | DecodeError | ProtocolError | ValueError | InvalidChunkLength):
            return "invalid", f"not HTTP as it should be: {type(cause).__name__}"
    return "timeout", f"unreachable: {type(error).__name__}"


def _causes(error: BaseException) -> list[BaseException]:
    """The error and all it was made from, innermost first."""
    found: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting and len(found) < 30:
        current = waiting.pop()
        if isinstance(current, BaseException) and current not in found:
            found.append(current)
            waiting += [current.__cause__, current.__context__, getattr(current, "reason", None), *current.args]
    return found[::-1]
