"""Restarts by hand: the same ladder, the same journal, and what a person overruled for as long as it counts."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from remediator import story
from remediator.attempt import Attempt
from remediator.export import export
from remediator.forms import OVERRULES
from remediator.ledger import StoredAttempt
from remediator.model import OVERRULABLE, Hold, Outcome, Reason, Storm
from remediator.web import create_app
from tests.remediator.fakes import World, view

Make = Callable[..., World]
SECRET = "correct horse battery staple"


@pytest.fixture
def make(make_on_either: Make) -> Make:
    """Everything here holds for both databases."""
    return make_on_either


class TestTheLadder:
    """What an order does on its way to the driver."""

    def test_a_busy_server_is_not_restarted_for_the_asking(self, make: Make) -> None:
        """An order that overrules nothing is a request like an alert's."""
        world = make()
        world.exporters.says["a"] = lambda: view("busy")
        world.order()
        world.decide()
        assert world.driver.calls == 0
        (waiting,) = world.waiting()
        assert waiting.reason == "not_confirmed"

    def test_what_is_overruled_is_overruled_before_the_call_too(self, make: Make) -> None:
        """The exporter is asked again immediately before the driver, and says the same."""
        world = make()
        world.exporters.says["a"] = lambda: view("busy")
        world.order(Reason.NOT_CONFIRMED)
        world.decide()
        assert world.driver.calls == 1
        (attempt,) = world.attempts()
        assert attempt["outcome"] == Outcome.RECOVERED
        (confirmed,) = [step["detail"] for step in attempt["steps"] if step["name"] == "confirmed"]
        assert "asked for by ada: it hangs; overruled not_confirmed: the exporter says busy" in confirmed

    def test_an_order_that_is_five_minutes_old_overrules_nothing(self, make: Make) -> None:
        """It waited for a driver that could not tell its identity; by then the server may be well."""
        world = make()
        world.exporters.says["a"] = lambda: view("busy")
        world.driver.identity = None
        world.order(Reason.NOT_CONFIRMED)
        world.decide()
        world.driver.identity = "life-1"
        world.clock.pass_by(300)
        world.decide()
        assert world.driver.calls == 0

    def test_a_hold_ends_an_order(self, make: Make) -> None:
        """A hold is the way to take an order back."""
        world = make()
        world.order(*OVERRULABLE)
        world.parts.journal.holds.hold(Hold("a", "bob", "wait", world.clock.time()))
        world.decide()
        assert (world.waiting(), world.driver.calls) == ([], 0)

    def test_storm_and_latch_stop_who_has_not_overruled_them(self, make: Make) -> None:
        """The claim itself looks again, so that the database must know what was overruled."""
        world = make()
        now = world.clock.time()
        world.recovers()
        world.parts.journal.holds.keep_storm(Storm(now - 60, now), now, None)
        world.sql(f"INSERT INTO budgets (backend, latched_at) VALUES ('a', {now})")
        for overrules in ((Reason.STORM,), (Reason.BUDGET_EXHAUSTED,), (Reason.STORM, Reason.BUDGET_EXHAUSTED)):
            world.order(*overrules)
            world.decide()
            assert world.driver.calls == (1 if len(overrules) == 2 else 0)

    def test_who_has_not_opted_in_is_restarted_by_hand_alone(self, make: Make) -> None:
        """`restart_on: []` keeps machines away; a person may answer for it."""
        world = make(restart_on=())
        world.recovers()
        world.order()
        world.decide()
        assert world.driver.calls == 0
        world.order(Reason.NOT_OPTED_IN)
        world.decide()
        assert world.driver.calls == 1

    def test_an_order_joins_the_request_that_is_open(self, make: Make) -> None:
        """One wish for one restart, whoever has it; the last word counts, and every word stays."""
        world = make()
        world.alert()
        (alerted,) = world.waiting()
        assert world.order(Reason.STORM) == alerted.id
        assert world.order(Reason.COOLDOWN) == alerted.id
        assert world.parts.journal.orders.of([alerted.id])[alerted.id].overrules == {Reason.COOLDOWN}
        assert [order["overrules"] for order in world.parts.journal.orders.recent(9)] == [["cooldown"], ["storm"]]

    def test_a_crash_before_the_second_call_does_not_use_an_old_order(self, make: Make) -> None:
        """The call was lost; when the program is back, the order counts no more and the ladder is climbed anew."""
        world = make()
        world.exporters.says["a"] = lambda: view("busy")
        number = world.order(Reason.NOT_CONFIRMED)
        world.parts.journal.inbox.note_identity(number, "life-1")
        (request,) = world.waiting()
        claimed = world.parts.journal.ledger.claim(request, "g", "command", "", world.clock.time())
        assert claimed is not None
        world.parts.journal.ledger.call(claimed.id, 1, world.clock.time(), world.clock.time() + 60)
        world.reopen()
        world.expire()
        world.clock.pass_by(400)
        self.resume(world, world.parts.journal.ledger.get(claimed.id))
        assert (world.driver.calls, world.attempts()[0]["outcome"]) == (0, Outcome.FAILED)

    @staticmethod
    def resume(world: World, stored: StoredAttempt) -> None:
        Attempt(world.parts, world.config.backends["a"], stored).resume()


