"""The journal: what is written stays, and races have one winner."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from remediator import schema
from remediator.database import JournalFailed, Taken
from remediator.journal import Journal
from remediator.model import Decision, Hold, Outcome, Reason, Step, Storm, Verb
from tests.remediator.fakes import START, World, firing

Make = Callable[..., World]


@pytest.fixture
def make(make_on_either: Make) -> Make:
    """Everything here holds for both databases; what is about a file asks for SQLite."""
    return make_on_either


def test_sqlite_is_set_for_safety(make_on_sqlite: Make) -> None:
    """WAL, synchronous FULL, foreign keys."""
    world = make_on_sqlite()
    with world.parts.journal._database.read() as connection:
        found = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert found == ["wal", 2, 1]


def test_one_open_request_a_backend(make: Make) -> None:
    """Two hundred deliveries of the same alert are one request, and every alert is journalled."""
    world = make()
    inbox = world.parts.journal.inbox
    opened = [inbox.receive([firing("a", starts_at=START + n)], START + n) for n in range(200)]
    (request,) = inbox.waiting()
    assert request.alerts == 200
    assert [found for found in opened if found] == [frozenset({"a"})]
    with world.parts.journal._database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM alerts").scalar() == 200


def test_only_firing_alerts_open_requests(make: Make) -> None:
    """Resolved and strange ones are written down and do nothing."""
    world = make()
    alerts = [firing("a", status="resolved"), firing("b", status="other"), firing("c")]
    assert world.parts.journal.inbox.receive(alerts, START) == {"c"}
    assert world.parts.journal.inbox.receive([], START) == frozenset()


def test_an_alert_for_humans_does_not_take_the_place_of_one_for_machines(make: Make) -> None:
    """Both come in one group; the one without the label must not swallow the other."""
    world = make()
    world.parts.journal.inbox.receive([firing("a", restart_asked=False), firing("a")], START)
    assert [r.restart_asked for r in world.parts.journal.inbox.waiting()] == [False, True]


def test_an_alert_during_an_attempt_is_counted_on_it(make: Make) -> None:
    """No second request waits behind a restart that is under way."""
    world = make()
    world.claimed()
    assert world.parts.journal.inbox.receive([firing("a")], START) == frozenset()
    assert not world.waiting()
    (request,) = world.parts.journal.inbox.open()
    assert request.alerts == 2


def test_a_new_episode_opens_a_new_request(make: Make) -> None:
    """After the outcome the next alert is a request of its own."""
    world = make()
    attempt = world.claimed()
    world.parts.journal.ledger.finish(attempt.id, Outcome.FAILED, "exit_status", "", START)
    assert world.parts.journal.inbox.receive([firing("a")], START) == {"a"}


def test_two_connections_claim_at_once(make: Make) -> None:
    """Eight threads claim the same request at the same time: one attempt."""
    world = make()
    world.alert()
    (request,) = world.waiting()
    gate = threading.Barrier(8)
    won = []

    def claim() -> None:
        gate.wait()
        won.append(world.parts.journal.ledger.claim(request, "g", "command", "", START))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([attempt for attempt in won if attempt is not None]) == 1
    assert len(world.attempts()) == 1


def test_two_backends_of_a_group_claim_at_once(make: Make) -> None:
    """The index on the group lets one through; the other request still waits."""
    world = make({"a": "g", "b": "g"})
    world.alert("a", "b")
    requests = world.waiting()
    gate = threading.Barrier(2)
    won = []

    def claim(number: int) -> None:
        gate.wait()
        won.append(world.parts.journal.ledger.claim(requests[number], "g", "command", "", START))

    threads = [threading.Thread(target=claim, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([attempt for attempt in won if attempt is not None]) == 1
    assert len(world.waiting()) == 1


def test_the_index_decides_even_if_nobody_checks(make: Make) -> None:
    """A second open attempt of a backend cannot be written by any path."""
    world = make()
    world.claimed()
    with pytest.raises(Taken), world.parts.journal._database.write() as connection:
        connection.exec_driver_sql(
            "INSERT INTO attempts (request_id, backend, group_name, driver, claimed_at, last_step) "
            "VALUES (1, 'a', 'other', 'command', 0, 'claimed')"
        )


def test_a_call_is_journalled_once(make: Make) -> None:
    """Two processes that believe they carry one attempt cannot both call."""
    world = make()
    attempt = world.claimed()
    world.parts.journal.ledger.call(attempt.id, 1, START, START + 60)
    with pytest.raises(Taken):
        world.parts.journal.ledger.call(attempt.id, 1, START, START + 60)


def test_an_outcome_is_final(make: Make) -> None:
    """The first outcome stands."""
    world = make()
    attempt = world.claimed()
    world.parts.journal.ledger.finish(attempt.id, Outcome.RECOVERED, "proven", "", START)
    world.parts.journal.ledger.finish(attempt.id, Outcome.FAILED, "not_recovered", "", START + 1)
    assert world.attempts()[0]["outcome"] == "recovered"


def test_everything_is_there_after_a_crash(make: Make) -> None:
    """Requests, steps, holds, latches and the storm are read back by the next process."""
    world = make()
    attempt = world.claimed()
    journal = world.parts.journal
    journal.ledger.step(attempt.id, Step.IDENTITY_NOTED, START, "life-1")
    journal.holds.hold(Hold("a", "ada", "weights", START, None))
    journal.holds.keep_storm(Storm(START, START), START)
    journal.inbox.receive([firing("b")], START)
    (other,) = world.waiting()
    journal.inbox.decided(other, Decision(Verb.REFUSE, Reason.BUDGET_EXHAUSTED), START, latch=True)
    world.reopen()
    journal = world.parts.journal
    (found,) = journal.ledger.unfinished()
    assert (found.last_step, found.identity_before) == (Step.IDENTITY_NOTED, "life-1")
    history = journal.reader.history(START)
    assert history.holds == {"a": Hold("a", "ada", "weights", START, None)}
    assert history.latched == {"b"}
    assert history.storm == Storm(START, START)
    assert len(history.attempts) == 1
    assert not world.waiting()


def test_holds_end_by_themselves_or_by_hand(make: Make) -> None:
    """A second hold replaces the first; a release ends it; a time ends it."""
    holds = make().parts.journal.holds
    holds.hold(Hold("a", "ada", "one", START, None))
    holds.hold(Hold("a", "bob", "two", START + 1, START + 100))
    assert holds.current(START + 99)["a"].why == "two"
    assert not holds.current(START + 100)
    assert holds.release("a", "bob", START + 50)
    assert not holds.release("a", "bob", START + 51)
    assert not holds.current(START + 52)


def test_a_reset_unlatches_the_budget(make: Make) -> None:
    """Only a person opens a latched budget."""
    world = make()
    world.alert()
    (request,) = world.waiting()
    world.parts.journal.inbox.decided(request, Decision(Verb.REFUSE, Reason.BUDGET_EXHAUSTED), START, latch=True)
    assert world.parts.journal.reader.history(START).latched == {"a"}
    world.parts.journal.holds.reset_budget("a", "ada", "looked at it", START + 1)
    history = world.parts.journal.reader.history(START + 2)
    assert (history.latched, dict(history.budget_reset_at)) == (frozenset(), {"a": START + 1})


def test_an_override_lasts_until_the_storm_is_over(make: Make) -> None:
    """The loop's next look must not take a person's decision back."""
    holds = make().parts.journal.holds
    assert not holds.override_storm("ada", "known", START)
    holds.keep_storm(Storm(START, START), START)
    assert holds.override_storm("ada", "known", START + 1)
    holds.keep_storm(Storm(START, START + 10), START + 10)
    assert holds.storm() == Storm(START, START + 10, overridden=True)
    holds.keep_storm(None, START + 700)
    assert holds.storm() is None


def test_one_remediator_a_journal(make_on_sqlite: Make) -> None:
    """A second process on the same file would carry the first one's attempts."""
    world = make_on_sqlite()
    with pytest.raises(JournalFailed) as caught:
        Journal(world.path)
    assert str(caught.value) == f"{world.path}: another remediator uses this journal"


