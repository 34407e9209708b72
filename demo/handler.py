"""One connection to the simulated server: read a call, count it, send its answer, notice that the client left."""

import math
import select
import socket
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from demo.api import Rejected, as_json

if TYPE_CHECKING:
    from demo.vllm import Server

LOOK_SECONDS = 0.05  # how often a waiting call looks whether its client is still there
_MOST_BODY_BYTES = 16 << 20
_UNCOUNTED = ("/metrics", "/health", "/version")  # vLLM keeps these out of http_*


class Connection(BaseHTTPRequestHandler):
    """HTTP/1.1 with keep-alive. A subclass gives `routes`: path to method and function."""

    routes: ClassVar[dict[str, tuple[str, Callable[[Any], None]]]] = {}

    server: "Server"
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer a GET."""
        self._serve()

    def do_POST(self) -> None:
        """Answer a POST."""
        self._serve()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the story is told elsewhere."""

    def _serve(self) -> None:
        began, self.status, self.sent = time.monotonic(), 200, 0
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        method, route = self.routes.get(url.path, ("", None))
        counted = bool(route) and url.path not in _UNCOUNTED and not url.path.startswith("/demo/")
        self.body = b""
        try:
            self.body = self._read_body()
            if route is None:
                self.send(404, as_json({"detail": "Not Found"}))
            elif method != self.command:
                self.send(405, as_json({"detail": "Method Not Allowed"}))
            else:
                route(self)
        except Rejected as error:
            self.send(error.status, error.body)
        except ConnectionError:
            self.close_connection = True
        finally:
            if counted:
                sizes, now = (len(self.body), self.sent), time.monotonic()
                self.server.note_call(url.path, self.command, self.status, sizes, now - began)

    def _read_body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > _MOST_BODY_BYTES or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise Rejected(400, "The body needs a Content-Length that the server can take.")
        return self.rfile.read(int(length))

    def send(self, status: int, body: bytes = b"", kind: str = "application/json") -> None:
        """Send a whole answer."""
        self.status, self.sent = status, len(body)
        self.send_response(status)
        if body:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def client_gone(self) -> bool:
        """Whether the client closed the connection."""
        poller = select.poll()
        poller.register(self.connection, select.POLLIN)
        if not poller.poll(0):
            return False
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def number(self, name: str, default: float | None = None) -> float:
        """A parameter of the query. Rejected: it is missing without a default, or no number."""
        text = self.query.get(name, [""])[0]
        if not text and default is not None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise Rejected(400, f"The parameter {name} must be a number.")
        return value

    def rank(self) -> int | None:
        """The parameter rank, None if absent. Rejected: no such rank."""
        rank = int(self.number("rank", -1.0))
        if rank >= len(self.server.ranks.engines):
            raise Rejected(400, f"There is no rank {rank}.")
        return None if rank < 0 else rank

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Let the client wait. ConnectionAbortedError: it has left."""
        while not condition():
            if self.client_gone():
                raise ConnectionAbortedError
            time.sleep(LOOK_SECONDS)