class TestTheRecord:
    """What stays of it."""

    def test_export_and_timeline_tell_who_asked_and_what_was_overruled(self, make: Make) -> None:
        """Whoever writes the postmortem must not take it for the machine's doing."""
        world = make()
        world.recovers()
        world.order(Reason.COOLDOWN, Reason.STORM)
        world.decide()
        out = io.StringIO()
        export(world.path, world.config.journal_password, out, since=0.0, backend="a")
        events = [json.loads(line) for line in out.getvalue().splitlines()]
        (order,) = [event for event in events if event["kind"] == "order"]
        assert (order["who"], order["why"], order["overrules"]) == ("ada", "it hangs", "cooldown,storm")
        lines = [line.what for line in story.of_journal(events)]
        assert 'restart asked for by ada, overruling cooldown, storm: "it hangs"' in lines

    def test_an_order_goes_with_its_request(self, make: Make) -> None:
        """After the days for which the journal is kept; an order of an open request stays."""
        world = make(mode="advise")
        world.recovers()
        world.order(Reason.STORM)
        world.decide()
        world.clock.pass_by(91 * 86400.0)
        world.order()
        removed = world.parts.journal.retention.remove_batch(world.clock.time())
        assert (removed["orders"], removed["requests"]) == (1, 1)
        assert len(world.parts.journal.orders.recent(9)) == 1

    def test_every_rung_that_may_be_overruled_has_its_words(self) -> None:
        """The form offers what the API takes, and no more."""
        assert set(OVERRULES) == OVERRULABLE


def post(client: FlaskClient, path: str, body: Any, token: str | None = SECRET) -> TestResponse:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return client.post(path, json=body, headers=headers)


class TestTheApi:
    """`POST /api/v1/backends/<name>/restart`."""

    def test_it_answers_at_once_and_wakes_the_loop(self, make: Make) -> None:
        """202: taken down, not yet decided."""
        world = make(token=SECRET)
        client = create_app(world.parts, lambda: True).test_client()
        body = {"who": "ada", "why": "it hangs", "overrule": ["storm"]}
        answer = post(client, "/api/v1/backends/a/restart", body)
        assert (answer.status_code, answer.get_json()["overrules"]) == (202, ["storm"])
        assert world.parts.wake.is_set()
        assert client.get("/api/v1/actions").get_json()["orders"][0]["who"] == "ada"

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ({"who": "ada"}, "why: is missing"),
            ({"who": "ada", "why": "x", "overrule": "storm"}, "overrule: must be a list"),
            ({"who": "ada", "why": "x", "overrule": ["held"]}, "overrule: 'held' is not one of"),
            ({"who": "ada", "why": "x", "force": True}, "'force' is not one of"),
        ],
        ids=["no reason", "no list", "not to be overruled", "another key"],
    )
    def test_what_is_wrong_is_said_in_a_line(self, make: Make, body: Any, said: str) -> None:
        """And nothing is journalled."""
        world = make(token=SECRET)
        client = create_app(world.parts, lambda: True).test_client()
        answer = post(client, "/api/v1/backends/a/restart", body)
        assert answer.status_code == 400
        assert said in answer.get_json()["error"]
        assert world.waiting() == []

    def test_nobody_without_the_token(self, make: Make) -> None:
        """As every POST."""
        world = make(token=SECRET)
        client = create_app(world.parts, lambda: True).test_client()
        assert post(client, "/api/v1/backends/a/restart", {"who": "a", "why": "b"}, None).status_code == 401
        assert world.waiting() == []
