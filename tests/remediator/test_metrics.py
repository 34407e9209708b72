"""The exposition: every series is there from the start, and promtool has nothing against it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from remediator.database import JournalFailed
from remediator.model import Decision, Hold, Outcome, Reason, Verb
from remediator.web import create_app
from tests.remediator.fakes import World
from tests.tools import find_tool

Make = Callable[..., World]


def exposition(world: World) -> str:
    return create_app(world.parts, lambda: True).test_client().get("/metrics").get_data(as_text=True)


def samples(text: str) -> dict[str, float]:
    pairs = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def test_promtool_accepts_it(make: Make) -> None:
    """Names, types and HELP texts pass Prometheus's own linter."""
    done = subprocess.run(
        [find_tool("promtool"), "check", "metrics"],
        input=exposition(make({"a": "g", "b": "g"})),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_everything_is_prefixed_and_closed(make: Make) -> None:
    """One prefix but for the process itself; what can move is there at 0: an increase from nothing is invisible."""
    found = samples(exposition(make()))
    assert all(name.startswith(("stallwatch_", "process_", "python_info")) for name in found)
    for reason in set(Reason) - {Reason.ACT, Reason.UNKNOWN_BACKEND}:
        labels = f'{{backend="a",decision="refuse",reason="{reason}"}}'
        assert found[f"stallwatch_remediation_decisions_total{labels}"] == 0
    assert found['stallwatch_remediation_decisions_total{backend="",decision="refuse",reason="unknown_backend"}'] == 0
    assert found['stallwatch_remediation_attempts_total{backend="a",driver="command"}'] == 0
    assert found['stallwatch_webhook_requests_total{code="503"}'] == 0
    assert found['stallwatch_remediation_mode{mode="restart"}'] == 1
    assert found['stallwatch_remediation_mode{mode="advise"}'] == 0


def test_gauges_are_read_from_the_journal(make: Make) -> None:
    """What is held, waits, is under way and is left of the budget is true after a restart of ours as well."""
    world = make({"a": "g", "b": "h"})
    now = world.clock.time()
    attempt = world.claimed()
    world.parts.journal.ledger.call(attempt.id, 1, now, now + 60)
    world.alert("b")
    world.parts.journal.holds.hold(Hold("b", "ada", "weights", now, None))
    world.reopen()
    found = samples(exposition(world))
    prefix = "stallwatch_remediation_"
    assert found[f'{prefix}in_progress{{backend="a"}}'] == 1
    assert found[f'{prefix}waiting{{backend="b"}}'] == 1
    assert found[f'{prefix}waiting{{backend="a"}}'] == 0
    assert found[f'{prefix}held{{backend="b"}}'] == 1
    assert found[f'{prefix}budget_remaining{{backend="a"}}'] == 2
    assert found[f'{prefix}last_action_timestamp_seconds{{backend="a"}}'] == now
    assert f'{prefix}last_action_timestamp_seconds{{backend="b"}}' not in found
    assert found[f"{prefix}storm"] == 0


def test_an_unreadable_journal_is_a_value(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scrape succeeds and says so, rather than show old values."""
    world = make()

    def fail(_: float) -> Any:
        raise JournalFailed("disk I/O error")

    monkeypatch.setattr(world.parts.journal.reader, "history", fail)
    found = samples(exposition(world))
    assert found["stallwatch_remediation_journal_readable"] == 0
    assert not [name for name in found if "budget_remaining" in name]


def test_labels_of_alerts_never_become_series(make: Make) -> None:
    """A thousand invented names would be a thousand series."""
    world = make()
    world.alert(*[f"nobody-{n}" for n in range(50)])
    for _ in range(50):
        world.parts.metrics.decided("", Decision(Verb.REFUSE, Reason.UNKNOWN_BACKEND))
    assert not re.search("nobody", exposition(world))


def test_a_failed_attempt_counts_under_a_listed_reason(make: Make) -> None:
    """Every reason with which an attempt can fail is initialised."""
    world = make()
    attempt = world.claimed()
    world.parts.journal.ledger.finish(attempt.id, Outcome.FAILED, "identity_unchanged", "", 0.0)
    found = samples(exposition(world))
    for reason in ("exit_status", "deadline", "identity_unchanged", "identity_unavailable", "not_recovered"):
        labels = f'{{backend="a",driver="command",reason="{reason}"}}'
        assert found[f"stallwatch_remediation_attempts_failed_total{labels}"] == 0
