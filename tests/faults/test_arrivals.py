"""Whatever arrives at the webhook, in whatever order, however often: one restart a life, and every answer right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.faults.conftest import Make
from tests.faults.world import World, quiet, until
from tests.remediator.test_alerts import one, payload


def recovered(world: World) -> bool:
    return bool(world.journal("SELECT 1 FROM attempts WHERE outcome = 'recovered'"))


def test_the_same_delivery_two_hundred_times(make: Make) -> None:
    """From two Alertmanagers, with changing start times, before, while and after it is restarted: one restart."""
    world = make()
    replica = world.replica()
    world.a.shut("before")
    for number in range(200):
        alert = {**one(backend="a"), "startsAt": f"2027-01-15T08:{number // 60:02d}:{number % 60:02d}Z"}
        body = payload(alert, externalURL=f"http://am-{number % 2}:9093", groupKey=f"{{}}:{number % 3}")
        assert replica.request("POST", "/api/v1/alerts", body)[0] == 202
        if number == 100:
            until(lambda: world.a.stands_at("before"), "the restart command runs")
        if number == 150:
            world.a.open("before")
            until(lambda: recovered(world), "it recovered")
    quiet()
    assert world.a.calls == 1
    assert world.journal("SELECT count(*) FROM alerts")[0][0] == 200


def test_a_resolved_alert_stops_no_restart_and_begins_none(make: Make) -> None:
    """Resolved during a restart: it is carried to its end. Resolved alone: nothing."""
    world = make({"a": "g", "b": "h"})
    first = world.exporter.says
    # Were both stuck, all groups would be in trouble: a storm.
    world.exporter.says = lambda name: world.document(name, "busy") if name == "b" else first(name)
    replica = world.replica()
    world.a.shut("before")
    replica.deliver("a")
    until(lambda: world.a.stands_at("before"), "the restart command runs")
    assert replica.deliver("a", "b", status="resolved") == 202
    world.a.open("before")
    until(lambda: recovered(world), "it recovered")
    quiet()
    assert (world.a.calls, world.backends["b"].calls) == (1, 0)


def test_an_alert_older_than_the_recovery(make: Make) -> None:
    """Delivered after it was restarted, as repeats are: the exporter says busy, and so does the reason."""
    world = make()
    replica = world.replica()
    replica.deliver("a")
    until(lambda: recovered(world), "it recovered")
    replica.deliver("a")
    until(lambda: len(world.journal("SELECT 1 FROM requests")) == 2, "the second request")
    quiet()
    assert world.a.calls == 1
    verbs = world.journal("SELECT decision, reason FROM decisions ORDER BY id")
    assert verbs[0] == ("act", "act")
    assert verbs[-1][1] in ("not_confirmed", "cooldown")


WRONG: dict[str, tuple[bytes, int]] = {
    "not JSON": (b"{", 400),
    "not an object": (b"[]", 400),
    "no alerts": (b"{}", 400),
    "alerts of a wrong type": (b'{"version": "4", "alerts": "all"}', 400),
    "not UTF-8": (b"\xff\xfe", 400),
    "a hundred thousand brackets": (b"[" * 100_000, 400),
    "ten megabytes": (b'{"version": "4", "alerts": [' + b" " * 10_000_000 + b"]}", 413),
    "an alert that is none": (json.dumps({"version": "4", "status": "firing", "alerts": [5, None, "x"]}).encode(), 202),
    "labels of wrong types": (
        json.dumps({"version": "4", "alerts": [{"status": "firing", "labels": {"backend": ["a"]}}]}).encode(),
        202,
    ),
    "unknown fields": (payload({**one(backend="nobody"), "new": {"field": [1]}}, future=True), 202),
    "a status of tomorrow": (payload(one("silenced", backend="a")), 202),
    "truncated alerts": (payload(one(backend="nobody"), truncatedAlerts=7), 202),
    "times that are none": (payload({**one(backend="nobody"), "startsAt": "soon", "endsAt": 5}), 202),
}


def test_whatever_is_delivered_wrongly_restarts_nothing(make: Make) -> None:
    """Each is answered as it deserves, the next good delivery is taken, and no command was started."""
    world = make({"a": "g"}, mode="restart")
    replica = world.replica()
    world.exporter.says = lambda name: world.document(name, "busy")
    for what, (body, status) in WRONG.items():
        assert replica.request("POST", "/api/v1/alerts", body)[0] == status, what
    assert replica.deliver("a") == 202
    quiet()
    assert world.a.calls == 0
    metrics = replica.request("GET", "/metrics")[1].decode()
    assert "stallwatch_webhook_truncated_alerts_total 7.0" in metrics


def test_thousands_of_alerts_in_one_delivery(make: Make) -> None:
    """Five thousand, of which one is for a backend that is stuck here: all journalled, one restart."""
    world = make()
    replica = world.replica()
    alerts = [one(backend=f"other-{n}") for n in range(5000)]
    alerts.insert(2500, one(backend="a"))
    assert replica.request("POST", "/api/v1/alerts", payload(*alerts))[0] == 202
    until(lambda: recovered(world), "it recovered", 60)
    assert world.journal("SELECT count(*) FROM alerts")[0][0] == 5001
    assert world.a.calls == 1


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic YTpi", "Bearer "])
def test_a_wrong_token(make: Make, header: str | None) -> None:
    """401, nothing journalled, nothing restarted; with the right one it is."""
    world = make()
    secret = world.folder / "token"
    secret.write_text("right-token")
    world.settings["webhook"] = {"bearer_token_file": str(secret)}
    world.write()
    replica = world.replica()
    headers: dict[str, Any] = {} if header is None else {"Authorization": header}
    assert replica.request("POST", "/api/v1/alerts", payload(one(backend="a")), **headers)[0] == 401
    quiet(0.5)
    assert (world.a.calls, world.journal("SELECT count(*) FROM alerts")) == (0, [(0,)])
    good = {"Authorization": "Bearer right-token"}
    assert replica.request("POST", "/api/v1/alerts", payload(one(backend="a")), **good)[0] == 202
    until(lambda: recovered(world), "it recovered")
    assert "right-token" not in world.log()
