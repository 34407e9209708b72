"""A clock, a driver and exporters that do as they are told, and a remediator built from them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy.engine import URL

from remediator.alerts import Alert
from remediator.auth import Credentials
from remediator.config import Backend, Config
from remediator.drivers import Description, DriverFailed
from remediator.evidence import Sight, Unavailable
from remediator.inbox import StoredRequest
from remediator.journal import Journal
from remediator.ledger import StoredAttempt
from remediator.metrics import Metrics
from remediator.model import Limits, Order, Reason, View
from remediator.parts import Parts
from remediator.pending import Pending
from remediator.runner import Runner

START = 1_800_000_000.0


class FakeClock:
    """Both clocks move only when somebody waits, or by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.offset = START
        self.later: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + self.offset

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if event.is_set():
            return True
        self.pass_by(seconds)
        return event.is_set()

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        due = [entry for entry in self.later if entry[0] <= self.now]
        self.later = [entry for entry in self.later if entry[0] > self.now]
        for _, do in due:
            do()

    def at(self, seconds: float, do: Callable[[], None]) -> None:
        self.later.append((self.now + seconds, do))


@dataclass
class FakeDriver:
    """Counts its calls; `on_restart` is what a call does."""

    clock: FakeClock
    identity: str | None = "life-1"
    timeout_seconds: float = 60.0
    kind: str = "command"
    calls: int = 0
    on_restart: Callable[[], None] | None = None
    programs: Sequence[str] = ()

    def describe(self) -> Description:
        return Description(self.identity, None, "" if self.identity else "the identity command failed")

    def restart(self, deadline_seconds: float, identity: str | None = None) -> None:
        self.calls += 1
        if self.on_restart is not None:
            self.on_restart()
            return
        self.clock.pass_by(3.0)
        self.identity = f"life-{self.calls + 1}"

    def fail(self) -> None:
        raise DriverFailed("exit_status", "systemctl failed with exit status 1: start request repeated too quickly")

    def hang(self) -> None:
        self.clock.pass_by(self.timeout_seconds)
        raise DriverFailed("deadline", "systemctl did not end within 60 s and was killed")

    def lie(self) -> None:
        """Say yes and do nothing."""


@dataclass
class FakeExporters:
    """`says` gives the view of a backend, or None when no exporter can be asked."""

    says: dict[str, Callable[[], View | None]] = field(default_factory=dict)
    reads: int = 0

    def fleet(self) -> Sight:
        found = {name: say() for name, say in self.says.items()}
        return Sight({name: view for name, view in found.items() if view is not None})

    def read(self, name: str) -> View:
        self.reads += 1
        view = self.says[name]() if name in self.says else None
        if view is None:
            raise Unavailable("http://127.0.0.1:9840: connection refused")
        return view


def view(verdict: str = "stuck", name: str = "a", **changes: Any) -> View:
    """A fresh view; stuck ones have made progress long ago."""
    values: dict[str, Any] = {
        "name": name,
        "group": "g",
        "verdict": verdict,
        "sentence": f"{name} is {verdict}.",
        "age_seconds": 1.0,
        "last_progress_age_seconds": 200.0 if verdict == "stuck" else 0.5,
        "poll_interval_seconds": 5.0,
        "startup_grace_seconds": 1200.0,
        "start_time": START - 90_000.0,
        "document": {"name": name, "limits": {"startup_grace_seconds": 1200.0}},
    }
    return View(**{**values, **changes})


