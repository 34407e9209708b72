"""The webhook: whatever arrives is answered at once, and nothing is decided while it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from remediator.auth import Credentials
from remediator.database import JournalFailed
from remediator.model import Decision, Reason, Verb
from remediator.web import MAX_BODY_BYTES, create_app
from tests.remediator.fakes import World
from tests.remediator.test_alerts import one, payload

Make = Callable[..., World]
TOKEN = "s3cret"


def client(world: World) -> FlaskClient:
    return create_app(world.parts, lambda: True).test_client()


def post(to: FlaskClient, body: bytes, **headers: str) -> TestResponse:
    return to.post("/api/v1/alerts", data=body, headers=headers)


def sample(world: World, name: str, **labels: str) -> float | None:
    return world.parts.metrics.registry.get_sample_value(name, labels)


def test_a_delivery_is_journalled_and_wakes_the_loop(make: Make) -> None:
    """202, one waiting request, the loop is woken, and neither driver nor exporter was asked."""
    world = make()
    answer = post(client(world), payload(one()))
    assert (answer.status_code, answer.get_json()) == (202, {"status": "accepted", "alerts": 1, "opened": 1})
    assert [request.backend for request in world.waiting()] == ["a"]
    assert world.parts.wake.is_set()
    assert (world.driver.calls, world.exporters.reads) == (0, 0)
    assert sample(world, "stallwatch_webhook_requests_total", code="202") == 1
    assert sample(world, "stallwatch_webhook_alerts_total", status="firing") == 1


def test_two_hundred_deliveries_are_one_request(make: Make) -> None:
    """A server in trouble is told about again and again, by two Alertmanagers, with changing start times."""
    world = make()
    web = client(world)
    for number in range(200):
        alert = {**one(), "startsAt": f"2027-01-15T08:00:{number % 60:02d}Z"}
        assert post(web, payload(alert, externalURL=f"http://am-{number % 2}:9093")).status_code == 202
    (request,) = world.waiting()
    assert request.alerts == 200


def test_mixed_states_in_one_delivery(make: Make) -> None:
    """Only what fires opens a request; what is unknown opens one that will be refused, which is no error."""
    world = make()
    answer = post(client(world), payload(one(backend="nobody"), one("resolved", backend="b"), one()))
    assert answer.status_code == 202
    assert {request.backend for request in world.waiting()} == {"a", "nobody"}
    assert sample(world, "stallwatch_webhook_alerts_total", status="resolved") == 1


def test_an_empty_delivery(make: Make) -> None:
    """No alerts is nothing to do."""
    world = make()
    assert post(client(world), payload()).status_code == 202
    assert not world.parts.wake.is_set()


def test_truncated_alerts_are_counted(make: Make) -> None:
    """What Alertmanager left out is a number that somebody can be told about."""
    world = make()
    post(client(world), payload(one(), truncatedAlerts=3))
    assert sample(world, "stallwatch_webhook_truncated_alerts_total") == 3


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"", "the body is not JSON"),
        (b"\x00\xff\x89PNG", "the body is not JSON"),
        (b"<html>", "the body is not JSON"),
        (b'{"version":"3","alerts":[]}', 'the body is no Alertmanager payload of version "4"'),
    ],
)
def test_malformed_is_400_and_one_line(make: Make, body: bytes, line: str) -> None:
    """Alertmanager does not repeat it at once, and a person can read why."""
    world = make()
    answer = post(client(world), body)
    assert (answer.status_code, answer.get_json()) == (400, {"error": line})
    assert answer.data.count(b"\n") == 1
    assert sample(world, "stallwatch_webhook_requests_total", code="400") == 1


def test_huge_is_413(make: Make) -> None:
    """A body that no Alertmanager sends is not even read."""
    world = make()
    answer = post(client(world), b" " * (MAX_BODY_BYTES + 1))
    assert answer.status_code == 413
    assert sample(world, "stallwatch_webhook_requests_total", code="413") == 1


def test_thousands_of_alerts_fit(make: Make) -> None:
    """Five thousand alerts in one delivery are all journalled, a request for each backend."""
    world = make()
    alerts = [one(backend=f"b{n}", pod=f"pod-{n}", description="x" * 300) for n in range(5000)]
    answer = post(client(world), payload(*alerts))
    assert answer.get_json() == {"status": "accepted", "alerts": 5000, "opened": 5000}
    assert len(world.waiting()) == 5000


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer \u00fc"},
    ],
)
def test_a_wrong_token_is_401(make: Make, headers: dict[str, str]) -> None:
    """Nothing is journalled for somebody who does not know the token."""
    world = make(token=TOKEN)
    answer = post(client(world), payload(one()), **headers)
    assert answer.status_code == 401
    assert TOKEN not in answer.get_data(as_text=True)
    assert not world.waiting()


def test_the_right_token_is_accepted(make: Make) -> None:
    """The scheme's name may be written in any case."""
    world = make(token=TOKEN)
    assert post(client(world), payload(one()), Authorization=f"bearer {TOKEN}").status_code == 202


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (("am", "hunter2"), 202),
        (("am", "hunter"), 401),
        (("am", ""), 401),
        (("root", "hunter2"), 401),
        (("", "hunter2"), 401),
    ],
)
def test_basic_authentication(make: Make, given: tuple[str, str], code: int) -> None:
    """Name and password both count, and a client is told how to show them."""
    world = make(credentials=Credentials(username="am", password="hunter2"))
    answer = client(world).post("/api/v1/alerts", data=payload(one()), auth=given)
    assert answer.status_code == code
    assert answer.headers.get("WWW-Authenticate") == (None if code == 202 else 'Basic realm="stallwatch"')


