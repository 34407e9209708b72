"""The remediator's configuration: YAML to validated, frozen settings, or one error line that names the path."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from remediator import model
from remediator.access import OPEN, Access, AccessSettings, resolve
from remediator.auth import NOBODY, Credentials
from remediator.drivers import Command, Driver
from remediator.drivers.command import CommandSettings
from remediator.drivers.docker import DockerSettings
from remediator.drivers.kubernetes import KubernetesSettings
from remediator.drivers.systemd import SystemdSettings
from remediator.retention import LEAST_DAYS, RETENTION_DAYS
from stallwatch.serving import parse_listen
from stallwatch.settings import Name, Seconds, SettingsError, Strict, Url, load_yaml, read_secret

Mode = Literal["advise", "restart"]
Count = Annotated[int, Field(ge=1)]
NO_JOURNAL_URL = "journal_url: must be sqlite:/// and a path, or postgresql://user@host/database"
QUERY_KEYS = ("host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs")
"""What may stand behind the question mark of a journal's address; `host` may be a directory with a socket."""


DriverSettings = Annotated[
    CommandSettings | DockerSettings | SystemdSettings | KubernetesSettings, Field(discriminator="kind")
]
"""Every kind of driver."""


class EvidenceSettings(Strict):
    """A command whose output is kept with an attempt, such as a dump of stacks."""

    command: Command
    timeout_seconds: Seconds = 20.0


class BackendSettings(Strict):
    """One backend that may be restarted; `restart_on` opts in."""

    name: Name
    group: Name | None = None
    driver: DriverSettings
    restart_on: list[Literal["stuck"]]
    minimum_healthy: Annotated[int, Field(ge=0)] | None = None
    evidence: EvidenceSettings | None = None


class LimitSettings(Strict):
    """The limits of the policy; remediator.model.Limits says which accident each prevents."""

    cooldown_seconds: Seconds = 1800.0
    cooldown_forgotten_after_seconds: Seconds = 21600.0
    budget_attempts: Count = 3
    budget_window_seconds: Seconds = 21600.0
    daily_budget_attempts: Count = 4
    decide_every_seconds: Seconds = 10.0
    request_expires_seconds: Seconds = 3600.0
    overrule_seconds: Seconds = 300.0
    group_settle_seconds: Seconds = 300.0
    storm_lift_seconds: Seconds = 600.0
    minimum_healthy: Annotated[int, Field(ge=0)] = 1
    identity_change_seconds: Seconds = 120.0


class WebhookSettings(Strict):
    """Who may change anything: whoever shows the token, or the name and password; either of them if both are set."""

    bearer_token_file: str | None = None
    username: Annotated[str, Field(min_length=1, pattern=r"^[^:]+$")] | None = None
    password_file: str | None = None
    allow_unauthenticated: bool = False
    """Listen beyond loopback without credentials. Whoever reaches the port can then have stuck servers restarted."""

    @model_validator(mode="after")
    def _both(self) -> WebhookSettings:
        if (self.username is None) != (self.password_file is None):
            raise ValueError("username and password_file belong together")
        return self


class JournalSettings(Strict):
    """How long the journal keeps what is over, and the password of its database, if there is one."""

    retention_days: Annotated[float, Field(ge=LEAST_DAYS, allow_inf_nan=False)] = RETENTION_DAYS
    password_file: str | None = None


class RemediatorSettings(Strict):
    """The whole file. `mode` has no default: whether machines may act is a decision of a person."""

    mode: Mode
    exporter_urls: Annotated[list[Url], Field(min_length=1)]
    exporter_timeout_seconds: Seconds = 5.0
    exporter_access: AccessSettings = AccessSettings()
    journal_url: str = "sqlite:////var/lib/stallwatch/journal.db"
    journal: JournalSettings = JournalSettings()
    webhook: WebhookSettings = WebhookSettings()
    limits: LimitSettings = LimitSettings()
    backends: Annotated[list[BackendSettings], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> RemediatorSettings:
        names = [backend.name for backend in self.backends]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"backends: the name {name!r} is used twice")
        if len(set(self.exporter_urls)) < len(self.exporter_urls):
            raise ValueError("exporter_urls: an address stands twice")
        check_journal_url(self.journal_url)
        return self


