"""The web server on real sockets: it ends in time whatever hangs, and bad clients neither hold nor break it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from stallwatch import serving
from stallwatch.serving import Server, parse_listen
from stallwatch.settings import SettingsError

GET = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
STOPPED_WITHIN = 2.0
SLACK = 4.0  # of a busy machine; without its bound, each case would take longer

Start = Callable[..., Server]


class App:
    """Answers with the size of the body; hangs at /hang until released; /large is more than buffers hold."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    def __call__(self, environ: dict[str, object], start: Callable[..., object]) -> list[bytes]:
        body = environ["wsgi.input"].read()  # type: ignore[attr-defined]
        if environ["PATH_INFO"] == "/hang":
            self.entered.set()
            self.release.wait(10)
        answer = b"x" * 30_000_000 if environ["PATH_INFO"] == "/large" else str(len(body)).encode()
        if environ["PATH_INFO"] == "/large":
            self.entered.set()
        start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(answer)))])
        return [answer]


@pytest.fixture
def app() -> App:
    """An application whose hanging can be ended."""
    return App()


@pytest.fixture
def start(app: App) -> Iterator[Start]:
    """Start servers that end with the test, with every thread they had."""
    before, servers = set(threading.enumerate()), list[Server]()

    def make(**more: int) -> Server:
        server = Server(app, "127.0.0.1:0", **{"threads": 2, **more})
        server.start()
        servers.append(server)
        return server

    yield make
    app.release.set()
    for server in servers:
        server.stop()
    for thread in set(threading.enumerate()) - before:
        thread.join(15)
        assert not thread.is_alive(), thread.name


@contextlib.contextmanager
def connected(server: Server, sent: bytes = b"") -> Iterator[socket.socket]:
    """A client's connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as client:
        client.sendall(sent)
        yield client


def exchange(server: Server, *sent: bytes) -> bytes:
    """All that comes back until the server closes."""
    with connected(server) as client:
        with contextlib.suppress(OSError):  # it may close before it has read all
            for part in sent:
                client.sendall(part)
        return b"".join(_received(client))


def _received(client: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(ConnectionError):
        while part := client.recv(65536):
            yield part


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":9840", ("0.0.0.0", 9840)),
        ("127.0.0.1:9840", ("127.0.0.1", 9840)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:9840", ("::1", 9840)),
    ],
)
def test_listen_addresses(text: str, expected: tuple[str, int]) -> None:
    """Host and port, either form of it."""
    assert parse_listen(text) == expected


@pytest.mark.parametrize(
    "text", ["", "9840", "localhost", "a:", "a:b", "a:-1", "a:65536", "a: 1", "a:²", "a:٣", "a:1.5"]
)
def test_what_is_no_listen_address(text: str) -> None:
    """One line, never a traceback."""
    with pytest.raises(SettingsError, match="is no listen address: HOST:PORT or :PORT is wanted"):
        parse_listen(text)


def test_an_address_that_cannot_be_had(start: Start, app: App) -> None:
    """In use, not ours, no host: one line each, and nothing is left running."""
    port = start().port
    before = threading.active_count()
    for listen, expected in [
        (f"127.0.0.1:{port}", "Address already in use"),
        ("192.0.2.1:1", "Cannot assign requested address"),
        ("é" * 80 + ":1", "not a host name"),
        ("no-such-host.invalid:1", "cannot listen"),
    ]:
        with pytest.raises(SettingsError, match=expected) as caught:
            Server(app, listen).start()
        assert str(caught.value).startswith(f"cannot listen on {listen}: ")
        assert str(caught.value).isprintable()
    assert threading.active_count() == before


def test_answers_and_keeps_the_connection(start: Start) -> None:
    """Two requests on one connection, and the port that was bound."""
    server = start()
    assert server.port > 0
    with connected(server) as client:
        for _ in range(2):
            client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
            answer = b""
            while not answer.endswith(b"\r\n\r\n3"):
                answer += client.recv(65536)
                assert answer.count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize(
    ("request_parts", "status"),
    [
        ([b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000], b"413"),
        ([b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"x" * 100_000 + b"\r\n\r\n"], b"413"),
        ([b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"], b"414"),
        ([b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n"], b"400"),
        ([b"\x00\xff\xfe\r\n\r\n"], b"400"),
        (
            [
                b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
                *[b"400\r\n" + b"x" * 1024 + b"\r\n"] * 4,
            ],
            b"500",
        ),
    ],
    ids=["body", "headers", "path", "length", "bytes", "chunks"],
)
def test_bad_requests_are_refused(start: Start, request_parts: list[bytes], status: bytes) -> None:
    """More than the limits, or no HTTP: a status, and the next client is served."""
    server = start(max_body_bytes=1000)
    assert exchange(server, *request_parts).split()[1] == status
    assert exchange(server, GET).endswith(b"0")


def test_silent_clients_cost_no_thread(start: Start) -> None:
    """Many connections that say nothing do not keep the one that does from its answer."""
    server = start()
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(connected(server))
        began = time.monotonic()
        assert exchange(server, GET).endswith(b"0")
        assert time.monotonic() - began < SLACK


def test_a_dribbled_request_is_cut_off(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """However steadily its bytes come, a request has one deadline; after it the threads are free again."""
    monkeypatch.setattr(serving, "EXCHANGE_SECONDS", 0.3)
    server, ended = start(threads=2), threading.Event()

    def dribble(client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not ended.wait(0.05):
                client.sendall(b"A: b\r\n")

    with contextlib.ExitStack() as stack:  # both are there before the one that is served: they have the threads
        clients = [stack.enter_context(connected(server, b"GET / HTTP/1.1\r\n")) for _ in range(2)]
        threads = [threading.Thread(target=dribble, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        try:
            assert exchange(server, GET).endswith(b"0")
            assert time.monotonic() - began < 0.3 + SLACK
        finally:
            ended.set()
            for thread in threads:
                thread.join()


def test_an_answer_that_nobody_takes_is_cut_off(start: Start, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that takes its answer in sips holds a thread no longer than one that takes nothing."""
    monkeypatch.setattr(serving, "EXCHANGE_SECONDS", 0.3)
    server = start(threads=1)
    with connected(server, b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n") as client:
        assert app.entered.wait(5)
        began = time.monotonic()
        stop = threading.Event()

        def sip() -> None:
            with contextlib.suppress(OSError):
                while not stop.wait(0.02) and client.recv(1000):
                    pass

        thread = threading.Thread(target=sip)
        thread.start()
        try:
            assert exchange(server, GET).endswith(b"0")
            assert time.monotonic() - began < 0.3 + SLACK
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", GET, b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_stops_in_time(start: Start, app: App, sent: bytes) -> None:
    """Idle, in the middle of a request, after one, and with an application that hangs."""
    server = start()
    with connected(server, sent):
        if b"/hang" in sent:
            assert app.entered.wait(5)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < STOPPED_WITHIN + 0.2
        server.stop()  # once more is no error
        with pytest.raises(OSError, match=r"."):
            socket.create_connection(("127.0.0.1", server.port), timeout=1)


def test_no_thread_keeps_the_process_alive(start: Start) -> None:
    """Whatever hangs in a worker ends with the process."""
    before = set(threading.enumerate())
    start()
    assert all(thread.daemon for thread in set(threading.enumerate()) - before)


def test_stop_without_start(app: App) -> None:
    """Nothing to do."""
    Server(app, "127.0.0.1:0").stop()
