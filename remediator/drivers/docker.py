"""Restarts a container by Docker's own restart call. Nothing that somebody has stopped or paused is ever started.

The container is resolved anew each time and called by its id, so that a rename in between cannot hit another one.
Docker also takes the beginning of an id for a name; here only the exact name counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from remediator.drivers import Description, DriverFailed, check_same
from remediator.drivers.command import first_line
from stallwatch.settings import Seconds, SettingsError, Strict, check_url

if TYPE_CHECKING:
    from remediator.drivers.docker_client import Engine

DESCRIBE_SECONDS = 9.0
EXTRA_SECONDS = 90.0
"""Beyond `stop_seconds`: killing, and starting a container whose image is large."""
PROJECT, SERVICE, ONE_OFF = (f"com.docker.compose.{name}" for name in ("project", "service", "oneoff"))
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]+")


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("must be a container's exact name: letters, digits, dot, dash and underscore")
    return text


def _label(text: str) -> str:
    key, equals, value = text.partition("=")
    if not (key and equals and value and text.isprintable()):
        raise ValueError("must be written as key=value")
    return text


def _host(text: str) -> str:
    kind, _, rest = text.partition("://")
    if kind == "unix" and rest.startswith("/") and re.fullmatch(r"[\w/.@+-]+", rest):
        return text
    try:
        if kind == "tcp" and re.search(r":\d+$", check_url(f"http://{rest}")) and "/" not in rest:
            return text
    except SettingsError:
        pass
    raise ValueError("must be unix:///path/of/the/socket or tcp://host:port")


class ComposeSettings(Strict):
    """A service of a Compose project, of which one container is there."""

    project: Annotated[str, Field(min_length=1)]
    service: Annotated[str, Field(min_length=1)]


class DockerSettings(Strict):
    """Restart a container, named by exactly one of `container`, `label` and `compose`."""

    kind: Literal["docker"]
    container: Annotated[str, AfterValidator(_name)] | None = None
    label: Annotated[str, AfterValidator(_label)] | None = None
    compose: ComposeSettings | None = None
    host: Annotated[str, AfterValidator(_host)] = "unix:///var/run/docker.sock"
    stop_seconds: Annotated[int, Field(gt=0)] = 30
    timeout_seconds: Seconds | None = None

    @model_validator(mode="after")
    def _check(self) -> DockerSettings:
        if [self.container, self.label, self.compose].count(None) != 2:
            raise ValueError("must hold exactly one of container, label and compose")
        if self.timeout_seconds is not None and self.timeout_seconds <= self.stop_seconds:
            raise ValueError(f"timeout_seconds must be longer than stop_seconds ({self.stop_seconds})")
        return self

    def make(self) -> DockerDriver:
        """The driver that these settings describe. Raises `SettingsError` without the Docker SDK."""
        try:
            from remediator.drivers.docker_client import engine  # noqa: PLC0415  # the SDK is optional
        except ImportError:
            raise SettingsError(
                "the docker driver needs the Docker SDK for Python: pip install 'stallwatch[docker]'"
            ) from None
        labels: tuple[str, ...] = (self.label,) if self.label is not None else ()
        if self.compose is not None:  # a one-off container of `compose run` carries the labels of its service, too
            project, service = self.compose.project, self.compose.service
            labels = (f"{PROJECT}={project}", f"{SERVICE}={service}", f"{ONE_OFF}=False")
        timeout = self.timeout_seconds if self.timeout_seconds is not None else self.stop_seconds + EXTRA_SECONDS
        return DockerDriver(engine, self.host, self.container, labels, self.stop_seconds, timeout)


@dataclass(frozen=True, slots=True)
class Container:
    """What an inspection says of one container."""

    id: str
    name: str
    status: str
    started_at: str
    running: bool
    paused: bool

    @property
    def identity(self) -> str | None:
        """Names one life of its process; None while there is none."""
        return f"{self.id[:12]}@{self.started_at}" if self.running else None

    @property
    def detail(self) -> str:
        """Why it does not run; empty when it does."""
        if self.paused:
            return f"container {self.name} is paused"
        return "" if self.running else f"container {self.name} does not run ({self.status})"


@dataclass(frozen=True, slots=True)
class DockerDriver:
    """Either `container` is a name, or `labels` are `key=value` that exactly one container must carry."""

    engine: Callable[[str, float], AbstractContextManager[Engine]]
    host: str
    container: str | None
    labels: tuple[str, ...]
    stop_seconds: int
    timeout_seconds: float
    kind: str = "docker"
    programs: Sequence[str] = ()

    def describe(self) -> Description:
        """The container's id and start time, and whether it runs."""
        try:
            with self.engine(self.host, DESCRIBE_SECONDS) as there:
                found = self._resolve(there)
        except DriverFailed as failure:
            return Description(None, None, failure.detail)
        except Exception as error:  # an answer in no form that Docker has
            return Description(None, None, _odd(error))
        return Description(found.identity, found.running and not found.paused, found.detail)

    def restart(self, deadline_seconds: float, identity: str | None = None) -> None:
        """One restart call for the container that is there now, if it runs. Raises `DriverFailed`."""
        try:
            with self.engine(self.host, deadline_seconds) as there:
                found = self._resolve(there)
                if found.detail:
                    raise DriverFailed("stopped", f"{found.detail} and is not started: somebody may have stopped it")
                check_same(identity, found.identity)
                there.restart(found.id, found.name, self.stop_seconds)
        except DriverFailed:
            raise
        except Exception as error:
            raise DriverFailed("error", _odd(error)) from error

    def _resolve(self, there: Engine) -> Container:
        if self.container is not None:
            return _by_name(there, self.container)
        wanted = " and ".join(self.labels)
        names = there.containers({"label": list(self.labels)})
        if not names:
            raise DriverFailed("not_found", f"no container carries {wanted}")
        if len(names) > 1:
            listed = ", ".join(sorted(str(entry["Names"][0]).lstrip("/") for entry in names)[:5])
            raise DriverFailed("ambiguous", f"{len(names)} containers carry {wanted}: {first_line(listed.encode())}")
        found = there.inspect(str(names[0]["Id"]))
        if found is None:
            raise DriverFailed("not_found", f"the container that carried {wanted} was removed at that moment")
        return _read(found)