def test_with_both_set_either_is_enough(make: Make) -> None:
    """One of them for Alertmanager, the other for people."""
    world = make(credentials=Credentials(TOKEN, "am", "hunter2"))
    assert client(world).post("/api/v1/alerts", data=payload(), auth=("am", "hunter2")).status_code == 202
    assert post(client(world), payload(), Authorization=f"Bearer {TOKEN}").status_code == 202
    assert client(world).post("/api/v1/alerts", data=payload(), auth=("am", TOKEN)).status_code == 401


def test_more_than_can_be_meant_is_429(make: Make) -> None:
    """A flood is told to come again, before anything of it is read; a second later there is room."""
    world = make(token=TOKEN)
    web = client(world)
    codes = [post(web, b"", Authorization=f"Bearer {TOKEN}").status_code for _ in range(450)]
    assert (codes.count(400), codes.count(429)) == (400, 50)
    assert post(web, payload(), Authorization=f"Bearer {TOKEN}").headers["Retry-After"] == "1"
    world.clock.pass_by(1.0)
    assert post(web, payload(), Authorization=f"Bearer {TOKEN}").status_code == 202
    assert sample(world, "stallwatch_webhook_requests_total", code="429") == 51


def test_a_flood_without_credentials_keeps_nobody_out(make: Make) -> None:
    """Whoever knows no secret uses up a bucket of his own."""
    world = make(token=TOKEN)
    web = client(world)
    codes = [post(web, payload(), Authorization="Bearer x").status_code for _ in range(1000)]
    assert (codes.count(401), codes.count(429)) == (50, 950)
    assert post(web, payload(one()), Authorization=f"Bearer {TOKEN}").status_code == 202


def test_every_route_that_changes_state_asks_for_credentials(make: Make) -> None:
    """Whichever they are: the list is the application's own."""
    web = create_app(make(token=TOKEN).parts, lambda: True)
    changing = [rule for rule in web.url_map.iter_rules() if rule.methods and rule.methods - {"GET", "HEAD", "OPTIONS"}]
    assert len(changing) >= 5
    for rule in changing:
        answer = web.test_client().post(rule.rule.replace("<name>", "a"), json={})
        assert answer.status_code == (403 if rule.endpoint.startswith("forms.") else 401), rule


def test_a_web_page_cannot_post(make: Make) -> None:
    """A page that an operator visits could reach loopback; browsers say where they come from."""
    world = make()
    assert post(client(world), payload(one()), Origin="https://evil.example").status_code == 403
    assert not world.waiting()


