"""Sockets whose every operation ends at the deadline of the exchange under way, plugged into `requests`."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection


class Exchange:
    """The exchange under way on this thread."""

    __slots__ = ("connected", "deadline", "opened", "received", "written")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.connected = self.opened = self.written = self.received = False

    def remaining(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline of the exchange is over")
        return left


current = threading.local()


def _remaining() -> float:
    exchange: Exchange = current.exchange
    return exchange.remaining()


class DeadlineSocket(socket.socket):
    """A socket whose every operation ends at the deadline of the exchange."""

    def recv_into(self, *arguments: Any) -> int:
        self.settimeout(_remaining())
        count = super().recv_into(*arguments)
        current.exchange.received = current.exchange.received or count > 0
        return count

    def sendall(self, *arguments: Any) -> None:
        self.settimeout(_remaining())
        super().sendall(*arguments)


class _TlsSocket(ssl.SSLSocket):
    """The same under TLS."""

    def recv_into(self, *arguments: Any, **named: Any) -> int:
        self.settimeout(_remaining())
        count = super().recv_into(*arguments, **named)
        current.exchange.received = current.exchange.received or count > 0
        return count

    def sendall(self, *arguments: Any, **named: Any) -> None:
        self.settimeout(_remaining())
        super().sendall(*arguments, **named)


class Noting:
    """Notes on the exchange how far a connection came."""

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        current.exchange.connected = current.exchange.opened = True

    def request(self, *arguments: Any, **named: Any) -> None:
        super().request(*arguments, **named)  # type: ignore[misc]
        current.exchange.connected = current.exchange.written = True


class _Connection(Noting, HTTPConnection):
    def _new_conn(self) -> socket.socket:
        self.timeout = _remaining()
        return DeadlineSocket(fileno=super()._new_conn().detach())


class _TlsConnection(Noting, HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        self.timeout = _remaining()
        return super()._new_conn()


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class DeadlineAdapter(HTTPAdapter):
    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__(pool_connections=2, pool_maxsize=2, max_retries=0)

    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
        super().init_poolmanager(*arguments, **named, ssl_context=self._context)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}


_default_context: list[ssl.SSLContext] = []


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """The context of the system's authorities is made once: loading them takes tens of milliseconds."""
    if ca_file is None and _default_context:
        return _default_context[0]
    context = ssl.create_default_context(cafile=ca_file)
    context.sslsocket_class = _TlsSocket
    if ca_file is None:
        _default_context.append(context)
    return context
