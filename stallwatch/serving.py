"""Serving a WSGI application on cheroot: threads, bounds, and an end within a second."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

from cheroot import wsgi

from stallwatch.logs import get_logger
from stallwatch.settings import SettingsError

MAX_HEADER_BYTES = 64 * 1024
STOP_SECONDS = 1


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `:PORT` (all addresses), brackets around IPv6. Raises `SettingsError`."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise SettingsError(f"{text!r} is no listen address: HOST:PORT or :PORT is wanted")
    return host or "0.0.0.0", int(port)


class Server:
    """One listening address; `start` binds and serves beside the caller."""

    def __init__(
        self, app: Callable[..., Any], listen: str, *, threads: int = 8, max_body_bytes: int = 16 * 1024 * 1024
    ) -> None:
        self._listen = listen
        self._server = wsgi.Server(parse_listen(listen), app, numthreads=threads, timeout=10, server_name="stallwatch")
        self._server.max_request_header_size = MAX_HEADER_BYTES
        self._server.max_request_body_size = max_body_bytes
        self._server.shutdown_timeout = STOP_SECONDS
        self._server.error_log = _log  # type: ignore[method-assign]
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Bind and serve in a thread. Raises `SettingsError` when the address cannot be had."""
        _probe(self._listen)
        try:
            self._server.prepare()
        except OSError as error:
            raise SettingsError(f"cannot listen on {self._listen}: {error}") from error
        self._thread = threading.Thread(target=self._server.serve, name="web", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that was bound, for a listen address that asked for any."""
        return int(self._server.bind_addr[1])

    def stop(self) -> None:
        """Stop serving; requests under way get a second."""
        self._server.stop()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)


def _probe(listen: str) -> None:
    """Bind once and let go: cheroot's own error names no cause, and leaves its socket open."""
    host, port = parse_listen(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
    except OSError as error:
        raise SettingsError(f"cannot listen on {listen}: {error.strerror or error}") from error


def _log(msg: str = "", level: int = 20, traceback: bool = False) -> None:
    log = get_logger("web")
    (log.error if level >= 40 else log.debug)("server", message=msg.strip(), exc_info=traceback)