@dataclass
class World:
    """One remediator with one backend `a` of group `g`, and whatever else is added."""

    path: Path | URL
    clock: FakeClock
    drivers: dict[str, FakeDriver]
    exporters: FakeExporters
    config: Config
    parts: Parts = field(init=False)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        journal = Journal(self.path, self.config.journal_password)
        self.parts = Parts(self.config, journal, self.exporters, self.clock, Metrics(self.config))

    def reopen(self) -> None:
        """As after kill -9: a new process on the same journal."""
        self.close()
        self.open()

    def close(self) -> None:
        self.parts.journal.close()

    def sql(self, statement: str) -> Any:
        """Run one statement in the journal; the first value of what it returns."""
        with self.parts.journal._database.write() as connection:
            found = connection.exec_driver_sql(statement)
            return found.scalar() if found.returns_rows else None

    def expire(self) -> None:
        """The time of every lease is over, by the database's clock."""
        self.sql("UPDATE attempts SET lease_expires_at = 0 WHERE outcome IS NULL")

    @property
    def driver(self) -> FakeDriver:
        return self.drivers["a"]

    def alert(self, *backends: str) -> None:
        self.parts.journal.inbox.receive([firing(name) for name in backends or ("a",)], self.clock.time())

    def order(self, *overrules: Reason, backend: str = "a") -> int:
        """A person asks for a restart; the request's id."""
        order = Order("ada", "it hangs", self.clock.time(), frozenset(overrules))
        return self.parts.journal.orders.place(backend, order)

    def decide(self) -> None:
        """One round of the loop; what it begins is carried to its end."""
        runner = Runner(self.parts)
        Pending(self.parts, runner).step()
        assert runner.join(20)

    def waiting(self) -> list[StoredRequest]:
        return self.parts.journal.inbox.waiting()

    def claimed(self, name: str = "a") -> StoredAttempt:
        """An attempt just claimed, as the loop of decisions leaves it."""
        inbox = self.parts.journal.inbox
        self.alert(name)
        identity = self.drivers[name].identity
        request = next(r for r in inbox.waiting() if r.backend == name)
        if identity is not None:
            inbox.note_identity(request.id, identity)
        request = next(r for r in inbox.waiting() if r.backend == name)
        group = self.config.backends[name].group
        claimed = self.parts.journal.ledger.claim(request, group, "command", "stuck", self.clock.time())
        assert claimed is not None
        return claimed

    def attempts(self) -> list[dict[str, Any]]:
        return self.parts.journal.reader.recent_attempts(100)

    def steps(self) -> list[str]:
        return [step["name"] for step in self.attempts()[0]["steps"]]

    def recovers(self, name: str = "a") -> None:
        """Stuck while the driver shows the first life, busy from then on."""
        driver = self.drivers[name]
        self.exporters.says[name] = lambda: view("stuck" if driver.identity == "life-1" else "busy", name)


def firing(backend: str, **changes: Any) -> Alert:
    """A firing alert that asks for a restart."""
    values: dict[str, Any] = {
        "status": "firing",
        "backend": backend,
        "name": "ModelServerStuck",
        "restart_asked": True,
        "fingerprint": "f",
        "starts_at": START,
        "ends_at": None,
    }
    return Alert(**{**values, **changes})


def build(
    path: Path | URL,
    names: Mapping[str, str] | None = None,
    *,
    mode: Any = "restart",
    limits: Limits | None = None,
    restart_on: Sequence[str] = ("stuck",),
    token: str | None = None,
    credentials: Credentials | None = None,
    evidence_command: Sequence[str] = (),
    password: str | None = None,
) -> World:
    """A world; `names` maps each backend to its group."""
    clock = FakeClock()
    names = names or {"a": "g"}
    drivers = {name: FakeDriver(clock) for name in names}
    exporters = FakeExporters({name: (lambda name=name: view("stuck", name)) for name in names})  # type: ignore[misc]
    backends = {
        name: Backend(name, group, drivers[name], frozenset(restart_on), None, tuple(evidence_command), 5.0)
        for name, group in names.items()
    }
    config = Config(
        mode=mode,
        exporter_urls=("http://127.0.0.1:9840",),
        exporter_timeout_seconds=5.0,
        journal_url=f"sqlite:///{path}" if isinstance(path, Path) else path.render_as_string(),
        limits=limits or Limits(),
        decide_every_seconds=10.0,
        identity_change_seconds=120.0,
        backends=backends,
        credentials=credentials or Credentials(token=token),
        journal_password=password,
    )
    return World(path, clock, drivers, exporters, config)