def _by_name(there: Engine, name: str) -> Container:
    found = there.inspect(name)
    if found is not None and found["Name"] == f"/{name}":
        return _read(found)
    if left := _leftovers(there, name):
        raise DriverFailed("renamed", f"there is no container {name}; it seems to go by the name {left[0]} now")
    raise DriverFailed("not_found", f"there is no container {name}")


def _leftovers(there: Engine, name: str) -> list[str]:
    """What Compose and others name the old container, or the new one, in the middle of recreating it."""
    pattern = re.compile(rf"/([0-9a-f]{{12}}_{re.escape(name)}|{re.escape(name)}[_-]old)")
    try:
        entries = there.containers({"name": [name]})
    except DriverFailed:  # a socket proxy may allow inspections only; that there is none is known already
        return []
    names = [str(found) for entry in entries for found in entry["Names"]]
    return sorted(found[1:] for found in names if pattern.fullmatch(found))


def _read(found: Mapping[str, Any]) -> Container:
    state = found["State"]
    status = first_line(str(state["Status"]).encode())
    running = state["Running"] is True and state["Restarting"] is not True  # between two tries there is no process
    if status == "exited":
        status = f"exited with status {int(state['ExitCode'])}"
    name = first_line(str(found["Name"]).lstrip("/").encode())
    return Container(str(found["Id"]), name, status, str(state["StartedAt"]), running, state["Paused"] is True)


def _odd(error: Exception) -> str:
    return f"the engine's answer has no form that is known ({type(error).__name__})"
