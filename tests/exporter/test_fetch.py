"""Bad answers on a real socket: each is a typed failure within the deadline, and none holds the caller."""

from __future__ import annotations

import gzip
import socket
import time

import pytest

from exporter.fetch import Fetcher, FetchFailed
from exporter.model import FailureReason
from tests.exporter.servers import Script, answer, dribble, hold, once, read_request, scripted

PAGE = b"vllm:generation_tokens_total 5\n"
SECONDS = 0.4


def fetch(script: Script, max_bytes: int = 100_000) -> bytes:
    """One page from a scripted server."""
    with scripted(script) as url:
        fetcher = Fetcher(url)
        began = time.monotonic()
        try:
            return fetcher.page(SECONDS, max_bytes)
        finally:
            assert time.monotonic() - began < SECONDS + 1, "the deadline did not hold"
            fetcher.close()


def failed(script: Script, max_bytes: int = 100_000) -> FetchFailed:
    """The failure of one page, which must come soon after the deadline at the latest."""
    with pytest.raises(FetchFailed) as caught:
        fetch(script, max_bytes)
    return caught.value


def test_good_page() -> None:
    """A plain 200."""
    assert fetch(once(answer(body=PAGE))) == PAGE


def test_refused() -> None:
    """Nothing listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        fetcher = Fetcher(f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(FetchFailed) as caught:
            fetcher.page(SECONDS, 1000)
        fetcher.close()
    assert caught.value.reason is FailureReason.REFUSED


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (answer("500 Internal Server Error"), FailureReason.HTTP_ERROR),
        (answer("401 Unauthorized"), FailureReason.HTTP_ERROR),
        (answer("503 Service Unavailable", b'{"error":{"message":"Loading model"}}'), FailureReason.LOADING),
        (answer("503 Service Unavailable", b"<html>no server</html>"), FailureReason.HTTP_ERROR),
        (answer("307 Temporary Redirect", Location="http://127.0.0.2:1/metrics"), FailureReason.HTTP_ERROR),
        (answer("307 Temporary Redirect", Location="/metrics"), FailureReason.HTTP_ERROR),
        (b"\x00\x01\x02\xff" * 50, FailureReason.HTTP_ERROR),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n", FailureReason.HTTP_ERROR),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\ncut", FailureReason.RESET),
        (b"", FailureReason.RESET),
    ],
    ids=["500", "401", "loading", "html", "elsewhere", "loop", "binary", "bad chunk", "cut", "closed"],
)
def test_bad_answers(reply: bytes, reason: FailureReason) -> None:
    """Each kind of bad answer has its reason."""
    assert failed(once(reply)).reason is reason


def test_too_large() -> None:
    """A page over the cap is given up, and so is a small one that unpacks to more."""
    assert failed(once(answer(body=b"x" * 5000)), max_bytes=1000).reason is FailureReason.TOO_LARGE
    bomb = answer(body=gzip.compress(b"x" * 5_000_000), Content_Encoding="gzip")
    assert failed(once(bomb), max_bytes=100_000).reason is FailureReason.TOO_LARGE


def test_never_answers() -> None:
    """Connected, and then nothing."""
    assert failed(hold).reason is FailureReason.TIMEOUT


def test_dribbled_head() -> None:
    """A head that comes byte by byte cannot hold the loop beyond the deadline."""
    assert failed(dribble(answer(body=PAGE))).reason is FailureReason.TIMEOUT


def test_dribbled_body() -> None:
    """Nor can a body."""

    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            connection.sendall(b"x")
            time.sleep(0.05)

    assert failed(script).reason is FailureReason.TIMEOUT


def test_redirect_to_the_same_host_is_followed() -> None:
    """Some servers send /metrics to /metrics/."""

    def script(connection: socket.socket) -> None:
        while request := read_request(connection):
            there = request.startswith(b"GET /metrics/ ")
            connection.sendall(answer(body=PAGE) if there else answer("307 Temporary Redirect", Location="/metrics/"))

    assert fetch(script) == PAGE


def test_kept_connection_that_the_server_closed_is_retried_silently() -> None:
    """The server closes after each answer without saying so; the next reading is as good as the first."""
    with scripted(once(answer(body=PAGE))) as url:
        fetcher = Fetcher(url)
        for _ in range(5):
            assert fetcher.page(SECONDS, 1000) == PAGE
        fetcher.close()


def test_proxy_settings_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in the environment must not come between the exporter and what it watches."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert fetch(once(answer(body=PAGE))) == PAGE


@pytest.mark.parametrize("status", ["500 Internal Server Error", "503 Service Unavailable", "401 Unauthorized"])
def test_pause_endpoints_that_fail_are_asked_for_again(status: str) -> None:
    """A 503 while it starts says nothing about later: a pause that is no longer asked for would look stuck."""
    replies = [answer(status), answer(status), answer(status), answer(body=b'{"is_paused": true}')]

    def script(connection: socket.socket) -> None:
        while read_request(connection):
            connection.sendall(replies.pop(0))

    with scripted(script) as url:
        fetcher = Fetcher(url)
        assert [fetcher.paused(SECONDS) for _ in range(2)] == [False, True]
        fetcher.close()


@pytest.mark.parametrize(
    ("health", "models", "alive"),
    [
        ("200 OK", "404 Not Found", True),
        ("404 Not Found", "200 OK", True),
        ("404 Not Found", "401 Unauthorized", True),
        ("404 Not Found", "404 Not Found", False),
        ("503 Service Unavailable", "200 OK", False),
    ],
)
def test_alive(health: str, models: str, alive: bool) -> None:
    """The health endpoint where there is one, else the list of models; a dead engine's 503 is not overruled."""

    def script(connection: socket.socket) -> None:
        while request := read_request(connection):
            connection.sendall(answer(health if request.startswith(b"GET /health ") else models))

    with scripted(script) as url:
        fetcher = Fetcher(url)
        assert fetcher.alive(SECONDS) is alive
        fetcher.close()


