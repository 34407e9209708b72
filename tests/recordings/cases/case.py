"""A case: a server that behaves as somebody reported it, poll by poll, watched by the exporter at its own limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from exporter.config import backend
from exporter.model import Limits
from exporter.page import PageParser
from exporter.recording import Step, replay
from exporter.runtimes import builtin

Line = Mapping[str, object]
Asked = Sequence[tuple[float, str]]
"""The questions sent before this poll: when, and to which rank."""
Server = Callable[[float, Asked], Line]
"""What the poll at `t` gets. A server that was asked may show it, as only an engine that works does."""
Polls = tuple[Server, list[float]]
"""A server, and when it is polled."""

POLL_SECONDS = 5.0
HANGS = "unanswered"


def limits_of(truth: Mapping[str, Any]) -> Limits:
    """The limits that a backend of the case's kind has by default, those changed that the case names."""
    return backend("case", "http://127.0.0.1:1", builtin()[truth["runtime"]], truth.get("limits", {})).limits


def replayed(lines: Iterable[Line], truth: Mapping[str, Any]) -> Iterator[Step]:
    """The verdict run over the lines of a case."""
    return replay(iter(lines), PageParser(builtin()[truth["runtime"]]), limits_of(truth))


def recorded(polls: Polls, truth: Mapping[str, Any]) -> list[Line]:
    """The recording of a case: the exporter watches the server, and its answers stand on the server's pages."""
    server, times = polls
    made: list[Line] = []
    asked: list[tuple[float, str]] = []

    def lines() -> Iterator[Line]:
        for t in times:
            made.append({"t": t, **server(t, asked)})
            yield made[-1]

    for step in replayed(lines(), truth):
        if step.asked is not None:
            asked.append((step.asked.sent_at, step.asked.rank[1]))
    return made


def good(body: str, ask: object = "answered", *, health: int | None = 200, **more: object) -> Line:
    """A poll that gets a page."""
    return {"status": 200, "error": None, "seconds": 0.01, "health": health, "body": body, "ask": ask, **more}


def same(body: str, ask: object = HANGS) -> Server:
    """A server whose page never changes."""
    return lambda _t, _asked: good(body, ask)


def other(status: int, body: str, *, health: int | None = 200, ask: str = "answered") -> Line:
    """A poll that gets something else than a page."""
    return {"status": status, "error": None, "seconds": 0.01, "health": health, "body": body, "ask": ask}


def failed(error: str, *, health: int | None = None) -> Line:
    """A poll that gets nothing: timeout, refused or reset."""
    seconds, ask = (0.001, "refused") if error == "refused" else (5.0, HANGS)
    return {"status": None, "error": error, "seconds": seconds, "health": health, "body": "", "ask": ask}


def every(start: float, end: float, seconds: float = POLL_SECONDS) -> list[float]:
    """Poll times from start to end."""
    return [round(start + n * seconds, 3) for n in range(int((end - start) / seconds + 1e-9) + 1)]


def served(asked: Asked, rank: str = "0") -> int:
    """How many questions a rank that works has answered by now."""
    return sum(1 for _, name in asked if name == rank)
