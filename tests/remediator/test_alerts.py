"""Alertmanager's JSON, as it comes and as it must not come."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediator.alerts import Malformed, parse


def payload(*alerts: Any, **changes: Any) -> bytes:
    """A version 4 payload as Alertmanager 0.27 sends it."""
    envelope = {
        "version": "4",
        "groupKey": '{}/{remediation="restart"}:{backend="a"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "stallwatch\\.remediator",
        "groupLabels": {"backend": "a"},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager:9093",
        "notificationReason": "first notification",
        "alerts": list(alerts),
    }
    return json.dumps({**envelope, **changes}).encode()


def one(status: str = "firing", **labels: Any) -> dict[str, Any]:
    """One alert."""
    return {
        "status": status,
        "labels": {"alertname": "ModelServerStuck", "backend": "a", "remediation": "restart", **labels},
        "annotations": {"summary": "stuck"},
        "startsAt": "2027-01-15T08:00:00.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus:9090/graph?g0.expr=1",
        "fingerprint": "c0ffee",
    }


def test_reads_what_it_needs() -> None:
    """Times with nine digits are read, and the year 1 means that the alert has no end."""
    (alert,) = parse(payload(one())).alerts
    assert (alert.status, alert.backend, alert.name, alert.restart_asked) == ("firing", "a", "ModelServerStuck", True)
    assert alert.fingerprint == "c0ffee"
    assert alert.starts_at == pytest.approx(1800000000.123456)
    assert alert.ends_at is None


def test_each_alert_has_its_own_status() -> None:
    """A resolved alert in a firing group is resolved: acting on it would restart a fresh server."""
    found = parse(payload(one("firing"), one("resolved", backend="b"), one("strange", backend="c")))
    assert [(a.backend, a.status) for a in found.alerts] == [("a", "firing"), ("b", "resolved"), ("c", "other")]


def test_counts_what_was_left_out() -> None:
    """Truncated alerts are a number to tell about, never a reason to refuse the rest."""
    assert parse(payload(one(), truncatedAlerts=3)).truncated == 3


@pytest.mark.parametrize("number", [-1, True, "7", None, 2**40, 1.5])
def test_ignores_a_strange_number_of_truncated_alerts(number: Any) -> None:
    """What is no sensible count counts as none."""
    assert parse(payload(one(), truncatedAlerts=number)).truncated == 0


@pytest.mark.parametrize("entry", [None, 7, "x", [], {}, {"labels": []}, {"labels": None, "status": "firing"}])
def test_skips_an_alert_that_cannot_be_read(entry: Any) -> None:
    """One unreadable alert does not cost the others."""
    found = parse(payload(entry, one()))
    assert (len(found.alerts), found.skipped) == (1, 1)


@pytest.mark.parametrize("backend", [None, 7, ["a"], {"a": 1}])
def test_a_backend_that_is_no_string_is_none(backend: Any) -> None:
    """A label of another type never matches a configured name."""
    assert parse(payload(one(backend=backend))).alerts[0].backend == ""


def test_a_renamed_label_is_no_backend() -> None:
    """Prometheus renames a colliding label to exported_backend; guessing would restart the wrong server."""
    alert = one()
    alert["labels"]["exported_backend"] = alert["labels"].pop("backend")
    assert parse(payload(alert)).alerts[0].backend == ""


@pytest.mark.parametrize("label", ["Restart", "restart ", "", None, True, 1])
def test_only_the_exact_label_asks_for_a_restart(label: Any) -> None:
    """Anything but `remediation: restart` is for humans."""
    assert not parse(payload(one(remediation=label))).alerts[0].restart_asked


def test_hostile_text_is_made_harmless() -> None:
    """Line ends, NUL and halves of characters never reach the journal, the log or a page; long names are cut."""
    (alert,) = parse(payload(one(backend="a\n\x00\ud800\u202e" + "x" * 5000))).alerts
    assert alert.backend.startswith("a????x")
    assert len(alert.backend) == 200


@pytest.mark.parametrize("time", ["", "yesterday", None, 5, "0001-01-01T00:00:00+14:00", "99999-01-01T00:00:00Z"])
def test_a_strange_time_is_no_time(time: Any) -> None:
    """A time that cannot be read costs nothing but itself."""
    assert parse(payload({**one(), "startsAt": time})).alerts[0].starts_at is None


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "the body is not JSON"),
        (b'{"version":"4","alerts":[', "the body is not JSON"),
        (b"<html><body>502</body></html>", "the body is not JSON"),
        (b"\x00\xff\xfe\x89PNG", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"1" * 10_000, "the body is not JSON"),
        (b"[]", "the body is no JSON object"),
        (b"null", "the body is no JSON object"),
        (b"{}", 'the body is no Alertmanager payload of version "4"'),
        (b'{"version":4,"alerts":[]}', 'the body is no Alertmanager payload of version "4"'),
        (b'{"version":"3","alerts":[]}', 'the body is no Alertmanager payload of version "4"'),
        (b'{"version":"4"}', "the payload has no list of alerts"),
        (b'{"version":"4","alerts":{"a":1}}', "the payload has no list of alerts"),
    ],
)
def test_malformed_bodies_are_one_line(body: bytes, text: str) -> None:
    """Every kind of wrong body has its sentence."""
    with pytest.raises(Malformed) as caught:
        parse(body)
    assert str(caught.value) == text


@given(st.binary(max_size=200))
def test_bytes_never_crash_it(body: bytes) -> None:
    """Arbitrary bytes end in a payload or in Malformed."""
    with contextlib.suppress(Malformed):
        parse(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(st.lists(st.dictionaries(st.sampled_from(["status", "labels", "startsAt", "endsAt", "fingerprint"]), JSON)))
def test_alerts_of_any_shape_never_crash_it(alerts: list[Any]) -> None:
    """Whatever stands in the list, the readable ones are read."""
    found = parse(payload(*alerts, one()))
    assert found.alerts[-1].backend == "a"
    assert len(found.alerts) + found.skipped == len(alerts) + 1
