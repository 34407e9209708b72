"""Reading several exporters over real HTTP: one owner a backend, and every failure is unavailable evidence."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from remediator.evidence import Exporters, Unavailable
from tests.exporter.servers import Script, answer, dribble, hold, once, read_request, scripted


def entry(name: str = "a", verdict: str = "stuck", **changes: Any) -> dict[str, Any]:
    ranks = [{"rank": "0", "verdict": "stuck"}, {"rank": "1", "verdict": "busy"}]
    return {"name": name, "verdict": verdict, "age_seconds": 1.0, "ranks": ranks, **changes}


def exporting(*entries: dict[str, Any]) -> Script:
    """An exporter that watches these backends."""

    def script(connection: socket.socket) -> None:
        path = read_request(connection).split(b" ")[1].decode()
        name = path.removeprefix("/api/v1/backends").removeprefix("/")
        found = [e for e in entries if e["name"] == name]
        if not name:
            connection.sendall(answer(body=json.dumps({"backends": list(entries)}).encode()))
        elif found:
            connection.sendall(answer(body=json.dumps(found[0]).encode()))
        else:
            connection.sendall(answer("404 Not Found", b'{"error": "no such backend"}'))

    return script


@contextlib.contextmanager
def exporters(*scripts: Script, timeout: float = 2.0) -> Iterator[Exporters]:
    with contextlib.ExitStack() as stack:
        yield Exporters([stack.enter_context(scripted(script)) for script in scripts], timeout)


def test_each_shard_owns_its_backends() -> None:
    """The fleet is the union; a backend is read from its owner."""
    with exporters(exporting(entry("a")), exporting(entry("b", "busy"))) as both:
        sight = both.fleet()
        assert {name: view.verdict for name, view in sight.views.items()} == {"a": "stuck", "b": "busy"}
        assert sight.troubles == ()
        assert not both.read("a").wholly_stuck
        assert both.read("b").verdict == "busy"


def test_a_dead_shard_does_not_hide_the_others() -> None:
    """What the living shard owns is still known, and the dead one is told about."""
    with exporters(exporting(entry("a")), once(b"")) as both:
        sight = both.fleet()
        assert set(sight.views) == {"a"}
        assert len(sight.troubles) == 1
        assert both.read("a").verdict == "stuck"


def test_two_exporters_claim_a_backend() -> None:
    """One of them is wrong, and nobody knows which: no view, no restart."""
    with exporters(exporting(entry("a")), exporting(entry("a", "busy"))) as both:
        with pytest.raises(Unavailable, match="a is claimed by 2 exporters"):
            both.read("a")
        sight = both.fleet()
        assert sight.views == {}
        assert "a is claimed by" in sight.troubles[0]
        with pytest.raises(Unavailable, match="a is claimed by 2 exporters"):
            both.read("a")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (hold, "deadline"),
        (dribble(answer(body=b"{}" * 500), pause=0.05), "deadline"),
        (once(b""), "closed"),
        (once(answer("500 Internal Server Error")), "status 500"),
        (once(answer("404 Not Found")), "not watched there"),
        (once(answer(body=b"<html>")), "not JSON"),
        (once(answer(body=b"[]")), "no JSON object"),
        (once(answer(body=b"{}")), "no evidence about a"),
        (once(answer(body=json.dumps(entry("b")).encode())), "no evidence about a"),
        (once(answer(body=b"\x00\xff" * 100)), "not JSON"),
    ],
    ids=["silent", "dribbling", "closing", "500", "404", "html", "list", "empty", "of another", "binary"],
)
def test_a_failing_exporter_is_unavailable_evidence(script: Script, words: str) -> None:
    """Every failure is one sentence, within the time-out; the list of the fleet survives it too."""
    with exporters(script, timeout=0.4) as one:
        with pytest.raises(Unavailable, match=words):
            one.read("a")
        assert one.fleet().views == {}


def test_nobody_listens() -> None:
    """A refused connection names the address."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(Unavailable, match=f"http://127.0.0.1:{port}/api/v1/backends/a: "):
        Exporters([f"http://127.0.0.1:{port}"], 1.0).read("a")
