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
