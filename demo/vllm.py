"""A simulated vLLM server: `python -m demo.vllm --port 8000`. Real HTTP, real vLLM's series, and faults to order.

Faults, by POST: `/demo/freeze` and `/demo/thaw` (?rank=N, else all), `/demo/phantom?running=&waiting=&kv=`,
`/demo/prefill?seconds=`, `/demo/huge-step?seconds=` (these with ?rank=N, else 0), and `/demo/die`.
"""

import argparse
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from typing import Any

from demo.api import Served
from demo.engine import Histogram
from demo.page import EnginePage, HttpStats, process_lines, sleep_histogram, sleep_lines
from demo.ranks import Ranks
from demo.routes import Paths

_CLOSING_SECONDS = 2.0


@dataclass(frozen=True)
class Options:
    """How a server is started; `port` 0 takes any free one. With several `api_servers` the page lacks what
    a shared page lacks: process_*, python_*, *_created, and the gauges before the first step."""

    port: int = 0
    ranks: int = 1
    step_seconds: float = 0.05
    max_num_seqs: int = 4
    max_model_len: int = 16384
    model: str = "tiny"
    api_servers: int = 1


class Server(ThreadingHTTPServer):
    """`with Server(Options()) as server:` serves until the end of the block. OSError: the port is taken."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, options: Options) -> None:
        super().__init__(("127.0.0.1", options.port), Paths)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.started_at = time.time()
        self.served = Served(options.model, options.max_model_len)
        self.ranks = Ranks(options.ranks, max_num_seqs=options.max_num_seqs, step_seconds=options.step_seconds)
        self._lock = threading.Lock()
        self._http = HttpStats(self.started_at)
        self._sleep_operations: dict[str, tuple[Histogram, float]] = {}
        self._several = options.api_servers > 1
        stats = [engine.stats for engine in self.ranks.engines]
        self._engine_page = EnginePage(stats, options.model, self.started_at, several_api_servers=self._several)
        self._connections: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="http", daemon=True)

    def __enter__(self) -> "Server":
        self.ranks.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
        self.ranks.stop()
        deadline = time.monotonic() + _CLOSING_SECONDS
        while self._connections and time.monotonic() < deadline:
            for connection in list(self._connections):
                _end(connection)
            time.sleep(0.01)

    def page(self) -> bytes:
        """The `/metrics` page now."""
        created = not self._several
        lines = [] if self._several else list(process_lines(self.started_at))
        with self.ranks.lock:
            lines += self._engine_page.lines()
        with self._lock:
            lines += self._http.lines(created=created)
            lines += sleep_lines(self._sleep_operations, created=created)
        return ("\n".join(lines) + "\n").encode()

    def note_call(self, handler: str, method: str, status: int, sizes: tuple[int, int], seconds: float) -> None:
        """Count one HTTP call; `sizes` are the bytes of request and response body."""
        with self._lock:
            self._http.add(handler, method, status=status, sizes=sizes, seconds=seconds, now=time.time())

    def note_sleep(self, operation: str, seconds: float) -> None:
        """Count one operation of sleep mode: "sleep" or "wake"."""
        with self._lock:
            self._sleep_operations.setdefault(operation, (sleep_histogram(), time.time()))[0].observe(seconds)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection, so that the end of the server ends it."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection."""
        super().shutdown_request(request)
        self._connections.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended by itself


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    defaults = Options()
    parser = argparse.ArgumentParser(prog="demo.vllm", description="A simulated vLLM server on loopback.")
    parser.add_argument("--port", type=int, required=True, help="0 takes any free port")
    parser.add_argument("--ranks", type=int, default=defaults.ranks, help="engines (data parallel)")
    parser.add_argument("--start-seconds", type=float, default=0.0, help="how long the port refuses at first")
    parser.add_argument("--step-seconds", type=float, default=defaults.step_seconds, help="time of one engine step")
    parser.add_argument("--max-num-seqs", type=int, default=defaults.max_num_seqs, help="places in the batch")
    parser.add_argument("--max-model-len", type=int, default=defaults.max_model_len, help="prompt and output, tokens")
    parser.add_argument("--model", default=defaults.model, help="name of the served model")
    parser.add_argument("--api-server-count", type=int, default=defaults.api_servers, help="2: a page without times")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; 2 if the port is taken."""
    arguments = _arguments(argv)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if stop.wait(arguments.start_seconds):
        return 0
    options = Options(
        port=arguments.port,
        ranks=arguments.ranks,
        step_seconds=arguments.step_seconds,
        max_num_seqs=arguments.max_num_seqs,
        max_model_len=arguments.max_model_len,
        model=arguments.model,
        api_servers=arguments.api_server_count,
    )
    try:
        server = Server(options)
    except OSError as error:
        print(f"port {arguments.port}: {error.strerror}", file=sys.stderr)
        return 2
    with server:
        print(f"serving {options.model} on {server.url}", flush=True)
        stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
