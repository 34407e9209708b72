"""Small real servers on loopback that answer exactly as a test says, well or badly."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

Script = Callable[[socket.socket], None]


@contextlib.contextmanager
def scripted(script: Script) -> Iterator[str]:
    """Serve each connection with `script`; yields the base URL. Ends every connection it still holds."""
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []
    threads: list[threading.Thread] = []
    closing = threading.Event()

    def serve_one(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            script(connection)
        connection.close()

    def accept() -> None:
        while not closing.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.settimeout(5)
            held.append(connection)
            thread = threading.Thread(target=serve_one, args=(connection,), daemon=True)
            threads.append(thread)
            thread.start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        closing.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in held:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        acceptor.join(5)
        for thread in threads:
            thread.join(5)


def read_request(connection: socket.socket) -> bytes:
    """One request, head and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return data
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def answer(status: str = "200 OK", body: bytes = b"", **headers: str) -> bytes:
    """A whole HTTP answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def once(reply: bytes, *, keep: bool = False) -> Script:
    """Answer each request with the same bytes; close after the first unless `keep`."""

    def script(connection: socket.socket) -> None:
        while read_request(connection):
            connection.sendall(reply)
            if not keep:
                return

    return script


def dribble(data: bytes, pause: float = 0.05) -> Script:
    """Send the answer byte by byte until the other side gives up."""

    def script(connection: socket.socket) -> None:
        read_request(connection)
        for byte in data:
            connection.sendall(bytes([byte]))
            time.sleep(pause)

    return script


def hold(connection: socket.socket) -> None:
    """Read the request and never answer."""
    read_request(connection)
    connection.recv(1)