def check_journal_url(text: str) -> Path | URL:
    """The file of an SQLite journal, or the address of a PostgreSQL database, which holds no password.

    Raises ValueError; a journal in memory would forget its restarts.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # such as a port that is no number
        raise ValueError(NO_JOURNAL_URL) from None
    if url.drivername == "postgresql":
        return _check_postgresql(url)
    if url.drivername not in ("sqlite", "sqlite+pysqlite") or url.query:
        raise ValueError(NO_JOURNAL_URL)
    if not url.database or url.database == ":memory:":
        raise ValueError("journal_url: must name a file; a journal in memory would be forgotten")
    return Path(url.database)


def _check_postgresql(url: URL) -> URL:
    if url.password is not None or "password" in url.query:
        raise ValueError("journal_url: must hold no password; use journal.password_file")
    if not url.database:
        raise ValueError("journal_url: must name a database")
    for key in url.query:
        if key not in QUERY_KEYS:
            raise ValueError(f"journal_url: {key!r} is not one of {', '.join(QUERY_KEYS)}")
    return url


@dataclass(frozen=True)
class Backend:
    """A backend with its driver made."""

    name: str
    group: str
    driver: Driver
    restart_on: frozenset[str]
    minimum_healthy: int | None
    evidence_command: tuple[str, ...] = ()
    evidence_seconds: float = 20.0


@dataclass(frozen=True)
class Config:
    """Everything resolved; the secret is read from its file and never shown."""

    mode: Mode
    exporter_urls: tuple[str, ...]
    exporter_timeout_seconds: float
    journal_url: str
    limits: model.Limits
    decide_every_seconds: float
    identity_change_seconds: float
    backends: Mapping[str, Backend]
    exporter_access: Access = OPEN
    credentials: Credentials = NOBODY
    allow_unauthenticated: bool = False
    journal_password: str | None = dataclasses.field(default=None, repr=False)
    retention_days: float = RETENTION_DAYS


def load(path: Path) -> Config:
    """Read the file. Raises `SettingsError`: one line that names the path."""
    settings = load_yaml(path, RemediatorSettings)
    limits = settings.limits.model_dump()
    decide_every, identity_change = limits.pop("decide_every_seconds"), limits.pop("identity_change_seconds")
    return Config(
        mode=settings.mode,
        exporter_urls=tuple(settings.exporter_urls),
        exporter_timeout_seconds=settings.exporter_timeout_seconds,
        journal_url=settings.journal_url,
        limits=model.Limits(**limits),
        decide_every_seconds=decide_every,
        identity_change_seconds=identity_change,
        backends={backend.name: _resolve(backend) for backend in settings.backends},
        exporter_access=resolve(path, "exporter_access", settings.exporter_access),
        credentials=Credentials(
            _secret(path, "webhook.bearer_token_file", settings.webhook.bearer_token_file),
            settings.webhook.username,
            _secret(path, "webhook.password_file", settings.webhook.password_file),
        ),
        allow_unauthenticated=settings.webhook.allow_unauthenticated,
        journal_password=_secret(path, "journal.password_file", settings.journal.password_file),
        retention_days=settings.journal.retention_days,
    )


def _secret(path: Path, key: str, file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return read_secret(file)
    except SettingsError as error:
        raise SettingsError(f"{path}: {key}: {error}") from error


def _resolve(settings: BackendSettings) -> Backend:
    evidence = settings.evidence
    return Backend(
        name=settings.name,
        group=settings.group or settings.name,
        driver=settings.driver.make(),
        restart_on=frozenset(settings.restart_on),
        minimum_healthy=settings.minimum_healthy,
        evidence_command=tuple(evidence.command) if evidence else (),
        evidence_seconds=evidence.timeout_seconds if evidence else 20.0,
    )


def check_listen(listen: str, config: Config) -> None:
    """Raise `SettingsError` when other machines could reach us without a secret, and nobody has allowed that."""
    host, _ = parse_listen(listen)
    if not (config.credentials.needed or config.allow_unauthenticated or _is_loopback(host)):
        raise SettingsError(
            f"--web.listen-address: {listen} is open to other machines without authentication; "
            "set webhook.bearer_token_file or listen on 127.0.0.1"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