def test_several_paths_share_one_deadline() -> None:
    """Trying a second path for the page does not double the time that a reading may take."""

    def script(connection: socket.socket) -> None:
        while request := read_request(connection):
            if not request.startswith(b"GET /metrics "):
                connection.recv(1)
                return
            time.sleep(1.0)
            connection.sendall(answer("404 Not Found"))

    with scripted(script) as url:
        fetcher = Fetcher(url, metrics_paths=("/metrics", "/elsewhere"))
        began = time.monotonic()
        with pytest.raises(FetchFailed) as caught:
            fetcher.page(1.3, 1000)
        took = time.monotonic() - began
        fetcher.close()
    assert caught.value.reason is FailureReason.TIMEOUT
    assert took < 2.0  # and not 1.0 + 1.3


def test_a_key_stays_with_its_server() -> None:
    """It is sent with each reading, follows no redirect to another host, and stands in no detail."""
    elsewhere: list[bytes] = []

    def other(connection: socket.socket) -> None:
        elsewhere.append(read_request(connection))

    with scripted(other) as other_url:
        seen: list[bytes] = []

        def script(connection: socket.socket) -> None:
            seen.append(read_request(connection))
            connection.sendall(answer("302 Found", Location=f"{other_url}/metrics"))

        with scripted(script) as url:
            fetcher = Fetcher(url, {"Authorization": "Bearer hunter2"})
            with pytest.raises(FetchFailed) as caught:
                fetcher.page(SECONDS, 1000)
            fetcher.close()
    assert b"Authorization: Bearer hunter2" in seen[0]
    assert elsewhere == []
    assert (caught.value.reason, caught.value.status) == (FailureReason.HTTP_ERROR, 302)
    assert caught.value.detail == "the server redirects to another host"


def test_pause_endpoints_that_do_not_exist_are_not_asked_for_again() -> None:
    """Without development mode there is no /is_paused: two 404s, then silence until the process changes."""
    asked: list[bytes] = []

    def script(connection: socket.socket) -> None:
        while request := read_request(connection):
            asked.append(request.split()[1])
            connection.sendall(answer("404 Not Found"))

    with scripted(script) as url:
        fetcher = Fetcher(url)
        assert [fetcher.paused(SECONDS) for _ in range(3)] == [False] * 3
        assert asked == [b"/is_sleeping", b"/is_paused"]
        fetcher.forget_pause()
        fetcher.paused(SECONDS)
        assert len(asked) == 4
        fetcher.close()


@pytest.mark.parametrize(
    ("body", "paused"), [(b'{"is_paused": true}', True), (b'{"is_paused": false}', False), (b"[" * 5000, False)]
)
def test_what_the_pause_endpoint_says(body: bytes, paused: bool) -> None:
    """Only a plain true is a pause."""
    with scripted(once(answer(body=body), keep=True)) as url:
        fetcher = Fetcher(url)
        assert fetcher.paused(SECONDS) is paused
        fetcher.close()
