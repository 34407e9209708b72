"""Exporters behind TLS and users are read with what the configuration says; the wrong thing is unavailable."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from remediator.__main__ import check_web
from remediator.access import Access, AccessSettings, resolve
from remediator.config import Config, load
from remediator.evidence import Exporters, Unavailable
from stallwatch.serving import Server
from stallwatch.settings import SettingsError
from stallwatch.webconfig import WebConfig
from tests import certificates
from tests.remediator.test_config import GOOD

DOCUMENT = {"name": "a", "verdict": "busy"}


def app(environ: Mapping[str, Any], start: Callable[..., object]) -> list[bytes]:
    """The evidence of a."""
    body = json.dumps(DOCUMENT).encode()
    start("200 OK", [("Content-Length", str(len(body)))])
    return [body]


def users(folder: Path, *names: str, more: str = "") -> WebConfig:
    """A web configuration in which each user's password is his name."""
    path = folder / "web.yml"
    hashes = {name: bcrypt.hashpw(name.encode(), bcrypt.gensalt(4)).decode() for name in names}
    path.write_text(f"basic_auth_users: {json.dumps(hashes)}\n{more}")
    return WebConfig(path)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """An exporter that speaks TLS and knows the user reader."""
    certificates.make(tmp_path, "server")
    certificates.make(tmp_path, "other")
    web = users(tmp_path, "reader", more="tls_server_config: {cert_file: server.crt, key_file: server.key}")
    server = Server(app, "127.0.0.1:0", threads=2, web=web)
    server.start()
    yield f"https://127.0.0.1:{server.port}"
    server.stop()


def access(folder: Path, **given: str) -> Access:
    """As the configuration would have it; a password is written to a file."""
    if "password" in given:
        (folder / "password").write_text(given.pop("password"))
        given["password_file"] = str(folder / "password")
    return resolve(folder / "remediator.yml", "exporter_access", AccessSettings.model_validate(given))


def test_evidence_is_read(url: str, tmp_path: Path) -> None:
    """With the authority and the user, the view is there."""
    allowed = access(tmp_path, ca_file=str(tmp_path / "server.crt"), username="reader", password="reader")
    assert Exporters([url], 5.0, allowed).read("a").verdict == "busy"
    assert "cmVhZGVy" not in repr(allowed)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ca_file": "server.crt"}, "status 401"),
        ({"ca_file": "server.crt", "username": "reader", "password": "wrong"}, "status 401"),
        ({"ca_file": "other.crt", "username": "reader", "password": "reader"}, "TLS: "),
        ({"username": "reader", "password": "reader"}, "TLS: "),
    ],
    ids=["nobody", "wrong-password", "wrong-authority", "no-authority"],
)
def test_what_does_not_fit_is_unavailable(url: str, given: dict[str, str], words: str, tmp_path: Path) -> None:
    """No evidence, so no restart; the reason is one line."""
    if "ca_file" in given:
        given = {**given, "ca_file": str(tmp_path / given["ca_file"])}
    with pytest.raises(Unavailable, match=words):
        Exporters([url], 5.0, access(tmp_path, **given)).read("a")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{username: a}", "exporter_access: username and password_file belong together"),
        ("{username: a, password_file: /nonexistent}", "exporter_access.password_file: /nonexistent: cannot be read"),
        ("{ca_file: /nonexistent}", "exporter_access.ca_file: /nonexistent: cannot be used: No such file"),
        ("{token: x}", "exporter_access.token: unknown key"),
    ],
)
def test_bad_settings(given: str, words: str, tmp_path: Path) -> None:
    """One line that names the key."""
    path = tmp_path / "remediator.yml"
    path.write_text(GOOD + f"exporter_access: {given}\n")
    with pytest.raises(SettingsError, match=words):
        load(path)


@pytest.mark.parametrize(
    ("webhook", "known", "possible"),
    [
        ("{}", [], True),
        ("{}", ["reader"], True),
        ("{bearer_token_file: secret}", [], True),
        ("{bearer_token_file: secret}", ["reader"], False),
        ("{username: alertmanager, password_file: secret}", ["reader"], False),
        ("{username: alertmanager, password_file: secret}", ["reader", "alertmanager"], True),
        ("{username: alertmanager, password_file: secret, bearer_token_file: secret}", ["alertmanager"], True),
    ],
)
def test_one_authorization_header_for_both(webhook: str, known: list[str], possible: bool, tmp_path: Path) -> None:
    """Alertmanager can show one thing only: what the web configuration asks for must be what the webhook asks for."""
    (tmp_path / "secret").write_text("s")
    path = tmp_path / "remediator.yml"
    path.write_text(GOOD + f"webhook: {webhook.replace('secret', str(tmp_path / 'secret'))}\n")
    config: Config = load(path)
    web = users(tmp_path, *known)
    if possible:
        check_web(config, web)
        check_web(config, None)
    else:
        with pytest.raises(SettingsError, match=r"webhook\.username must be one of them"):
            check_web(config, web)
