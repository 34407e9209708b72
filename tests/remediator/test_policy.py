"""The safety ladder, a sentence a row."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediator import budget, group, model, policy, recovery, storm
from remediator.config import LimitSettings
from remediator.model import (
    OVERRULABLE,
    WAITS,
    Fleet,
    History,
    Hold,
    Limits,
    Member,
    Order,
    Outcome,
    PastAttempt,
    Reason,
    Request,
    Storm,
    Verb,
)
from tests.remediator.fakes import view

NOW = 1_800_000_000.0
LIMITS = Limits()
STUCK = view()


def request(**changes: Any) -> Request:
    values: dict[str, Any] = {
        "backend": "a",
        "restart_asked": True,
        "created_at": NOW - 5,
        "identity_noted": "life-1",
        "identity_now": "life-1",
        "seen_stuck": True,
    }
    return Request(**{**values, **changes})


def member(name: str = "a", group: str = "g", **changes: Any) -> Member:
    values: dict[str, Any] = {
        "restart_on": frozenset({"stuck"}),
        "view": view("stuck" if name == "a" else "busy", name),
    }
    return Member(name, group, **{**values, **changes})


def fleet(*members: Member, mode: str = "restart") -> Fleet:
    return Fleet(mode, {m.name: m for m in members or (member(),)})


def past(backend: str = "a", ago: float = 600.0, took: float | None = 60.0, **changes: Any) -> PastAttempt:
    """An attempt whose outcome came `ago` seconds before now; `took` None leaves it open."""
    values: dict[str, Any] = {
        "group": "g",
        "called_at": NOW - ago - (took or 0.0),
        "ended_at": None if took is None else NOW - ago,
        "outcome": None if took is None else Outcome.RECOVERED,
    }
    return PastAttempt(backend, **{**values, **changes})


def ordered(*overrules: Reason, ago: float = 5.0, **changes: Any) -> Request:
    """A person asked `ago` seconds before now, overruling these."""
    return request(order=Order("ada", "it hangs", NOW - ago, frozenset(overrules)), seen_stuck=False, **changes)


HELD = {"a": Hold("a", "ada", "new weights", NOW - 60)}
ROWS: list[tuple[str, Request, History, Fleet, Verb, Reason]] = [
    ("A proven stuck backend is restarted.", request(), History(), fleet(), Verb.ACT, Reason.ACT),
    (
        "A name that is not configured is refused.",
        request(backend="b"), History(), fleet(), Verb.REFUSE, Reason.UNKNOWN_BACKEND,
    ),
    (
        "An alert without a backend label is refused.",
        request(backend=""), History(), fleet(), Verb.REFUSE, Reason.UNKNOWN_BACKEND,
    ),
    (
        "An alert that is not labelled remediation: restart is for humans.",
        request(restart_asked=False), History(), fleet(), Verb.REFUSE, Reason.NOT_OPTED_IN,
    ),
    (
        "A backend that has not opted in is left alone.",
        request(), History(), fleet(member(restart_on=frozenset())), Verb.REFUSE, Reason.NOT_OPTED_IN,
    ),
    ("Maintenance is respected.", request(), History(holds=HELD), fleet(), Verb.REFUSE, Reason.HELD),
    (
        "A hold that is over holds nothing.",
        request(), History(holds={"a": Hold("a", "ada", "x", NOW - 60, NOW)}), fleet(), Verb.ACT, Reason.ACT,
    ),
    (
        "A hold for another backend does not matter.",
        request(), History(holds={"b": Hold("b", "ada", "x", NOW - 60)}), fleet(), Verb.ACT, Reason.ACT,
    ),
    (
        "While it is being restarted it is not restarted.",
        request(), History((past(took=None),)), fleet(), Verb.WAIT, Reason.IN_PROGRESS,
    ),
    (
        "Somebody else has restarted it since the request came.",
        request(identity_now="life-2"), History(), fleet(), Verb.REFUSE, Reason.ALREADY_RESTARTED,
    ),
    (
        "No exporter answers.",
        request(), History(), fleet(member(view=None)), Verb.WAIT, Reason.EVIDENCE_UNAVAILABLE,
    ),
    (
        "Without an identity nobody could tell whether a restart happened.",
        request(identity_now=None), History(), fleet(), Verb.WAIT, Reason.EVIDENCE_UNAVAILABLE,
    ),
    (
        "The first look at the identity has failed so far.",
        request(identity_noted=None, identity_now=None), History(), fleet(), Verb.WAIT, Reason.EVIDENCE_UNAVAILABLE,
    ),
    (
        "The exporter does not say stuck yet.",
        request(seen_stuck=False), History(), fleet(member(view=view("stalled"))), Verb.WAIT, Reason.NOT_CONFIRMED,
    ),
    (
        "An old alert about a server that is well waits for nothing but its end.",
        request(seen_stuck=False, created_at=NOW - 3600), History(), fleet(member(view=view("busy"))),
        Verb.REFUSE, Reason.NOT_CONFIRMED,
    ),
    (
        "It was stuck and has recovered by itself.",
        request(), History(), fleet(member(view=view("busy"))), Verb.REFUSE, Reason.NOT_CONFIRMED,
    ),
    (
        "An exporter whose loop has died still says stuck.",
        request(), History(), fleet(member(view=view(age_seconds=15.1))), Verb.WAIT, Reason.NOT_CONFIRMED,
    ),
    (
        "Three polls are still fresh.",
        request(), History(), fleet(member(view=view(age_seconds=15.0))), Verb.ACT, Reason.ACT,
    ),
    (
        "What the driver says does not run cannot be what the exporter reads: a person stopped it, or a wrong name.",
        request(running_now=False), History(), fleet(), Verb.WAIT, Reason.NOT_CONFIRMED,
    ),
    (
        "A driver that cannot tell whether it runs does not stand in the way.",
        request(running_now=None), History(), fleet(), Verb.ACT, Reason.ACT,
    ),
    (
        "An observation of unknown age proves nothing.",
        request(), History(), fleet(member(view=view(age_seconds=None))), Verb.WAIT, Reason.NOT_CONFIRMED,
    ),
    (
        "An old reading that is not stuck any more does not end the request.",
        request(), History(), fleet(member(view=view("unreachable", age_seconds=60.0))),
        Verb.WAIT, Reason.NOT_CONFIRMED,
    ),
    (
        "The exporter says that it is starting.",
        request(seen_stuck=False), History(), fleet(member(view=view("starting"))), Verb.WAIT, Reason.STARTING,
    ),
    (
        "A process that has done nothing yet and is young may still be loading.",
        request(), History(), fleet(member(view=view(last_progress_age_seconds=None, start_time=NOW - 600))),
        Verb.WAIT, Reason.STARTING,
    ),
    (
        "A process that publishes no start time was restarted by us a moment ago.",
        request(), History((past(ago=300),)),
        fleet(member(view=view(last_progress_age_seconds=None, start_time=None))), Verb.WAIT, Reason.STARTING,
    ),
    (
        "A young process that has worked already can be stuck.",
        request(), History(), fleet(member(view=view(start_time=NOW - 600))), Verb.ACT, Reason.ACT,
    ),
    (
        "A process older than the grace that never did anything is stuck.",
        request(), History(), fleet(member(view=view(last_progress_age_seconds=None, start_time=NOW - 1200))),
        Verb.ACT, Reason.ACT,
    ),
    ("Half an hour of cooldown.", request(), History((past(ago=1799),)), fleet(), Verb.WAIT, Reason.COOLDOWN),
    ("The cooldown is over.", request(), History((past(ago=1800),)), fleet(), Verb.ACT, Reason.ACT),
    (
        "A failed restart cools down as well.",
        request(), History((past(ago=1799, outcome=Outcome.FAILED),)), fleet(), Verb.WAIT, Reason.COOLDOWN,
    ),
    (
        "An attempt that never called its driver costs nothing.",
        request(), History((past(ago=1, called_at=None, outcome=Outcome.WITHDRAWN),)), fleet(), Verb.ACT, Reason.ACT,
    ),
    (
        "The second cooldown is twice as long.",
        request(), History((past(ago=5000), past(ago=3599))), fleet(), Verb.WAIT, Reason.COOLDOWN,
    ),
    (
        "Six hours of progress forget the first attempt.",
        request(), History((past(ago=1800 + 60 + 21600), past(ago=1800))), fleet(), Verb.ACT, Reason.ACT,
    ),
    (
        "A clock that was set back does not end the cooldown.",
        request(), History((past(ago=-7200),)), fleet(), Verb.WAIT, Reason.COOLDOWN,
    ),
    (
        "Three attempts in six hours are the budget.",
        request(), History(tuple(past(ago=ago) for ago in (21000, 18000, 10000))), fleet(),
        Verb.REFUSE, Reason.BUDGET_EXHAUSTED,
    ),
    (
        "Four attempts in a day are the budget too.",
        request(), History(tuple(past(ago=ago) for ago in (80000, 70000, 60000, 29000))), fleet(),
        Verb.REFUSE, Reason.BUDGET_EXHAUSTED,
    ),
    (
        "A latched budget stays shut although its window has passed.",
        request(), History(latched=frozenset({"a"})), fleet(), Verb.REFUSE, Reason.BUDGET_EXHAUSTED,
    ),
    (
        "A person has reset the budget.",
        request(), History(tuple(past(ago=ago) for ago in (21000, 18000, 10000)), budget_reset_at={"a": NOW - 1}),
        fleet(), Verb.ACT, Reason.ACT,
    ),
    (
        "A peer in the group is being restarted.",
        request(), History((past("b", took=None),)), fleet(member(), member("b")), Verb.WAIT, Reason.GROUP_BUSY,
    ),
    (
        "A peer was restarted a moment ago and the group settles.",
        request(), History((past("b", ago=299),)), fleet(member(), member("b")), Verb.WAIT, Reason.GROUP_BUSY,
    ),
    (
        "The group has settled.",
        request(), History((past("b", ago=300),)), fleet(member(), member("b")), Verb.ACT, Reason.ACT,
    ),
    (
        "Another group's restart does not matter.",
        request(), History((past("b", took=None, group="h"),)), fleet(member(), member("b", "h")),
        Verb.ACT, Reason.ACT,
    ),
    (
        "The last that still works in part must not be taken away.",
        request(), History(), fleet(member(view=view(wholly_stuck=False)), member("b", view=view("down", "b"))),
        Verb.WAIT, Reason.BELOW_MINIMUM_HEALTHY,
    ),
    (
        "A healthy peer serves while one rank's server is restarted.",
        request(), History(), fleet(member(view=view(wholly_stuck=False)), member("b")), Verb.ACT, Reason.ACT,
    ),
    (
        "A peer whose last reading is old does not count as healthy.",
        request(), History(),
        fleet(member(view=view(wholly_stuck=False)), member("b", view=view("busy", "b", age_seconds=60.0))),
        Verb.WAIT, Reason.BELOW_MINIMUM_HEALTHY,
    ),
    (
        "A wholly stuck backend is lost already, so both of two may be restarted one by one.",
        request(), History(), fleet(member(), member("b", view=view("stuck", "b"))), Verb.ACT, Reason.ACT,
    ),
    (
        "Alone in its group a partly stuck backend has no minimum to keep.",
        request(), History(), fleet(member(view=view(wholly_stuck=False))), Verb.ACT, Reason.ACT,
    ),
    (
        "Both of two groups in trouble is a storm.",
        request(), History(), fleet(member(), member("b", "h", view=view("stalled", "b"))), Verb.WAIT, Reason.STORM,
    ),
    (
        "A storm that has just fallen below still holds.",
        request(), History(storm=Storm(NOW - 900, NOW - 60)), fleet(member(), member("b", "h")),
        Verb.WAIT, Reason.STORM,
    ),
    (
        "A person has lifted the storm.",
        request(), History(storm=Storm(NOW - 900, NOW, overridden=True)),
        fleet(member(), member("b", "h", view=view("stuck", "b"))), Verb.ACT, Reason.ACT,
    ),
    (
        "A person who asks is not more than an alert: a busy server is left alone.",
        ordered(), History(), fleet(member(view=view("busy"))), Verb.WAIT, Reason.NOT_CONFIRMED,
    ),
    (
        "A person may answer for a server that is not proven stuck.",
        ordered(Reason.NOT_CONFIRMED), History(), fleet(member(view=view("busy"))), Verb.ACT, Reason.ACT,
    ),
    (
        "What was overruled minutes ago is not overruled any more: by now it may be well.",
        ordered(Reason.NOT_CONFIRMED, ago=300), History(), fleet(member(view=view("busy"))),
        Verb.WAIT, Reason.NOT_CONFIRMED,
    ),
    (
        "What was overruled in the future, by another clock, is not overruled.",
        ordered(Reason.NOT_CONFIRMED, ago=-60), History(), fleet(member(view=view("busy"))),
        Verb.WAIT, Reason.NOT_CONFIRMED,
    ),
    (
        "Who overrules one rung has not overruled the next.",
        ordered(Reason.NOT_CONFIRMED), History((past(ago=600),)), fleet(member(view=view("busy"))),
        Verb.WAIT, Reason.COOLDOWN,
    ),
    (
        "Cooldown, budget and storm are a person's to overrule, all at once if he names them all.",
        ordered(Reason.COOLDOWN, Reason.BUDGET_EXHAUSTED, Reason.STORM),
        History((past(ago=600),), latched=frozenset({"a"}), storm=Storm(NOW - 1, NOW - 1)), fleet(),
        Verb.ACT, Reason.ACT,
    ),
    (
        "Another person's hold is released, not overruled.",
        ordered(*OVERRULABLE), History(holds=HELD), fleet(), Verb.REFUSE, Reason.HELD,
    ),
    (
        "In advise mode nobody restarts anything.",
        ordered(*OVERRULABLE), History(), fleet(mode="advise"), Verb.REFUSE, Reason.ADVISE_ONLY,
    ),
    (
        "A group that settles may be overruled.",
        ordered(Reason.GROUP_BUSY), History((past("b", ago=60),)), fleet(member(), member("b")),
        Verb.ACT, Reason.ACT,
    ),
    (
        "Two attempts at once in one group may not.",
        ordered(Reason.GROUP_BUSY), History((past("b", took=None),)), fleet(member(), member("b")),
        Verb.WAIT, Reason.GROUP_BUSY,
    ),
    (
        "Nobody overrules that the exporter must tell: afterwards none could say whether it helped.",
        ordered(*OVERRULABLE), History(), fleet(member(view=None)), Verb.WAIT, Reason.EVIDENCE_UNAVAILABLE,
    ),
    (
        "Nobody overrules that somebody else was faster.",
        ordered(*OVERRULABLE, identity_now="life-2"), History(), fleet(), Verb.REFUSE, Reason.ALREADY_RESTARTED,
    ),
    ("Advice is all that is wanted.", request(), History(), fleet(mode="advise"), Verb.REFUSE, Reason.ADVISE_ONLY),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_ladder(row: tuple[str, Request, History, Fleet, Verb, Reason]) -> None:
    """Each sentence of the table holds."""
    _, asked, history, members, verb, reason = row
    decision = policy.decide(asked, history, members, LIMITS, NOW)
    assert (verb, reason) == (decision.verb, decision.reason)
    assert decision.detail


def test_rungs_stand_in_the_order_of_the_reasons() -> None:
    """The ladder tries every reason but `act`, in the order in which the reasons are documented."""
    assert [reason for reason, _ in policy.LADDER] == list(Reason)[:-1]


# Each entry spoils one rung, so that any subset of them must be answered by its first.
SPOILS: dict[Reason, Any] = {
    Reason.NOT_OPTED_IN: lambda r, h, f: (dataclasses.replace(r, restart_asked=False), h, f),
    Reason.HELD: lambda r, h, f: (r, dataclasses.replace(h, holds=HELD), f),
    Reason.IN_PROGRESS: lambda r, h, f: (r, dataclasses.replace(h, attempts=(*h.attempts, past(took=None))), f),
    Reason.ALREADY_RESTARTED: lambda r, h, f: (dataclasses.replace(r, identity_now="life-2"), h, f),
    Reason.NOT_CONFIRMED: lambda r, h, f: (r, h, _with_view(f, verdict="stalled")),
    Reason.COOLDOWN: lambda r, h, f: (r, dataclasses.replace(h, attempts=(*h.attempts, past(ago=600))), f),
    Reason.BUDGET_EXHAUSTED: lambda r, h, f: (r, dataclasses.replace(h, latched=frozenset({"a"})), f),
    Reason.GROUP_BUSY: lambda r, h, f: (r, dataclasses.replace(h, attempts=(*h.attempts, past("b", took=None))), f),
    Reason.BELOW_MINIMUM_HEALTHY: lambda r, h, f: (r, h, _with_view(f, wholly_stuck=False)),
    Reason.STORM: lambda r, h, f: (r, dataclasses.replace(h, storm=Storm(NOW - 1, NOW - 1)), f),
    Reason.ADVISE_ONLY: lambda r, h, f: (r, h, dataclasses.replace(f, mode="advise")),
}


def _with_view(found: Fleet, **changes: Any) -> Fleet:
    me = found.members["a"]
    assert me.view is not None
    spoilt = dataclasses.replace(me, view=dataclasses.replace(me.view, **changes))
    return dataclasses.replace(found, members={**found.members, "a": spoilt})


@given(st.permutations(sorted(SPOILS)), st.integers(1, len(SPOILS)))
def test_first_rung_that_says_no_is_the_reason(order: list[Reason], number: int) -> None:
    """However many rungs say no, the first of the ladder is the reason, and no is never act."""
    chosen = order[:number]
    world: Any = (request(seen_stuck=False), History(), fleet(member(), member("b", view=view("down", "b"))))
    for reason in chosen:
        world = SPOILS[reason](*world)
    decision = policy.decide(*world, LIMITS, NOW)
    first = next(reason for reason in Reason if reason in chosen)
    assert first is decision.reason
    assert (Verb.WAIT if first in WAITS else Verb.REFUSE) is decision.verb


NOT_STUCK = ("proxy", "paused", "down", "unreachable", "unmeasured", "starting", "blocked", "failing")
NOT_STUCK += ("stalled", "busy", "idle", "", "Stuck", "STUCK")


@given(
    verdict=st.sampled_from(NOT_STUCK),
    age=st.none() | st.floats(0, 1e6),
    seen=st.booleans(),
)  # fmt: skip
def test_never_acts_on_anything_but_stuck(verdict: str, age: float | None, seen: bool) -> None:
    """Only the exact verdict `stuck` can lead to a restart."""
    spoilt = fleet(member(view=view(verdict, age_seconds=age)))
    assert policy.decide(request(seen_stuck=seen), History(), spoilt, LIMITS, NOW).verb is not Verb.ACT
    assert policy.confirm(request(seen_stuck=seen), History(), spoilt, LIMITS, NOW).verb is not Verb.ACT


@given(st.permutations(sorted(SPOILS)), st.integers(1, len(SPOILS)), st.sets(st.sampled_from(sorted(OVERRULABLE))))
def test_only_what_a_person_names_is_overruled(order: list[Reason], number: int, named: set[Reason]) -> None:
    """The first rung that says no and is not named is the reason; what was overruled is said and counted."""
    chosen = order[:number]
    world: Any = (ordered(*named), History(), fleet(member(), member("b", view=view("down", "b"))))
    for reason in chosen:
        world = SPOILS[reason](*world)
    decision = policy.decide(*world, LIMITS, NOW)
    open_in_group = {Reason.IN_PROGRESS, Reason.GROUP_BUSY} & set(chosen)  # both are attempts that are open
    overruled = named - ({Reason.GROUP_BUSY} if open_in_group else set())
    noes = [reason for reason in Reason if reason in chosen and reason not in overruled]
    if noes:
        assert noes[0] is decision.reason
    else:
        assert decision.verb is Verb.ACT
        assert decision.overruled == frozenset(chosen)
        assert "ada: it hangs" in decision.detail
        assert all(f"overruled {reason}: " in decision.detail for reason in chosen)


@given(st.lists(st.tuples(st.floats(-1e5, 3e5), st.floats(0, 2000)), max_size=12), st.floats(-1e5, 1e5))
def test_restarts_in_any_six_hours_are_bounded(history: list[tuple[float, float]], shift: float) -> None:
    """Whatever the journal holds and however the clock was set, acting needs budget left in the window."""
    attempts = tuple(past(ago=ago, took=took) for ago, took in history)
    now = NOW + shift
    decision = policy.decide(request(created_at=now), History(attempts), fleet(), LIMITS, now)
    in_window = [a for a in attempts if a.called_at is not None and now - a.called_at < LIMITS.budget_window_seconds]
    if decision.verb is Verb.ACT:
        assert len(in_window) < LIMITS.budget_attempts


def test_flapping_for_a_day_is_bounded() -> None:
    """A backend that is stuck again right after each recovery is restarted three times, then a person has to look."""
    attempts: list[PastAttempt] = []
    latched: frozenset[str] = frozenset()
    for minute in range(24 * 60):
        now = NOW + minute * 60
        asked = request(created_at=now)
        decision = policy.decide(asked, History(tuple(attempts), latched=latched), fleet(), LIMITS, now)
        if decision.verb is Verb.ACT:
            attempts.append(PastAttempt("a", "g", now, now + 59, Outcome.RECOVERED))
        if decision.reason is Reason.BUDGET_EXHAUSTED:
            latched = frozenset({"a"})
    assert len(attempts) == 3


@pytest.mark.parametrize("pure", [policy, budget, group, storm, recovery, model], ids=lambda module: module.__name__)
def test_the_policy_is_pure(pure: Any) -> None:
    """The pure files import the standard library without clocks or threads, and each other."""
    tree = ast.parse(Path(pure.__file__).read_text(encoding="utf-8"))
    allowed = {"__future__", "collections.abc", "dataclasses", "enum", "remediator.model", "remediator.budget"}
    allowed |= {"remediator.storm", "remediator.policy", "remediator.group"}
    found = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert found <= allowed
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]


def test_the_documented_ladder_and_limits_are_those_of_the_code() -> None:
    """Whoever reads the page reads what is done."""
    page = (Path(__file__).parents[2] / "docs" / "remediator.md").read_text(encoding="utf-8")
    rungs = re.findall(r"^\| `(\w+)` \|", page.partition("## Limits")[0], re.MULTILINE)
    assert rungs == [reason.value for reason, _ in policy.LADDER]
    settings = LimitSettings()
    for keys, values in re.findall(r"^\| ((?:`\w+_\w+`(?:, )?)+) \| ([\d, ]+)", page, re.MULTILINE):
        for key, value in zip(re.findall(r"\w+", keys), re.findall(r"\d+", values), strict=True):
            assert getattr(settings, key) == float(value), key
    assert set(re.findall(r"`(\w+_\w+)`", page)) >= set(LimitSettings.model_fields)
