"""Keeps requests in flight like a batch job: `python -m demo.traffic --url http://127.0.0.1:8000 --clients 4`.

A request that fails, because the server restarts or is gone, is sent again after a moment, without a word.
"""

import argparse
import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

_RETRY_SECONDS = 0.2
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 3600.0  # a batch job waits; what ends a hanging request is the end of its connection


class Traffic:
    """`clients` threads, each with one request of `max_tokens` in flight. `with Traffic(...):` starts and ends them."""

    def __init__(self, url: str, *, clients: int, max_tokens: int = 200, prompt_tokens: int = 20) -> None:
        address = urlsplit(url)
        if address.scheme != "http" or not address.hostname:
            raise ValueError(f"{url}: not an http:// address")
        self.answered = 0
        self.failed = 0
        self._address = (address.hostname, address.port or 80)
        self._body = json.dumps({"prompt": " ".join(["word"] * prompt_tokens), "max_tokens": max_tokens}).encode()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._client, daemon=True) for _ in range(clients)]

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        while any(thread.is_alive() for thread in self._threads):
            with self._lock:
                for connected in self._sockets:
                    _end(connected)
            self._threads[0].join(0.01)
            self._threads.sort(key=threading.Thread.is_alive, reverse=True)

    def _client(self) -> None:
        while not self._stop.is_set():
            connection = http.client.HTTPConnection(*self._address, timeout=_CONNECT_SECONDS)
            try:
                self._requests(connection)
            except (OSError, http.client.HTTPException):
                with self._lock:
                    self.failed += not self._stop.is_set()
            finally:
                connection.close()
            self._stop.wait(_RETRY_SECONDS)

    def _requests(self, connection: http.client.HTTPConnection) -> None:
        connection.connect()
        connected = connection.sock
        connected.settimeout(_ANSWER_SECONDS)
        with self._lock:
            self._sockets.add(connected)
        try:
            while not self._stop.is_set():
                connection.request("POST", "/v1/completions", self._body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                response.read()
                if response.status != 200:
                    raise http.client.HTTPException(f"status {response.status}")
                with self._lock:
                    self.answered += 1
        finally:
            with self._lock:
                self._sockets.discard(connected)


def _end(connected: socket.socket) -> None:
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended by itself


def main(argv: Sequence[str] | None = None) -> int:
    """Run until `--seconds` are over, SIGTERM, SIGINT, or the end of the process that started it; 2: wrong address."""
    parser = argparse.ArgumentParser(prog="demo.traffic", description="Keeps requests in flight like a batch job.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--prompt-tokens", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    arguments = parser.parse_args(argv)
    stop, parent = threading.Event(), os.getppid()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        traffic = Traffic(
            arguments.url,
            clients=arguments.clients,
            max_tokens=arguments.max_tokens,
            prompt_tokens=arguments.prompt_tokens,
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    ends_at = time.monotonic() + arguments.seconds
    with traffic:
        while not stop.is_set() and os.getppid() == parent and time.monotonic() < ends_at:
            stop.wait(min(0.2, max(0.0, ends_at - time.monotonic())))
    print(f"{traffic.answered} answered, {traffic.failed} failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
