"""config/compose/docker-proxy.cfg in a real haproxy: what the docker driver asks passes, all else is 403."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from remediator.drivers.docker import DockerDriver, DockerSettings
from tests.deploy.files import CONFIG
from tests.realparts import need
from tests.remediator.drivers.docker_engine import Engine
from tests.remediator.drivers.docker_fake import ID, FakeEngine

CONFIGURATION = CONFIG / "docker-proxy.cfg"
Start = Callable[[Path], AbstractContextManager[int]]


@contextmanager
def haproxy(engine: Path) -> Iterator[int]:
    """The file as it is, but for its listening socket and the engine's; gives the port."""
    program = shutil.which("haproxy")
    if program is None:
        need("haproxy", "is not installed; Debian: apt-get install --no-install-recommends haproxy")
    need("haproxy", None)
    text = CONFIGURATION.read_text(encoding="utf-8")
    folder = Path(tempfile.mkdtemp(prefix="haproxy-"))
    with socket.socket() as listener, (folder / "log").open("wb") as log:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        for before, after in (
            ("bind :2375\n", f"bind fd@{listener.fileno()}\n"),
            ("unix@/var/run/docker.sock", f"unix@{engine}"),
        ):
            assert text.count(before) == 1
            text = text.replace(before, after)
        (folder / "haproxy.cfg").write_text(text, encoding="utf-8")
        process = subprocess.Popen(
            [str(program), "-db", "-f", folder / "haproxy.cfg"],
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
        )
        try:
            yield listener.getsockname()[1]
            assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
        finally:
            process.terminate()
            process.wait(10)
            shutil.rmtree(folder)


@pytest.fixture(scope="module")
def fake() -> Iterator[tuple[FakeEngine, int]]:
    """An engine that notes what came through, and the proxy's port."""
    folder = Path(tempfile.mkdtemp(prefix="engine-"))
    engine = FakeEngine()
    with engine.serve(folder), haproxy(folder / "fake.sock") as port:
        yield engine, port
    shutil.rmtree(folder)


def driver(port: int, **settings: Any) -> DockerDriver:
    """A docker driver that knows nothing but the proxy."""
    return DockerSettings.model_validate(
        {"kind": "docker", "host": f"tcp://127.0.0.1:{port}", "stop_seconds": 2, "timeout_seconds": 30.0, **settings}
    ).make()


