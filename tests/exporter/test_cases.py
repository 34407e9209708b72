"""What happened to people who run model servers, replayed poll by poll: what must be said, and what never."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from exporter.recording import Step, read_lines
from tests.recordings.cases.case import replayed
from tests.recordings.cases.make import FOLDER, SERVERS, differences, truth

CASES = sorted(SERVERS)
EVER = float("inf")


@cache
def pieces(name: str) -> list[list[Step]]:
    """The replay of a case; an exporter that begins anew has a replay for each of its lives, each from 0 s."""
    told = truth(name)
    life = told.get("pieces_seconds", EVER)
    lines: dict[int, list[Mapping[str, Any]]] = {}
    for line in read_lines(FOLDER / f"{name}.jsonl.gz"):
        number = int(line["t"] // life)
        lines.setdefault(number, []).append({**line, "t": line["t"] - (number * life if number else 0)})
    return [list(replayed(part, told)) for part in lines.values()]


def steps(name: str) -> list[Step]:
    """The replay of a case in one piece."""
    (only,) = pieces(name)
    return only


def broken(step: Step, expect: Mapping[str, Any], *, several_models: bool) -> bool:
    """Whether a poll is otherwise than it must be."""
    verdict, reason = step.row["verdict"], step.row["reason"]
    rank = step.state.judgement.rank
    name = "" if rank is None else "/".join(rank) if several_models else rank[1]
    return (
        ("verdicts" in expect and verdict not in expect["verdicts"])
        or verdict in expect.get("never", ())
        or reason != expect.get("reason", reason)
        or name != expect.get("rank", name)
    )


@pytest.mark.parametrize("name", CASES)
def test_every_poll_says_what_is_right(name: str) -> None:
    """At each poll of each life of the exporter the verdict, its reason and its rank are what the case wants."""
    for replay in pieces(name):
        for expect in truth(name)["expect"]:
            inside = [s for s in replay if expect["from_t"] <= s.row["t"] <= expect.get("to_t", EVER)]
            assert inside, f"no poll between {expect['from_t']} and {expect.get('to_t')}"
            wrong = [
                (s.row["t"], s.row["verdict"], s.row["reason"], s.state.judgement.rank)
                for s in inside
                if broken(s, expect, several_models=len({model for model, _ in s.state.ranks}) > 1)
            ]
            assert wrong == [], expect


@pytest.mark.parametrize("name", CASES)
def test_no_more_is_asked_than_must_be(name: str) -> None:
    """Questions stay within the number the case allows, and none goes to a rank whose latest page moved."""
    fewest, most = truth(name).get("asks", (0, 1000))
    for replay in pieces(name):
        asked = [step for step in replay if step.asked is not None]
        assert fewest <= len(asked) <= most, [step.row["t"] for step in asked]
        assert not any(step.asked and step.state.ranks[step.asked.rank].moved for step in asked)


@pytest.mark.parametrize("name", CASES)
def test_restarts_are_seen_and_none_is_made_up(name: str) -> None:
    """A new process is counted once, at a rate of nought; a server that only looks new is not counted."""
    for replay in pieces(name):
        assert replay[-1].state.restarts == truth(name)["restarts"]
        for before, step in pairwise(replay):
            if step.state.restarts > before.state.restarts:
                assert (step.row["engine_progress_rate"], step.row["stalled_seconds"]) == (0, 0)
                assert step.row["restart_detected"] == 1


def test_a_renamed_series_says_the_same_under_each_name_and_under_both() -> None:
    """The old name, the new one and both at once give the same rows: nothing is lost, nothing counts twice."""
    rows = [[step.row for step in steps(name)] for name in CASES if name.startswith("C4")]
    assert len(rows) == 3
    assert rows[0] == rows[1] == rows[2]


def test_every_frozen_one_of_eight_idle_ranks_is_known_by_name() -> None:
    """Three of eight engines are silent: at the end these three, and no other, have unanswered questions."""
    ranks = steps("T15-three-of-eight-frozen-while-idle")[-1].state.ranks
    assert {rank for (_, rank), known in ranks.items() if known.misses} == {"2", "5", "7"}


def test_phantom_ranks_beside_a_frozen_one_are_cleared() -> None:
    """Each rank with phantom work was asked once, by name, and shows nothing in flight any more."""
    ranks = steps("T16-frozen-beside-phantoms")[-1].state.ranks
    assert {rank: known.in_flight for (_, rank), known in ranks.items()} == {"0": 4, "1": 0, "2": 0, "3": 0}


def test_questions_that_prove_nothing_become_rarer() -> None:
    """Answered without a movement of the page, each question waits at least as long as the one before it."""
    for name in ("T12-answers-that-move-no-page", "C1b-phantom-requests-behind-a-gateway"):
        asked = [step.asked.sent_at for step in steps(name) if step.asked is not None]
        gaps = [b - a for a, b in pairwise(asked)]
        assert gaps == sorted(gaps)


def test_the_recordings_are_what_their_servers_make() -> None:
    """Each file comes from its server and no other; one that asks at other times now must be made anew."""
    assert differences() == [], "python -m tests.recordings.cases.make"


def test_the_cases_stay_small() -> None:
    """All of them together are less than one page of a real server in a day."""
    assert sum(file.stat().st_size for file in FOLDER.iterdir() if file.is_file()) < 400_000
