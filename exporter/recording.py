"""Recordings: one JSON line per poll, `.jsonl` or `.jsonl.gz`. Reading, writing, and replaying them.

A line holds `t` (seconds from the start, when the poll began), `status`, `error` (null, refused, timeout,
reset, other), `seconds` (how long the reading took), `health` (status or null), `body`, `ask` (what a short
request would have got then: answered, unanswered, server_error, rejected, refused, or one such word per rank), and
sometimes `is_sleeping`, `is_paused` and `wall` (Unix seconds).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.model import Answer, AskResult, Failure, FailureReason, Limits, Observation, Page, Question
from exporter.page import PageError, PageParser
from exporter.state import State
from exporter.verdict import advance, shown

_ERRORS = {"refused": FailureReason.REFUSED, "timeout": FailureReason.TIMEOUT}
_RESULTS = {result.value: result for result in AskResult}


class RecordingError(Exception):
    """The file is no recording; the text names the file and the line."""


@dataclass(frozen=True, slots=True)
class Step:
    """One replayed poll: the state after it, the question sent on it, and the row that `replay` prints."""

    state: State
    asked: Question | None
    row: Mapping[str, object]


def read_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of a recording. Raises `RecordingError` naming file and line."""
    opener = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                line = json.loads(text)
                if not isinstance(line, dict) or not isinstance(line.get("t"), int | float):
                    raise RecordingError(f"{path}:{number}: no poll: an object with a number `t` is wanted")
                yield line
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RecordingError(f"{path}:{number + 1}: cannot be read: {error}") from error


def observe(line: Mapping[str, Any], parser: PageParser, *, with_pause: bool) -> Observation:
    """What one recorded poll would have been as an observation."""
    began = float(line["t"])
    at = began + float(line.get("seconds") or 0.0)
    wall = line.get("wall")
    alive = None if line.get("health") is None and line.get("status") is not None else line.get("health") == 200
    status, body = line.get("status"), str(line.get("body") or "")

    def failure(reason: FailureReason, detail: str = "") -> Failure:
        return Failure(began, at, wall, reason, detail, status, alive)

    if line.get("error"):
        return failure(_ERRORS.get(line["error"], FailureReason.RESET))
    if status == 503 and "loading" in body.lower():
        return failure(FailureReason.LOADING)
    if status != 200:
        return failure(FailureReason.HTTP_ERROR)
    try:
        reading = parser.parse(body.encode())
    except PageError as error:
        return failure(error.reason, str(error))
    paused = with_pause and bool(line.get("is_paused") or line.get("is_sleeping"))
    return Page(began, at, wall, reading, paused)


def replay(lines: Iterator[Mapping[str, Any]], parser: PageParser, limits: Limits) -> Iterator[Step]:
    """Run the verdict over a recording; no server, no clock but the recording's own."""
    state = State()
    waiting: tuple[Question, str] | None = None
    for line in lines:
        began = float(line["t"])
        if waiting is not None:
            question, word = waiting
            due = question.sent_at + limits.ask_timeout_seconds if word == "unanswered" else began
            if began >= due:
                result = _RESULTS.get(word, AskResult.FAILED)
                at = due if word == "unanswered" else began
                answer = Answer(question.rank, question.sent_at, at, line.get("wall"), result)
                state, _ = advance(state, answer, limits, began)
                waiting = None
        observation = observe(line, parser, with_pause=state.stands_still)
        state, asked = advance(state, observation, limits, observation.at)
        if asked is not None:
            waiting = (asked, _word(line, asked))
        yield Step(state, asked, _row(line, state, asked, limits, observation.at))


def _word(line: Mapping[str, Any], question: Question) -> str:
    word = line.get("ask")
    if isinstance(word, dict):
        word = word.get(question.rank[1], "refused")
    return str(word)


def _row(
    line: Mapping[str, Any], state: State, asked: Question | None, limits: Limits, now: float
) -> Mapping[str, object]:
    gauges = shown(state, limits, now)
    return {
        "t": line["t"],
        "verdict": state.verdict.value,
        "reason": state.judgement.reason,
        "stalled_seconds": _rounded(gauges.stalled_seconds),
        "engine_progress_rate": _rounded(gauges.progress_rate),
        "restart_detected": gauges.restart_detected,
        "asked": None if asked is None else rank_name(asked, state),
    }


def rank_name(question: Question, state: State) -> str:
    """The asked rank as a label."""
    return state.rank_names().get(question.rank, question.rank[1]) or "0"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def to_json(row: Mapping[str, object]) -> str:
    """A row as one line of JSON."""
    return json.dumps(row, allow_nan=False)
