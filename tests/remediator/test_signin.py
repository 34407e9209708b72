"""Who may send a form: the browser's word, the token in it, the session. No cookie and no name of others helps."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient

from remediator.auth import Credentials
from remediator.metrics import Metrics
from remediator.web import create_app
from tests.remediator.fakes import World

Make = Callable[..., World]
SECRET = "correct horse battery staple"
OURS = {"Sec-Fetch-Site": "same-origin"}


def client_of(world: World) -> FlaskClient:
    return create_app(world.parts, lambda: True).test_client()


def token_of(client: FlaskClient, path: str = "/sign-in") -> str:
    found = re.search(r'name="csrf_token" value="([^"]+)"', client.get(path).get_data(as_text=True))
    assert found is not None
    return found[1]


def send(client: FlaskClient, path: str, headers: Any = None, base: str = "http://localhost", **form: str) -> int:
    sent = {"csrf_token": token_of(client), **form}
    return client.post(path, data=sent, headers=OURS if headers is None else headers, base_url=base).status_code


def signed_in(world: World, secret: str = SECRET) -> FlaskClient:
    client = client_of(world)
    assert send(client, "/sign-in", who="ada", secret=secret) == 303
    return client


def held(world: World) -> bool:
    return bool(world.parts.journal.holds.current(world.clock.time()))


def test_a_form_of_ours_from_somebody_known(make: Make) -> None:
    """The way that leads in, against which the others stand."""
    world = make(token=SECRET)
    assert send(signed_in(world), "/backends/a/hold", why="x", for_seconds="900") == 303
    assert held(world)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
    ],
    ids=str,
)
def test_a_form_of_another_page_is_refused(make: Make, headers: dict[str, str]) -> None:
    """Even with the cookie and the right token in it."""
    world = make(token=SECRET)
    assert send(signed_in(world), "/backends/a/hold", headers, why="x", for_seconds="") == 403
    assert not held(world)


def test_an_old_browser_says_its_origin(make: Make) -> None:
    """Without Sec-Fetch-Site, the Origin must be this very address."""
    world = make(token=SECRET)
    origin = {"Origin": "http://localhost"}
    assert send(signed_in(world), "/backends/a/hold", origin, why="x", for_seconds="") == 303


@pytest.mark.parametrize("token", ["", "wrong", None])
def test_a_form_without_its_token_is_refused(make: Make, token: str | None) -> None:
    """A token of another session is none, either."""
    world = make(token=SECRET)
    client = signed_in(world)
    wrong = token_of(client_of(world)) if token is None else token
    assert send(client, "/backends/a/hold", csrf_token=wrong, why="x", for_seconds="") == 403
    assert not held(world)


@pytest.mark.parametrize("path", ["hold", "release", "budget/reset", "restart"])
def test_nobody_signed_in_changes_nothing(make: Make, path: str) -> None:
    """A token in the form is not a name."""
    world = make(token=SECRET)
    assert send(client_of(world), f"/backends/a/{path}", why="x", for_seconds="", who="ada") == 401
    assert send(client_of(world), "/storm/reset", why="x") == 401
    assert not held(world)
    assert world.waiting() == []


@pytest.mark.parametrize("secret", ["wrong", "", "ada", SECRET + " "])
def test_a_wrong_secret_does_not_sign_in(make: Make, secret: str) -> None:
    """Neither token nor password."""
    world = make(credentials=Credentials(SECRET, "ada", "another secret"))
    assert send(client_of(world), "/sign-in", who="ada", secret=secret) == 401


@pytest.mark.parametrize("secret", [SECRET, "another secret"])
def test_token_and_password_both_sign_in(make: Make, secret: str) -> None:
    """Whatever the webhook takes."""
    signed_in(make(credentials=Credentials(SECRET, "ada", "another secret")), secret)


def test_guessing_is_slowed_down(make: Make) -> None:
    """More guesses than a person makes are turned away, right or wrong."""
    client = client_of(make(token=SECRET))
    codes = [send(client, "/sign-in", who="a", secret=str(n)) for n in range(60)]
    assert (codes[0], codes[-1]) == (401, 429)


def test_the_cookie_is_for_this_page_alone(make: Make) -> None:
    """No script reads it, no other site's form brings it along, and it says Secure where TLS is spoken."""
    client = client_of(make(token=SECRET))
    sent = {"csrf_token": token_of(client), "who": "ada", "secret": SECRET}
    cookie = client.post("/sign-in", data=sent, headers=OURS).headers["Set-Cookie"]
    assert ("HttpOnly" in cookie, "SameSite=Strict" in cookie, "Secure" in cookie) == (True, True, False)
    by_tls = client.get("/sign-in", base_url="https://localhost")
    assert "Secure" in by_tls.headers["Set-Cookie"]


