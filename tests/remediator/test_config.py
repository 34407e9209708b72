"""The configuration: one tiny bad file a rule, with its exact error line."""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from pathlib import Path

import pytest
import yaml

from remediator import __main__ as program
from remediator import usage
from remediator.auth import Credentials
from remediator.config import Config, check_listen, load
from remediator.model import Limits
from stallwatch.settings import SettingsError

EXAMPLE = Path(__file__).parents[2] / "config" / "remediator.yml"
GOOD = """\
mode: restart
exporter_urls: [http://127.0.0.1:9840]
journal_url: sqlite:////tmp/j.db
backends:
  - name: a
    restart_on: [stuck]
    driver: {kind: command, restart: [restart-a], identity: [identity-a]}
"""
DRIVER = "driver: {kind: command, restart: [restart-a], identity: [identity-a]}"

BAD = {
    "empty": ("", "is empty"),
    "a-list": ("- a\n", "must be a mapping of keys at the top"),
    "no-mode": (GOOD.replace("mode: restart\n", ""), "mode: is missing"),
    "strange-mode": (GOOD.replace("mode: restart", "mode: auto"), "mode: must be one of 'advise' or 'restart'"),
    "no-exporter": (GOOD.replace("exporter_urls: [http://127.0.0.1:9840]\n", ""), "exporter_urls: is missing"),
    "empty-exporters": (
        GOOD.replace("[http://127.0.0.1:9840]", "[]"), "exporter_urls: must hold at least 1",
    ),
    "exporter-no-url": (
        GOOD.replace("http://127.0.0.1:9840", "127.0.0.1:9840"),
        "exporter_urls[0]: must be an http:// or https:// address",
    ),
    "exporter-twice": (
        GOOD.replace("[http://127.0.0.1:9840]", "[http://e:1, http://e:1/]"), "exporter_urls: an address stands twice",
    ),
    "no-backends": (GOOD[: GOOD.index("backends")], "backends: is missing"),
    "empty-backends": (GOOD[: GOOD.index("backends")] + "backends: []\n", "backends: must hold at least 1"),
    "same-name": (
        GOOD + f"  - {{name: a, restart_on: [], {DRIVER}}}\n", "backends: the name 'a' is used twice",
    ),
    "bad-name": (
        GOOD.replace("name: a", "name: a/../b"),
        "backends[0].name: may only hold letters, digits, dot, dash and underscore (1 to 100 of them)",
    ),
    "no-restart-on": (GOOD.replace("    restart_on: [stuck]\n", ""), "backends[0].restart_on: is missing"),
    "restart-on-busy": (
        GOOD.replace("[stuck]", "[stuck, busy]"), "backends[0].restart_on[1]: must be one of 'stuck'",
    ),
    "no-driver": (GOOD.replace(f"    {DRIVER}\n", ""), "backends[0].driver: is missing"),
    "other-driver": (
        GOOD.replace("kind: command", "kind: magic"),
        "backends[0].driver.kind: must be one of 'command', 'docker', 'systemd', 'kubernetes'",
    ),
    "driver-without-kind": (
        GOOD.replace("kind: command, ", ""), "backends[0].driver.kind: is missing",
    ),
    "misspelt-driver-key": (
        GOOD.replace("restart: [restart-a]", "restart_cmd: [restart-a]"),
        "backends[0].driver.restart: is missing (and 1 more)",
    ),
    "command-line": (
        GOOD.replace("[restart-a]", "restart-a now"), "backends[0].driver.restart: must be a list",
    ),
    "empty-command": (GOOD.replace("[restart-a]", "[]"), "backends[0].driver.restart: must hold at least 1"),
    "number-in-command": (
        GOOD.replace("[restart-a]", "[restart-a, 8000]"), "backends[0].driver.restart[1]: must be text",
    ),
    "no-identity": (GOOD.replace(", identity: [identity-a]", ""), "backends[0].driver.identity: is missing"),
    "timeout-zero": (
        GOOD.replace("[identity-a]", "[identity-a], timeout_seconds: 0"),
        "backends[0].driver.timeout_seconds: must be above 0",
    ),
    "misspelt-key": (GOOD + "limit: {}\n", "limit: unknown key; did you mean limits?"),
    "misspelt-limit": (
        GOOD + "limits: {cooldown: 5}\n", "limits.cooldown: unknown key; did you mean cooldown_seconds?",
    ),
    "no-budget": (
        GOOD + "limits: {budget_attempts: 0}\n", "limits.budget_attempts: must be greater than or equal to 1",
    ),
    "infinite-cooldown": (
        GOOD + "limits: {cooldown_seconds: .inf}\n", "limits.cooldown_seconds: must be a finite number",
    ),
    "negative-minimum": (
        GOOD + "limits: {minimum_healthy: -1}\n", "limits.minimum_healthy: must be greater than or equal to 0",
    ),
    "journal-no-url": (
        GOOD.replace("sqlite:////tmp/j.db", "/tmp/j.db"),
        "journal_url: must be sqlite:/// and a path, or postgresql://user@host/database",
    ),
    "journal-of-another-kind": (
        GOOD.replace("sqlite:////tmp/j.db", "mysql://x/y"),
        "journal_url: must be sqlite:/// and a path, or postgresql://user@host/database",
    ),
    "journal-strange-port": (
        GOOD.replace("sqlite:////tmp/j.db", "postgresql://h:port/y"),
        "journal_url: must be sqlite:/// and a path, or postgresql://user@host/database",
    ),
    "journal-no-database": (
        GOOD.replace("sqlite:////tmp/j.db", "postgresql://h"), "journal_url: must name a database",
    ),
    "journal-password": (
        GOOD.replace("sqlite:////tmp/j.db", "postgresql://u:hunter2@h/y"),
        "journal_url: must hold no password; use journal.password_file",
    ),
    "journal-password-in-query": (
        GOOD.replace("sqlite:////tmp/j.db", "postgresql://u@h/y?password=hunter2"),
        "journal_url: must hold no password; use journal.password_file",
    ),
    "journal-strange-option": (
        GOOD.replace("sqlite:////tmp/j.db", "postgresql://h/y?options=-cfsync"),
        "journal_url: 'options' is not one of host, port, sslmode, sslrootcert, sslcert, sslkey, target_session_attrs",
    ),
    "journal-forgetful": (GOOD + "journal: {retention_days: 1.0}\n",
                          "journal.retention_days: must be greater than or equal to 2"),
    "journal-no-password-file": (
        GOOD + "journal: {password_file: /no/such/file}\n",
        "journal.password_file: /no/such/file: cannot be read: No such file or directory",
    ),
    "journal-in-memory": (
        GOOD.replace("sqlite:////tmp/j.db", '"sqlite://"'),
        "journal_url: must name a file; a journal in memory would be forgotten",
    ),
    "secret-in-file": (GOOD + "webhook: {bearer_token: x}\n",
                       "webhook.bearer_token: unknown key; did you mean bearer_token_file?"),
    "half-of-basic": (GOOD + "webhook: {username: am}\n", "webhook: username and password_file belong together"),
    "no-secret-file": (
        GOOD + "webhook: {bearer_token_file: /no/such/file}\n",
        "webhook.bearer_token_file: /no/such/file: cannot be read: No such file or directory",
    ),
    "empty-evidence": (
        GOOD + "    evidence: {command: []}\n", "backends[0].evidence.command: must hold at least 1",
    ),
}  # fmt: skip