def ask(port: int, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None) -> int:
    """The status of one request whose path is sent as it stands here."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders(body)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    "settings",
    [{"container": "vllm-a"}, {"label": "role=model"}, {"compose": {"project": "models", "service": "vllm"}}],
    ids=["container", "label", "compose"],
)
def test_every_request_of_the_driver_passes(fake: tuple[FakeEngine, int], settings: dict[str, Any]) -> None:
    """However the container is named: identity, and a restart."""
    engine, port = fake
    engine.calls.clear()
    before = driver(port, **settings).describe().identity
    assert before is not None
    driver(port, **settings).restart(20.0, before)
    assert engine.calls[-1] == f"POST /v1.41/containers/{ID}/restart?t=2"


def test_a_real_engine_behind_it_restarts_a_real_container(docker_engine: Engine) -> None:
    """And a container that does not run is not started: the driver can tell through the proxy."""
    name = docker_engine.run()
    with haproxy(docker_engine.socket) as port:
        through = driver(port, container=name)
        before = through.describe().identity
        assert before is not None
        through.restart(30.0, before)
        after = through.describe()
        assert after.identity not in (None, before)
        assert after.identity == docker_engine.driver(container=name).describe().identity
        assert ask(port, "POST", f"/v1.41/containers/{docker_engine.inspect(name)['Id']}/kill") == 403
        assert docker_engine.inspect(name)["State"]["Running"] is True
    docker_engine.clean()


ALLOWED = [
    ("GET", "/_ping", "the health check of the compose file"),
    ("GET", "/version", "asked first, without a version"),
    ("GET", "/v1.41/containers/vllm-a/json", "an inspection by name"),
    ("GET", f"/v1.41/containers/{ID}/json", "an inspection by id"),
    ("GET", "/v1.41/containers/json?all=1&filters=%7B%22label%22%3A%5B%22a%3Db%22%5D%7D", "a list by label"),
    ("POST", f"/v1.41/containers/{ID}/restart?t=30", "the restart"),
]


@pytest.mark.parametrize(("method", "path", "why"), ALLOWED, ids=[why for *_, why in ALLOWED])
def test_what_passes(fake: tuple[FakeEngine, int], method: str, path: str, why: str) -> None:
    """And reaches the engine unchanged."""
    engine, port = fake
    engine.calls.clear()
    assert ask(port, method, path) < 300
    assert engine.calls == [f"{method} {path}"]


REFUSED = [
    ("GET", "/v1.41/containers/json", "a list of everything that runs here"),
    ("GET", "/v1.41/containers/vllm-a/json/", "a path that only begins well"),
    ("GET", "/v1.41/containers/a/../../images/json", "a path that climbs"),
    ("GET", "/v1.41/containers/..%2f..%2fimages/json", "a path that climbs, encoded"),
    ("GET", "/v1.41/containers/../json", "a path that becomes another one"),
    ("GET", "//v1.41/containers/vllm-a/json", "a path that Docker would clean"),
    ("GET", "/v1.41/containers/vllm-a/archive?path=/etc", "files of a container"),
    ("GET", "/v1.41/containers/vllm-a/logs?stdout=1", "what it logs"),
    ("GET", "/v1.41/containers/vllm-a/export", "its whole file system"),
    ("GET", "/v1.41/images/json", "images"),
    ("GET", "/v1.41/secrets", "secrets"),
    ("GET", "/v1.41/info", "the host"),
    ("GET", "/events", "everything that happens"),
    ("GET", "/", "nothing"),
    ("HEAD", "/v1.41/containers/vllm-a/json", "another method"),
    ("GET", f"/v1.41/containers/{ID}/restart?t=30", "a restart by the wrong method"),
    ("POST", "/v1.41/containers/vllm-a/restart?t=30", "a restart by a name, which may mean another one by now"),
    ("POST", f"/v1.41/containers/{ID[:12]}/restart?t=30", "a restart by the beginning of an id"),
    ("POST", f"/v1.41/containers/{ID}/restart", "a restart without a time, which may wait for ever"),
    ("POST", f"/v1.41/containers/{ID}/restart?t=-1", "a restart that waits for ever"),
    ("POST", f"/v1.41/containers/{ID}/restart?t=1&signal=STOP", "a restart by a signal of one's own"),
    ("POST", f"/v1.41/containers/{ID}/restart?t=1;signal=STOP", "the same in old clothes"),
    ("POST", f"/v1.41/containers/{ID}/stop?t=1", "a stop"),
    ("POST", f"/v1.41/containers/{ID}/start", "a start"),
    ("POST", f"/v1.41/containers/{ID}/kill", "a kill"),
    ("POST", f"/v1.41/containers/{ID}/exec", "a program in it"),
    ("POST", f"/v1.41/containers/{ID}/update", "another limit"),
    ("POST", f"/v1.41/containers/{ID}/json", "an inspection by the wrong method"),
    ("POST", "/v1.41/containers/create", "a container that mounts the host"),
    ("POST", "/v1.41/build", "an image"),
    ("DELETE", f"/v1.41/containers/{ID}", "removal"),
    ("PUT", f"/v1.41/containers/{ID}/archive?path=/", "files into it"),
]


@pytest.mark.parametrize(("method", "path", "why"), REFUSED, ids=[why for *_, why in REFUSED])
def test_what_is_refused(fake: tuple[FakeEngine, int], method: str, path: str, why: str) -> None:
    """With 403, which the driver calls `no_permission`, and the engine hears nothing of it."""
    engine, port = fake
    engine.calls.clear()
    assert ask(port, method, path) == 403
    assert engine.calls == []


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Connection": "Upgrade", "Upgrade": "tcp"}, None),
        ({"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABk"}, None),
        ({"Content-Length": "2"}, b"{}"),
        ({"Transfer-Encoding": "chunked"}, b"2\r\n{}\r\n0\r\n\r\n"),
    ],
    ids=["a raw connection", "HTTP/2, past the patterns", "a body", "a body in chunks"],
)
def test_nothing_rides_along_with_a_request_that_passes(
    fake: tuple[FakeEngine, int], headers: dict[str, str], body: bytes | None
) -> None:
    """A connection that the proxy no longer reads could carry anything."""
    engine, port = fake
    engine.calls.clear()
    assert ask(port, "POST", f"/v1.41/containers/{ID}/restart?t=30", headers, body) == 403
    assert engine.calls == []


def test_the_proxy_waits_longer_than_any_driver() -> None:
    """A restart answers when it is done; a proxy that gives up earlier would make an answer of it that is none."""
    text = CONFIGURATION.read_text(encoding="utf-8")
    settings = {"kind": "docker", "container": "vllm-a", "stop_seconds": 200}
    longest = DockerSettings.model_validate(settings).make().timeout_seconds
    for side in ("client", "server"):
        (found,) = [line.split()[2] for line in text.splitlines() if line.strip().startswith(f"timeout {side} ")]
        assert float(found.removesuffix("s")) > longest
