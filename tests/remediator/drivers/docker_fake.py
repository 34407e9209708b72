"""Engines for faults that a real one cannot be made to have, and a socket proxy in front of a real one."""

from __future__ import annotations

import json
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

ID = "4f" * 32
INSPECTED: dict[str, Any] = {
    "Id": ID,
    "Name": "/vllm-a",
    "State": {
        "Status": "running",
        "Running": True,
        "Paused": False,
        "Restarting": False,
        "ExitCode": 0,
        "StartedAt": "2026-11-30T10:11:12.131415161Z",
    },
}
"""All that the driver reads of an inspection; a test holds it against a real engine's answer."""
LISTED: dict[str, Any] = {"Id": ID, "Names": ["/vllm-a"]}
VERSION: dict[str, Any] = {"ApiVersion": "1.41"}

Answer = tuple[int, Any]


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    answer: Callable[[str, str], Answer]


class _Handler(BaseHTTPRequestHandler):
    def _do(self) -> None:
        assert isinstance(self.server, _Server | _TcpServer)
        status, body = self.server.answer(self.command, self.path)
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        with suppress(OSError):  # whoever asked has gone
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    do_GET = do_POST = _do

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


class _TcpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    answer: Callable[[str, str], Answer]


@contextmanager
def _serving(server: Any, answer: Callable[[str, str], Answer]) -> Iterator[None]:
    server.answer = answer
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class FakeEngine:
    """Knows one container. `restart` is its answer to the call; `calls` are method and path of what was asked."""

    def __init__(self, restart: Answer = (204, None), inspect: Answer = (200, INSPECTED)) -> None:
        self.restart, self.inspect = restart, inspect
        self.version: Answer = (200, VERSION)
        self.calls: list[str] = []

    def answer(self, method: str, path: str) -> Answer:
        self.calls.append(f"{method} {path}")
        if path == "/version":
            return self.version
        if method == "POST":
            return self.restart
        if "/containers/json?" in path:
            return 200, [LISTED]
        return self.inspect

    @contextmanager
    def serve(self, folder: Path) -> Iterator[str]:
        """Its address while it serves."""
        with _serving(_Server(str(folder / "fake.sock"), _Handler), self.answer):
            yield f"unix://{folder}/fake.sock"


ALLOWED = (
    r"GET /version",
    r"GET /v[\d.]+/containers/{name}/json",
    r"POST /v[\d.]+/containers/[0-9a-f]{{64}}/restart\?t=\d+",
)
"""What a socket proxy has to let through for one container that is named."""


@contextmanager
def socket_proxy(engine: Path, name: str) -> Iterator[str]:
    """A socket proxy on TCP that lets through what `ALLOWED` says and answers 403 to all else."""

    def answer(method: str, path: str) -> Answer:
        if not any(re.fullmatch(allowed.format(name=name), f"{method} {path}") for allowed in ALLOWED):
            return 403, b"<html><body><h1>403 Forbidden</h1></body></html>"
        connection = HTTPConnection("localhost", timeout=60)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(engine))
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, body

    server = _TcpServer(("127.0.0.1", 0), _Handler)
    with _serving(server, answer):
        yield f"tcp://127.0.0.1:{server.server_address[1]}"


@contextmanager
def stubborn(folder: Path, dribbles: bytes = b"", ends: bool = False) -> Iterator[str]:
    """A socket that accepts and never answers; with `dribbles`, that and then a byte every 20 ms; `ends` hangs up."""
    over = threading.Event()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "stubborn.sock"))
    listener.listen()
    listener.settimeout(0.05)
    accepted: list[socket.socket] = []

    def serve() -> None:
        while not over.is_set():
            with suppress(TimeoutError):
                accepted.append(listener.accept()[0])
                if ends:
                    accepted[-1].recv(65536)
                    accepted.pop().close()
            if dribbles:
                _dribble(accepted, dribbles, over)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"unix://{folder}/stubborn.sock"
    finally:
        over.set()
        thread.join()
        for one in [listener, *accepted]:
            one.close()


def _dribble(accepted: list[socket.socket], first: bytes, over: threading.Event) -> None:
    while accepted and not over.is_set():
        with suppress(OSError):
            accepted[-1].sendall(first)
            while not over.is_set():
                time.sleep(0.02)
                accepted[-1].sendall(b"a")
        accepted.pop().close()
