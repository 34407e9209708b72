"""One short request on a real socket: only silence after a full request is unanswered."""

from __future__ import annotations

import json
import socket

import pytest

from exporter.ask import Asker
from exporter.model import AskResult
from exporter.runtimes import HowToAsk
from tests.exporter.servers import Script, answer, hold, once, read_request, scripted

HOW = HowToAsk(path="/v1/completions", rank_header="X-data-parallel-rank")
SECONDS = 0.4


def ask(script: Script, how: HowToAsk = HOW, *, named: bool = False) -> AskResult:
    """One question to a scripted server."""
    with scripted(script) as url:
        return Asker(url, {"Authorization": "Bearer k"}).ask(how, ("tiny", "3"), SECONDS, named, "tiny")[0]


def test_silence_is_unanswered() -> None:
    """Connected, written in full, not one byte back."""
    assert ask(hold) is AskResult.UNANSWERED


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (answer(body=b"{}"), AskResult.ANSWERED),
        (answer("500 Internal Server Error"), AskResult.SERVER_ERROR),
        (answer("503 Service Unavailable"), AskResult.SERVER_ERROR),
        (answer("400 Bad Request"), AskResult.REJECTED),
        (answer("401 Unauthorized"), AskResult.REJECTED),
        (answer("404 Not Found"), AskResult.REJECTED),
        (answer("422 Unprocessable Entity"), AskResult.REJECTED),
        (answer("429 Too Many Requests"), AskResult.REJECTED),
        (answer("307 Temporary Redirect", Location="http://127.0.0.2:1/"), AskResult.REJECTED),
        (b"", AskResult.FAILED),
    ],
)
def test_what_comes_back(reply: bytes, result: AskResult) -> None:
    """Any status is no silence; a closed connection says nothing."""
    assert ask(once(reply)) is result


def test_one_byte_is_no_silence() -> None:
    """An answer that began before the deadline is not unanswered, however slow the rest."""

    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"H")
        connection.recv(1)

    assert ask(script) is AskResult.ANSWERED


@pytest.mark.parametrize(
    ("status", "result"),
    [
        ("200 OK", AskResult.ANSWERED),
        ("429 Too Many Requests", AskResult.REJECTED),
        ("500 Internal Server Error", AskResult.SERVER_ERROR),
    ],
)
@pytest.mark.parametrize("after", [b"", b"x", b"x" * 2_000_000], ids=["silent", "cut", "huge"])
def test_the_status_decides_whatever_becomes_of_the_body(status: str, result: AskResult, after: bytes) -> None:
    """A body that never comes, is cut off, or has no end, takes nothing from the status before it."""

    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 9000000\r\n\r\n".encode() + after)
        if after != b"x":
            connection.recv(1)

    assert ask(script) is result


def test_interim_answers_are_no_silence() -> None:
    """Something answers, even if only to say: go on."""

    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.recv(1)

    assert ask(script) is AskResult.ANSWERED


def test_each_question_has_a_connection_of_its_own_closed_at_the_deadline() -> None:
    """What a frozen engine holds on to is let go, and no question waits behind another."""
    ended: list[bytes] = []

    def script(connection: socket.socket) -> None:
        read_request(connection)
        ended.append(connection.recv(1))  # the other side closes: nothing, and no time-out here

    with scripted(script) as url:
        asker = Asker(url)
        for _ in range(2):
            assert asker.ask(HOW, ("tiny", "0"), SECONDS, False, "tiny")[0] is AskResult.UNANSWERED
    assert ended == [b"", b""]


def test_a_label_that_is_no_header_is_not_sent() -> None:
    """A rank's name comes from the server's page; one that would split the request says nothing about an engine."""
    requests: list[bytes] = []

    def script(connection: socket.socket) -> None:
        requests.append(read_request(connection))

    with scripted(script) as url:
        for rank in ("0\r\nX-Evil: 1", "日"):
            result, _ = Asker(url).ask(HOW, ("tiny", rank), SECONDS, True, "tiny")
            assert result is AskResult.FAILED
    assert not any(requests)


def test_no_key_in_the_details() -> None:
    """What is logged of a question never holds its key."""
    for script in (hold, once(b""), once(answer("401 Unauthorized")), once(b"garbage")):
        with scripted(script) as url:
            asker = Asker(url, {"Authorization": "Bearer hunter2"})
            assert "hunter2" not in asker.ask(HOW, ("tiny", "0"), SECONDS, False, "tiny")[1]


def test_refused() -> None:
    """Nothing listens: it says nothing about an engine."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        asker = Asker(f"http://127.0.0.1:{unused.getsockname()[1]}")
        assert asker.ask(HOW, ("tiny", "0"), SECONDS, False, "tiny")[0] is AskResult.FAILED


@pytest.mark.parametrize(
    ("path", "key"), [("/v1/completions", "prompt"), ("/v1/chat/completions", "messages"), ("/v1/embeddings", "input")]
)
def test_the_request(path: str, key: str) -> None:
    """One token, the rank by name, the key, and a prompt that no cache has seen."""
    requests: list[bytes] = []

    def script(connection: socket.socket) -> None:
        requests.append(read_request(connection))
        connection.sendall(answer(body=b"{}"))

    for _ in range(2):
        assert (
            ask(script, HowToAsk.model_validate({**HOW.model_dump(), "path": path}), named=True) is AskResult.ANSWERED
        )
    heads, bodies = zip(*(request.split(b"\r\n\r\n") for request in requests), strict=True)
    assert heads[0].startswith(f"POST {path} ".encode())
    assert b"X-data-parallel-rank: 3" in heads[0]
    assert b"Authorization: Bearer k" in heads[0]
    first, second = (json.loads(body) for body in bodies)
    assert first["model"] == "tiny"
    assert first[key] != second[key]
    assert path == "/v1/embeddings" or first["max_tokens"] == 1