def test_replicas_take_each_others_sessions_and_a_new_secret_ends_them(make: Make) -> None:
    """Two programs with one secret behind one address; a third with another secret."""
    world = make(token=SECRET)
    cookie = signed_in(world).get_cookie("stallwatch_remediator")
    assert cookie is not None
    for secret, shown in ((SECRET, True), ("a new secret", False)):
        config = dataclasses.replace(world.config, credentials=Credentials(secret))
        replica = dataclasses.replace(world.parts, config=config, metrics=Metrics(config))
        other = create_app(replica, lambda: True).test_client()
        other.set_cookie("stallwatch_remediator", cookie.value)
        assert ("Sign out" in other.get("/").get_data(as_text=True)) is shown


@pytest.mark.parametrize("name", ["evil.example:9841", "evil.example", "localhost.evil.example", "127.0.0.1.evil"])
def test_a_name_that_leads_here_is_no_way_in(make: Make, name: str) -> None:
    """Without credentials, a page of somebody else could rename us to itself (DNS rebinding)."""
    world = make()
    client = client_of(world)
    token = re.search(r'name="csrf_token" value="([^"]+)"', client.get("/sign-in", base_url=f"http://{name}").text)
    assert token is not None
    sent = {"csrf_token": token[1], "who": "eve"}
    assert client.post("/sign-in", data=sent, headers=OURS, base_url=f"http://{name}").status_code == 403


@pytest.mark.parametrize("name", ["127.0.0.1:9841", "[::1]:9841", "localhost:9841", "10.0.0.7:9841"])
def test_an_address_that_nobody_can_rename_is(make: Make, name: str) -> None:
    """Where a name is enough, a name is asked for."""
    client = client_of(make())
    token = re.search(r'name="csrf_token" value="([^"]+)"', client.get("/sign-in", base_url=f"http://{name}").text)
    assert token is not None
    sent = {"csrf_token": token[1], "who": "ada"}
    assert client.post("/sign-in", data=sent, headers=OURS, base_url=f"http://{name}").status_code == 303


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "../x", "none", ""])
def test_signing_in_leads_nowhere_else(make: Make, to: str) -> None:
    """The way back is a backend's page or the first page."""
    client = client_of(make())
    sent = {"csrf_token": token_of(client), "who": "ada", "to": to}
    assert client.post("/sign-in", data=sent, headers=OURS).headers["Location"] == "./"


def test_the_session_is_no_key_to_the_api(make: Make) -> None:
    """The API takes the token and no cookie."""
    world = make(token=SECRET)
    client = signed_in(world)
    for headers in ({}, OURS, {"Origin": "http://localhost"}):
        answer = client.post("/api/v1/backends/a/hold", json={"who": "a", "why": "b"}, headers=headers)
        assert answer.status_code in (401, 403)
    assert not held(world)


def test_the_pages_for_reading_set_no_cookie(make: Make) -> None:
    """Dashboards and proxies may read them."""
    client = client_of(make(token=SECRET))
    for path in ("/", "/backends/a", "/metrics", "/api/v1/actions"):
        assert "Set-Cookie" not in client.get(path).headers
