"""The Docker SDK, bounded: one deadline for everything, nothing from the environment, failures in our own words.

Imports the SDK, which is optional: import this module only when a docker driver is made.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import docker  # type: ignore[import-untyped]
from docker.errors import APIError, DockerException, NotFound  # type: ignore[import-untyped]
from docker.transport.unixconn import (  # type: ignore[import-untyped]
    UnixHTTPAdapter,
    UnixHTTPConnection,
    UnixHTTPConnectionPool,
)

from remediator.drivers import DriverFailed
from remediator.drivers.command import first_line
from stallwatch.deadline import DeadlineAdapter, DeadlineSocket, Exchange, Noting, current

ASKED_VERSION = "1.41"
"""Only for the client that asks which version the engine speaks; that question carries none in its path."""
WILL_NOT_STOP = (
    "did not receive an exit event",
    "is zombie and can not be killed",
    "cannot kill container",
    "could not kill",
    "could not be killed",
)
"""What the engine says, in lower case, when a process outlives SIGKILL."""


class _UnixConnection(UnixHTTPConnection):  # type: ignore[misc]
    def connect(self) -> None:
        self.sock = DeadlineSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(current.exchange.remaining())
        self.sock.connect(self.unix_socket)


class _Connection(Noting, _UnixConnection):
    pass


class _UnixPool(UnixHTTPConnectionPool):  # type: ignore[misc]
    def _new_conn(self) -> _Connection:
        return _Connection(self.base_url, self.socket_path, self.timeout)


class _UnixAdapter(UnixHTTPAdapter):  # type: ignore[misc]
    def get_connection(self, url: str, proxies: Any = None) -> Any:  # noqa: ARG002
        if self.pools.get(url) is None:
            self.pools[url] = _UnixPool(url, self.socket_path, self.timeout)
        return self.pools[url]


class Engine:
    """A Docker engine for the calls of one `describe` or `restart`; every method raises `DriverFailed`."""

    def __init__(self, host: str, seconds: float) -> None:
        self.host, self._seconds = host, seconds
        self._deadline = time.monotonic() + seconds
        self._opened: list[Any] = []
        self._client: Any = None

    def close(self) -> None:
        """Close every connection."""
        for client in self._opened:
            client.close()

    def inspect(self, name: str) -> Any:
        """All about a container whose name, or whose id's beginning, this is; None when there is none."""
        try:
            return self._call("inspecting a container", lambda client: client.inspect_container(name))
        except NotFound:
            return None

    def containers(self, filters: Mapping[str, list[str]]) -> list[Any]:
        """All containers that fit, also those that do not run."""
        found = self._call("listing containers", lambda client: client.containers(all=True, filters=dict(filters)))
        if not isinstance(found, list):
            raise DriverFailed("error", f"{self.host} lists containers in a form that is not Docker's")
        return found

    def restart(self, container_id: str, name: str, stop_seconds: int) -> None:
        """One call that stops and starts the container."""
        try:
            self._call(f"restarting {name}", lambda client: client.restart(container_id, stop_seconds), sends=True)
        except NotFound:
            raise DriverFailed("not_found", f"container {name} was removed at that moment") from None

    def _call(self, what: str, call: Callable[[Any], Any], *, sends: bool = False) -> Any:
        exchange = None
        try:
            if self._client is None:
                self._client = self._connect()
            exchange = current.exchange = Exchange(self._deadline)
            return call(self._client)
        except NotFound:
            raise
        except APIError as error:
            raise self._refused(what, error) from None
        except OSError as error:  # also everything that the HTTP library below the SDK raises
            begun = sends and exchange is not None and exchange.written
            raise self._broken(what, error, begun) from None
        except DockerException as error:
            raise DriverFailed("error", f"{what}: {first_line(str(error).encode())}") from None

    def _connect(self) -> Any:
        current.exchange = Exchange(self._deadline)
        try:
            version = self._open(ASKED_VERSION).version(api_version=False)
        except NotFound:
            raise DriverFailed("error", f"{self.host} does not answer as a Docker engine does") from None
        if not isinstance(version, dict) or not isinstance(version.get("ApiVersion"), str):
            raise DriverFailed("error", f"{self.host} does not answer as a Docker engine does")
        return self._open(version["ApiVersion"])

    def _open(self, version: str) -> Any:
        client = docker.APIClient(self.host, version=version)
        self._opened.append(client)
        client.trust_env = False  # no proxy and no netrc of the environment
        client._general_configs = {}  # nor the headers and proxies of somebody's ~/.docker/config.json
        client.max_redirects = 0
        client.headers["Connection"] = "close"  # never a call on a connection that is about to be closed
        if self.host.startswith("unix://"):
            client.mount("http+docker://", _UnixAdapter("http+" + self.host))
        else:
            client.mount("http://", DeadlineAdapter(ssl.create_default_context()))
        return client

    def _refused(self, what: str, error: Any) -> DriverFailed:
        said = first_line(str(error.explanation or "").encode())
        if error.status_code in (401, 403):
            return DriverFailed("no_permission", f"{what}: {self.host} does not allow it ({error.status_code})")
        if any(words in said.lower() for words in WILL_NOT_STOP):
            return DriverFailed("will_not_stop", f"{what}: {said}")
        return DriverFailed("error", f"{what}: the engine answers {error.status_code}: {said}")

    def _broken(self, what: str, error: BaseException, begun: bool) -> DriverFailed:
        if isinstance(error, ValueError):
            return DriverFailed("error", f"{what}: {self.host} does not answer as a Docker engine does")
        causes = list(_causes(error))
        unknown = "; whether the container is being restarted, nobody knows" if begun else ""
        if any(isinstance(cause, TimeoutError) for cause in causes):
            return DriverFailed("deadline", f"{what}: no answer from {self.host} in {self._seconds:g} s{unknown}")
        if any(isinstance(cause, PermissionError) for cause in causes):
            return DriverFailed("no_permission", f"this user may not use {self.host}")
        if any(isinstance(cause, FileNotFoundError) for cause in causes):
            return DriverFailed("unavailable", f"{self.host} does not exist; does Docker run?")
        if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
            return DriverFailed("unavailable", f"{self.host} refuses connections; does Docker run?")
        how = "the connection was lost" if begun else f"cannot be talked to ({type(causes[-1]).__name__})"
        return DriverFailed("unavailable", f"{what}: {self.host}: {how}{unknown}")


@contextmanager
def engine(host: str, seconds: float) -> Iterator[Engine]:
    """An engine that is closed afterwards; everything together takes at most `seconds`."""
    found = Engine(host, seconds)
    try:
        yield found
    finally:
        found.close()


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that it was made from."""
    waiting: list[Any] = [error]
    seen: list[Any] = []
    while waiting and len(seen) < 30:
        cause = waiting.pop()
        if isinstance(cause, BaseException) and not any(cause is other for other in seen):
            seen.append(cause)
            waiting += [cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args]
            yield cause
