"""One event, one line: the same keys in both formats, and nothing that a value holds can break it."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator

import pytest
import structlog

from stallwatch import logs

TS = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    """Logging is the process's own: each test gives it back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_logfmt(capsys: pytest.CaptureFixture[str]) -> None:
    """The first keys in their order, then the rest; on standard error only."""
    logs.configure("info", "logfmt")
    logs.get_logger("watch").info("verdict", backend="a", seconds=1.5, good=True, why="two words")
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(
        rf'ts={TS} level=info component=watch event=verdict backend=a seconds=1.5 good=true why="two words"\n', err
    )


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The same keys as JSON."""
    logs.configure("info", "json")
    logs.get_logger("watch").warning("verdict", backend="a", odd=object())
    document = json.loads(capsys.readouterr().err)
    assert list(document) == ["ts", "level", "component", "event", "backend", "odd"]
    assert re.fullmatch(TS, document["ts"])
    assert (document["level"], document["component"], document["event"]) == ("warning", "watch", "verdict")


def test_level(capsys: pytest.CaptureFixture[str]) -> None:
    """What lies below the level is not written."""
    logs.configure("warning")
    logs.get_logger("a").info("quiet")
    logs.get_logger("a").error("loud")
    assert [line.split("event=")[1] for line in capsys.readouterr().err.splitlines()] == ["loud"]


@pytest.mark.parametrize("fmt", logs.FORMATS)
def test_libraries_are_heard_from_warnings_on(capsys: pytest.CaptureFixture[str], fmt: str) -> None:
    """In the same format, with the logger's name as the component."""
    logs.configure("debug", fmt)
    logging.getLogger("urllib3.connectionpool").info("quiet")
    logging.getLogger("urllib3.connectionpool").warning("%s is odd", "it")
    (line,) = capsys.readouterr().err.splitlines()
    if fmt == "json":
        assert json.loads(line)["component"] == "urllib3.connectionpool"
    else:
        assert re.fullmatch(rf'ts={TS} level=warning component=urllib3.connectionpool event="it is odd"', line)


@pytest.mark.parametrize("fmt", logs.FORMATS)
def test_an_exception_is_one_line(capsys: pytest.CaptureFixture[str], fmt: str) -> None:
    """With its traceback in it."""
    logs.configure("info", fmt)
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        logs.get_logger("a").exception("failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "Traceback" in line
    assert "RuntimeError: boom" in line


@pytest.mark.parametrize("fmt", logs.FORMATS)
def test_values_cannot_forge_or_overwrite_a_line(capsys: pytest.CaptureFixture[str], fmt: str) -> None:
    """What a backend answers may be logged: no line end, no carriage return, no escape of a terminal gets through."""
    logs.configure("info", fmt)
    logs.get_logger("a").info("said", text="x\nts=0 level=error\r\x1b[2K\u2028\x85")
    written = capsys.readouterr().err
    assert written.endswith("\n")
    assert written[:-1].isascii()
    assert written[:-1].isprintable()


class Closed:
    """Standard error whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [Closed(), None])
def test_a_log_that_cannot_be_written_ends_no_loop(monkeypatch: pytest.MonkeyPatch, stream: object) -> None:
    """The line is lost; who wanted to write it goes on."""
    logs.configure("info")
    monkeypatch.setattr(sys, "stderr", stream)
    logs.get_logger("a").info("said")
    logging.getLogger("library").warning("said")