def write(directory: Path, text: str) -> Path:
    path = directory / "remediator.yml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("text", "line"), BAD.values(), ids=BAD)
def test_a_bad_file_is_one_exact_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, line: str) -> None:
    """The program ends with exit code 2 and one line that names the path of the key."""
    path = write(tmp_path, text)
    assert program.main(["--config.check", "--config.file", str(path)]) == 2
    assert capsys.readouterr().err == f"stallwatch-remediator: {path}: {line}\n"


def test_defaults_are_those_of_the_policy(tmp_path: Path) -> None:
    """A limit that is left out is the documented one; the group is the name."""
    config = load(write(tmp_path, GOOD))
    assert config.limits == Limits()
    assert (config.mode, config.decide_every_seconds, config.credentials) == ("restart", 10.0, Credentials())
    assert config.backends["a"].group == "a"
    assert config.backends["a"].driver.kind == "command"


def test_the_example_is_valid_and_only_advises() -> None:
    """What people copy must be safe as it stands."""
    config = load(EXAMPLE)
    assert config.mode == "advise"
    assert config.limits == Limits()


def test_the_examples_of_both_programs_are_of_one_backend() -> None:
    """Whoever copies both watches and remediates the same server, in the same group."""
    watched = yaml.safe_load(EXAMPLE.with_name("exporter.yml").read_text(encoding="utf-8"))["backends"]
    known = load(EXAMPLE).backends.values()
    assert {(b["name"], b["group"]) for b in watched} == {(b.name, b.group) for b in known}


