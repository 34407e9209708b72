"""Serving a WSGI application on cheroot: threads, bounds, and an end within two seconds.

A client that says nothing costs no thread; one that dribbles its handshake, its request, or the reading of an answer,
is cut off.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from cheroot import errors, wsgi
from cheroot.makefile import MakeFile
from cheroot.server import HTTPConnection
from cheroot.ssl import Adapter

from stallwatch.guard import guarded
from stallwatch.logs import get_logger
from stallwatch.settings import SettingsError
from stallwatch.webconfig import WebConfig

MAX_HEADER_BYTES = 64 * 1024
BACKLOG = 128
IDLE_SECONDS = 10
"""A connection without any request is closed after so long."""
EXCHANGE_SECONDS = 10.0
"""A request must have arrived in so long, and its answer be taken in as much again, however steadily bytes come."""
PLAIN = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nThis port speaks HTTPS.\n"
GRACE_SECONDS = 1
STOP_SECONDS = 1.8


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `:PORT` (all addresses), brackets around IPv6. Raises `SettingsError`."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise SettingsError(f"{text!r} is no listen address: HOST:PORT or :PORT is wanted")
    return host or "0.0.0.0", int(port)


class _Bounded:
    """A client's socket with a deadline for all reads of one request together, and one for all writes of its answer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._reading, self._deadline = False, 0.0
        self._greeted = not isinstance(inner, ssl.SSLSocket)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin(self) -> None:
        """A request begins."""
        self._reading, self._deadline = True, time.monotonic() + EXCHANGE_SECONDS

    def greet(self) -> bool:
        """The TLS handshake, if it is due, in the time of the first request. Return whether the client can be served.

        It is not done where connections are accepted: one client that says nothing would keep out all others.
        """
        if self._greeted:
            return True
        try:
            self._arm(reading=True)
            self._inner.do_handshake()
        except OSError as error:  # errors of TLS and time-outs, too
            if getattr(error, "reason", "") == "HTTP_REQUEST":
                with contextlib.suppress(OSError):  # the rest of its request is read first, else the answer is lost
                    os.read(self._inner.fileno(), MAX_HEADER_BYTES)
                with contextlib.suppress(OSError):
                    os.write(self._inner.fileno(), PLAIN)
            _log(f"no handshake: {error}")
            return False
        self._greeted = True
        return True

    def unread(self) -> bool:
        """Whether bytes were decrypted that nobody has read yet: the socket itself would stay silent about them."""
        return isinstance(self._inner, ssl.SSLSocket) and self._greeted and self._inner.pending() > 0

    def recv_into(self, *arguments: Any) -> int:
        self._arm(reading=True)
        try:
            return int(self._inner.recv_into(*arguments))
        except ssl.SSLError as error:
            raise errors.FatalSSLAlert(str(error)) from error

    def send(self, *arguments: Any) -> int:
        self._arm(reading=False)
        try:
            return int(self._inner.send(*arguments))
        except ssl.SSLError as error:
            raise errors.FatalSSLAlert(str(error)) from error

    def _arm(self, *, reading: bool) -> None:
        now = time.monotonic()
        if self._reading is not reading:  # the application's own time counts for neither
            self._reading, self._deadline = reading, now + EXCHANGE_SECONDS
        if now >= self._deadline:
            raise TimeoutError("timed out")
        self._inner.settimeout(self._deadline - now)


class _Connection(HTTPConnection):
    def __init__(self, server: Any, sock: Any, *arguments: Any) -> None:
        super().__init__(server, _Bounded(sock), *arguments)

    def communicate(self) -> Any:
        self.socket.begin()
        return self.socket.greet() and super().communicate()  # type: ignore[no-untyped-call]