def test_a_journal_of_a_newer_program_is_refused(make: Make) -> None:
    """Better no remediator than one that misreads its own history."""
    world = make()
    world.sql("UPDATE meta SET value = '999' WHERE key = 'version'")
    with pytest.raises(JournalFailed) as caught:
        world.reopen()
    name = world.path if isinstance(world.path, Path) else world.path.render_as_string()
    expected = f"{name}: is a journal of version 999; this program reads versions up to {schema.VERSION}"
    assert str(caught.value) == expected


def test_a_file_that_is_no_journal(tmp_path: Path) -> None:
    """Some other file is refused in one line and left as it was."""
    path = tmp_path / "journal.db"
    path.write_bytes(b"not a database, but long enough to be read as one" * 100)
    with pytest.raises(JournalFailed, match="file is not a database"):
        Journal(path)
    assert path.read_bytes().startswith(b"not a database")


def test_a_locked_journal_is_an_error_and_not_a_wait_for_ever(
    make_on_sqlite: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that does not let go costs a bounded time and then one typed error."""
    monkeypatch.setattr("remediator.engines.BUSY_MILLISECONDS", 50)
    world = make_on_sqlite()
    with sqlite3.connect(world.path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalFailed, match="database is locked"):
            world.alert()
        other.execute("ROLLBACK")
    other.close()
    world.alert()
    assert len(world.waiting()) == 1
