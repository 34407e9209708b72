"""What the remediator reads of the exporter's JSON, held against the same schema as the exporter's side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from remediator.evidence import parse_view

SCHEMA = json.loads((Path(__file__).parent.parent.parent / "docs" / "api" / "backend.schema.json").read_text())


def document(**changes: Any) -> dict[str, Any]:
    """A backend that is stuck, as the schema has it."""
    rank = {
        "rank": "0",
        "model": "tiny",
        "verdict": "stuck",
        "reason": "stalled_and_unanswered",
        "stalled_seconds": 187.0,
        "running": 4.0,
        "waiting": 2.0,
        "misses": 1,
        "misses_required": 1,
        "previous": None,
        "latest": None,
        "asks": [],
    }
    whole = {
        "name": "gb10-a",
        "group": "g",
        "runtime": "vllm",
        "url": "http://10.0.0.5:8000",
        "verdict": "stuck",
        "reason": "stalled_and_unanswered",
        "sentence": "Rank 0 has stood still.",
        "since": 1.0,
        "observed_at": 2.0,
        "age_seconds": 1.5,
        "loop_alive": True,
        "last_progress_age_seconds": 190.0,
        "last_answer_age_seconds": None,
        "ask_when": "doubtful",
        "incarnation": {"start_time": 1.0, "exporter_epoch": "e", "generation": 0},
        "limits": {
            "poll_interval_seconds": 5.0,
            "stuck_after_seconds": 180.0,
            "startup_grace_seconds": 1200.0,
            "effective_stuck_after_seconds": 180.0,
        },
        "ranks": [rank],
        "history": [],
    }
    return {**whole, **changes}


def test_what_the_schema_allows_is_a_view() -> None:
    """A document of the schema is read whole: verdict, ages, limits, and that every rank is stuck."""
    jsonschema.validate(document(), SCHEMA)
    view = parse_view(document())
    assert view is not None
    assert (view.verdict, view.age_seconds, view.poll_interval_seconds) == ("stuck", 1.5, 5.0)
    assert (view.last_progress_age_seconds, view.last_answer_age_seconds) == (190.0, None)
    assert view.startup_grace_seconds == 1200.0
    assert view.wholly_stuck


@pytest.mark.parametrize("key", SCHEMA["required"])
def test_every_required_key_is_needed_by_the_schema(key: str) -> None:
    """The example has nothing that the schema does not ask for: without any one key it is no document."""
    incomplete = document()
    del incomplete[key]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(incomplete, SCHEMA)


@pytest.mark.parametrize("verdict", SCHEMA["$defs"]["verdict"]["enum"])
def test_every_verdict_of_the_schema_is_read_as_it_is(verdict: str) -> None:
    """No verdict is turned into another on the way."""
    view = parse_view(document(verdict=verdict))
    assert view is not None
    assert view.verdict == verdict


@pytest.mark.parametrize("noise", [None, 5, "stuck", [], {}, {"name": 5, "verdict": "stuck"}, {"name": "a"}])
def test_what_is_no_document_is_no_view(noise: Any) -> None:
    """Anything else is unavailable evidence, never a guess."""
    assert parse_view(noise) is None


@pytest.mark.parametrize("age", [None, "1", float("nan"), float("inf"), -5.0, True])
def test_an_age_that_is_none_proves_nothing(age: Any) -> None:
    """An age that is not a number of seconds is unknown."""
    view = parse_view(document(age_seconds=age))
    assert view is None or view.age_seconds is None