def test_a_secret_is_read_from_its_file_and_never_shown(tmp_path: Path) -> None:
    """Printing the configuration does not print the token."""
    secret = tmp_path / "token"
    secret.write_text("hunter2\n", encoding="ascii")
    config = load(write(tmp_path, GOOD + f"webhook: {{bearer_token_file: {secret}}}\n"))
    assert config.credentials == Credentials(token="hunter2")
    assert "hunter2" not in repr(config)


def config_with(credentials: Credentials | None = None, *, allowed: bool = False) -> Config:
    """The example with these credentials."""
    return dataclasses.replace(load(EXAMPLE), credentials=credentials or Credentials(), allow_unauthenticated=allowed)


def test_a_name_and_a_password(tmp_path: Path) -> None:
    """For what cannot send a bearer token; the password comes from a file and is never shown."""
    secret = tmp_path / "password"
    secret.write_text("hunter2\n", encoding="ascii")
    config = load(write(tmp_path, GOOD + f"webhook: {{username: am, password_file: {secret}}}\n"))
    assert config.credentials == Credentials(username="am", password="hunter2")
    assert "hunter2" not in repr(config)


def test_listening_without_credentials_must_be_allowed_in_words() -> None:
    """Whoever has other protection says so; an accident does not."""
    check_listen("0.0.0.0:9841", config_with(allowed=True))
    check_listen("0.0.0.0:9841", config_with(Credentials(username="a", password="b")))


@pytest.mark.parametrize("listen", ["127.0.0.1:9841", "localhost:9841", "[::1]:9841", "127.8.0.1:1"])
def test_loopback_needs_no_token(listen: str) -> None:
    """On loopback alone nobody else can reach us."""
    check_listen(listen, config_with())


@pytest.mark.parametrize("listen", [":9841", "0.0.0.0:9841", "[::]:9841", "10.0.0.5:9841", "stallwatch:9841"])
def test_wider_than_loopback_needs_a_token(listen: str) -> None:
    """Without authentication anybody in the network could ask for restarts."""
    with pytest.raises(SettingsError) as caught:
        check_listen(listen, config_with())
    assert str(caught.value) == (
        f"--web.listen-address: {listen} is open to other machines without authentication; "
        "set webhook.bearer_token_file or listen on 127.0.0.1"
    )
    check_listen(listen, config_with(Credentials(token="hunter2")))


def test_a_directory_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A journal that cannot be opened ends the program before anything is served."""
    path = write(tmp_path, GOOD.replace("/tmp/j.db", f"{tmp_path}/none/j.db"))
    assert program.main(["--config.file", str(path)]) == 2
    expected = f"stallwatch-remediator: journal_url: the directory {tmp_path}/none does not exist\n"
    assert capsys.readouterr().err == expected


def test_the_configuration_of_the_help_is_enough(tmp_path: Path) -> None:
    """Whoever copies it begins with what is valid, and only advises."""
    lines = usage.MAIN.partition("a configuration that is enough")[2].splitlines()[1:]
    copied = textwrap.dedent("\n".join(itertools.takewhile(str.strip, lines)))
    (tmp_path / "remediator.yml").write_text(copied, encoding="utf-8")
    found = load(tmp_path / "remediator.yml")
    assert (found.mode, list(found.backends)) == ("advise", ["gb10-a"])