class _Tls(Adapter):
    """TLS with the certificate as it is now. The handshake is left to the thread that serves the connection."""

    def __init__(self, config: WebConfig) -> None:
        self._config = config

    def bind(self, sock: socket.socket) -> socket.socket:
        return sock

    def wrap(self, sock: socket.socket) -> tuple[Any, dict[str, Any]]:
        context = self._config.current().context
        assert context is not None
        try:
            return context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), self.get_environ()
        except OSError as error:  # gone before it was greeted
            raise errors.FatalSSLAlert(str(error)) from error

    def get_environ(self) -> dict[str, Any]:
        return {"wsgi.url_scheme": "https", "HTTPS": "on"}

    def makefile(self, sock: Any, mode: str = "r", bufsize: int = -1) -> Any:
        return MakeFile(sock, mode, bufsize)


class _Cheroot(wsgi.Server):
    ConnectionClass = _Connection

    def process_conn(self, conn: Any) -> None:
        """Give a connection to a worker only once it has something to say; cheroot gives it at once."""
        if conn.last_used is None:
            self._connections.put(conn)  # type: ignore[attr-defined]
        else:
            super().process_conn(conn)

    def put_conn(self, conn: Any) -> None:
        """Keep a connection for its next request, which may have been decrypted already."""
        if conn.socket.unread():
            super().process_conn(conn)
        else:
            super().put_conn(conn)


class Server:
    """One listening address; `start` binds and serves beside the caller. `web`: TLS, users and headers."""

    def __init__(
        self,
        app: Callable[..., Any],
        listen: str,
        *,
        threads: int = 8,
        max_body_bytes: int = 16 * 1024 * 1024,
        web: WebConfig | None = None,
    ) -> None:
        self._listen = listen
        self._server = _Cheroot(
            parse_listen(listen),
            app if web is None else guarded(app, web),
            numthreads=threads,
            timeout=IDLE_SECONDS,
            server_name="stallwatch",
            request_queue_size=BACKLOG,
            shutdown_timeout=GRACE_SECONDS,
        )
        self._server.max_request_header_size = MAX_HEADER_BYTES
        self._server.max_request_body_size = max_body_bytes
        self._server.error_log = _log  # type: ignore[method-assign]
        if web is not None and web.tls:
            self._server.ssl_adapter = _Tls(web)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Bind and serve in a thread. Raises `SettingsError` when the address cannot be had."""
        _probe(self._listen)
        bound, failures = threading.Event(), list[OSError]()

        def serve() -> None:
            try:
                self._server.prepare()  # here, so that its workers are daemons too: none may keep the process alive
            except OSError as error:
                failures.append(error)
                return
            finally:
                bound.set()
            self._server.serve()

        thread = threading.Thread(target=serve, name="web", daemon=True)
        thread.start()
        bound.wait()
        if failures:
            raise SettingsError(f"cannot listen on {self._listen}: {failures[0]}") from failures[0]
        self._thread = thread

    @property
    def port(self) -> int:
        """The port that was bound, for a listen address that asked for any."""
        return int(self._server.bind_addr[1])

    def stop(self) -> None:
        """Stop serving; requests under way get a second, and one that hangs is left behind."""
        if self._thread is None:
            return
        deadline = time.monotonic() + STOP_SECONDS
        # cheroot waits for each worker without end, whatever its grace: not in the caller's time.
        stopping = threading.Thread(target=self._server.stop, name="web-stop", daemon=True)
        stopping.start()
        for thread in (stopping, self._thread):
            thread.join(max(0.0, deadline - time.monotonic()))
        self._thread = None


def _probe(listen: str) -> None:
    """Bind once and let go: cheroot's own error names no cause, and leaves its socket open."""
    host, port = parse_listen(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
    except (UnicodeError, TypeError) as error:  # a name that cannot be encoded is either, by the version of Python
        raise SettingsError(f"cannot listen on {listen}: not a host name") from error
    except OSError as error:
        raise SettingsError(f"cannot listen on {listen}: {error.strerror or error}") from error


def _log(msg: str = "", level: int = 20, traceback: bool = False) -> None:
    log = get_logger("web")
    (log.error if level >= 40 else log.debug)("server", message=msg.strip(), exc_info=traceback)