def test_a_journal_that_cannot_be_written_is_503(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alertmanager has to deliver again what was not written down."""
    world = make()

    def fail(*_: Any) -> None:
        raise JournalFailed("database or disk is full")

    monkeypatch.setattr(world.parts.journal.inbox, "receive", fail)
    answer = post(client(world), payload(one()))
    assert answer.status_code == 503
    assert answer.get_json() == {"error": "the journal cannot be used: database or disk is full"}


def test_only_post(make: Make) -> None:
    """Reading the webhook is no delivery."""
    assert client(make()).get("/api/v1/alerts").status_code == 405


def test_health_and_readiness(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Healthy means that the loop goes round; ready means that the journal can be written."""
    world = make()
    assert client(world).get("/-/healthy").status_code == 200
    assert client(world).get("/-/ready").status_code == 200

    def fail(_: float) -> None:
        raise JournalFailed("database or disk is full")

    monkeypatch.setattr(world.parts.journal, "check_writable", fail)
    web = create_app(world.parts, lambda: False).test_client()
    assert web.get("/-/healthy").status_code == 503
    assert web.get("/-/ready").status_code == 503


def test_actions_tell_the_story(make: Make) -> None:
    """Attempts newest first with steps, open requests, decisions, budgets."""
    world = make()
    world.claimed()
    found = client(world).get("/api/v1/actions").get_json()
    (attempt,) = found["attempts"]
    assert (attempt["backend"], attempt["group"], attempt["outcome"]) == ("a", "g", None)
    assert [step["name"] for step in attempt["steps"]] == ["claimed"]
    assert attempt["identity_before"] == "life-1"
    assert found["requests"][0]["state"] == "acting"
    assert found["backends"][0]["budget_remaining"] == 3
    assert (found["mode"], found["storm"]) == ("restart", None)
    assert client(world).get("/api/v1/actions?limit=nonsense").status_code == 200
    assert client(world).get("/api/v1/actions/1/evidence").get_json() == {"exporter": None, "output": None}
    assert client(world).get("/api/v1/actions/99/evidence").status_code == 404


def test_the_page_escapes_what_alerts_say(make: Make) -> None:
    """A hostile backend label is text on the page, and no script would run anyway."""
    world = make()
    web = client(world)
    post(web, payload(one(backend="<script>alert(1)</script>")))
    (request,) = world.waiting()
    world.parts.journal.inbox.decided(request, Decision(Verb.REFUSE, Reason.UNKNOWN_BACKEND, "<b>"), 0.0)
    page = web.get("/")
    assert page.status_code == 200
    assert b"<script>" not in page.data
    assert b"&lt;script&gt;" in page.data
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]


class TestOperating:
    """Holds and resets over HTTP."""

    def send(self, world: World, path: str, body: Any, token: str | None = None) -> TestResponse:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        data = body if isinstance(body, bytes) else json.dumps(body)
        return client(world).post(path, data=data, headers=headers)

    def test_hold_and_release(self, make: Make) -> None:
        """A hold names who and why, and ends by itself or by hand."""
        world = make()
        body = {"who": "ada", "why": "new weights", "for_seconds": 60}
        assert self.send(world, "/api/v1/backends/a/hold", body).status_code == 200
        (hold,) = world.parts.journal.holds.current(world.clock.time()).values()
        assert (hold.who, hold.why, hold.until) == ("ada", "new weights", world.clock.time() + 60)
        answer = self.send(world, "/api/v1/backends/a/release", {"who": "ada"})
        assert answer.get_json() == {"backend": "a", "held": False, "was_held": True}

    def test_resets(self, make: Make) -> None:
        """Budget and storm are reset by somebody, for a reason."""
        world = make()
        body = {"who": "ada", "why": "looked at it"}
        assert self.send(world, "/api/v1/backends/a/budget/reset", body).status_code == 200
        answer = self.send(world, "/api/v1/storm/reset", body)
        assert answer.get_json() == {"reset": True, "was_storm": False}

    @pytest.mark.parametrize(
        "path", ["backends/a/hold", "backends/a/release", "backends/a/budget/reset", "storm/reset"]
    )
    def test_everything_that_changes_state_is_authenticated(self, make: Make, path: str) -> None:
        """Without the token nothing changes."""
        world = make(token=TOKEN)
        body = {"who": "eve", "why": "x"}
        assert self.send(world, f"/api/v1/{path}", body).status_code == 401
        body = {"who": "eve"} if path.endswith("release") else body
        assert self.send(world, f"/api/v1/{path}", body, TOKEN).status_code == 200

    @pytest.mark.parametrize(
        ("body", "line"),
        [
            (b"", "the body must be a JSON object"),
            (b"\xff", "the body must be a JSON object"),
            ([], "the body must be a JSON object"),
            ({"who": "ada"}, "why: is missing"),
            ({"who": " ", "why": "x"}, "who: is missing"),
            ({"who": "ada", "why": "a\nb"}, "why: must be one line of at most 200 characters"),
            ({"who": "ada", "why": "x", "until": 5}, "'until' is not one of who, why, for_seconds"),
            ({"who": "ada", "why": "x", "for_seconds": -1},
             "for_seconds: must be a number of seconds above 0, at most a year"),
            ({"who": "ada", "why": "x", "for_seconds": float("nan")},
             "for_seconds: must be a number of seconds above 0, at most a year"),
        ],
    )  # fmt: skip
    def test_a_wrong_body_is_400(self, make: Make, body: Any, line: str) -> None:
        """One line says what is wrong."""
        answer = self.send(make(), "/api/v1/backends/a/hold", body)
        assert (answer.status_code, answer.get_json()) == (400, {"error": line})

    def test_an_unknown_backend_is_404(self, make: Make) -> None:
        """A typing error must not look like a hold."""
        assert self.send(make(), "/api/v1/backends/b/hold", {"who": "a", "why": "b"}).status_code == 404
