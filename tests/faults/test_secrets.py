"""Secrets are planted everywhere they may stand, and looked for everywhere they must not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.conftest import Make
from tests.faults.world import until
from tests.remediator.test_alerts import one, payload

TOKEN, PASSWORD, FROM_ENVIRONMENT, GUESS = "planted-token", "planted-password", "planted-environment", "planted-guess"
SECRETS = (TOKEN, PASSWORD, FROM_ENVIRONMENT, GUESS)


def test_no_secret_is_shown_anywhere(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """In no log line at debug level, answer, page, metric, journal file or evidence; wrong guesses are secrets, too."""
    for name in ("HTTP_PROXY", "DB_PASSWORD", "STALLWATCH_TOKEN"):
        monkeypatch.setenv(name, f"http://user:{FROM_ENVIRONMENT}@127.0.0.1:1")
    world = make()
    files = {name: world.folder / name for name in ("token", "password")}
    files["token"].write_text(TOKEN)
    files["password"].write_text(PASSWORD)
    world.settings["webhook"] = {
        "bearer_token_file": str(files["token"]),
        "username": "am",
        "password_file": str(files["password"]),
    }
    world.settings["backends"][0]["evidence"]["command"] = ["env"]
    world.write()
    replica = world.replica()
    answers = [replica.request("POST", "/api/v1/alerts", payload(one(backend="a")), Authorization=f"Bearer {GUESS}")]
    answers.append(replica.request("POST", "/api/v1/alerts", b"{", Authorization=f"Bearer {TOKEN}"))
    answers.append(replica.request("POST", "/api/v1/backends/a/hold", b"{}", Authorization=f"Bearer {TOKEN}"))
    good = replica.request("POST", "/api/v1/alerts", payload(one(backend="a")), Authorization=f"Bearer {TOKEN}")
    assert good[0] == 202
    until(lambda: world.journal("SELECT 1 FROM attempts WHERE outcome = 'recovered'"), "it recovered")
    paths = ("/", "/metrics", "/api/v1/actions?limit=500", "/api/v1/actions/1/evidence", "/-/healthy", "/-/ready")
    answers += [replica.request("GET", path) for path in paths]
    assert json.loads(answers[-3][1])["output"], "the evidence command has said something"
    shown = b"".join(body for _, body in answers).decode() + world.log()
    shown += "".join(path.read_bytes().decode("latin-1") for path in _journal(world.folder))
    assert [secret for secret in SECRETS if secret in shown] == []


def _journal(folder: Path) -> list[Path]:
    found = sorted(folder.glob("journal.db*"))
    assert found
    return found


def test_nothing_of_an_alert_reaches_a_command_or_a_page_unescaped(make: Make) -> None:
    """Names and texts that would be commands, paths, markup or SQL are data, wherever they come to stand."""
    world = make()
    replica = world.replica()
    evil = "$(touch pwned); `touch pwned`; ../../pwned <script>alert(1)</script> '; DROP TABLE alerts; --\n\x1b[31m"
    alert = {**one(backend=evil, alertname=evil, group=evil), "annotations": {"summary": evil}, "fingerprint": evil}
    assert replica.request("POST", "/api/v1/alerts", payload(alert, receiver=evil, externalURL=evil))[0] == 202
    assert replica.deliver("a") == 202
    until(lambda: world.journal("SELECT 1 FROM attempts WHERE outcome = 'recovered'"), "it recovered")
    page = replica.request("GET", "/")[1].decode()
    assert "<script>alert" not in page
    assert not list(world.folder.rglob("*pwned*"))
    assert world.journal("SELECT count(*) FROM alerts")[0][0] == 2
    assert all(line.startswith("{") for line in world.log().splitlines()), "one event a line"
    assert "\x1b" not in world.log()
