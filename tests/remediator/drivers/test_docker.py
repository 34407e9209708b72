"""The docker driver on a real engine, and on fakes for what a real one cannot be made to do."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from remediator.drivers import DriverFailed
from remediator.drivers import docker as docker_driver
from remediator.drivers.docker import DockerDriver, DockerSettings
from stallwatch.settings import SettingsError, load_yaml
from tests.remediator.drivers.contract import eventually
from tests.remediator.drivers.docker_engine import IGNORES_TERM, Engine
from tests.remediator.drivers.docker_fake import ID, INSPECTED, LISTED, VERSION, FakeEngine, socket_proxy, stubborn

NOBODY = 65534
SAYS_TERM = "trap 'echo asked to end' TERM; while :; do sleep 0.1; done"
COMPOSE = {
    "com.docker.compose.project": "models",
    "com.docker.compose.service": "vllm",
    "com.docker.compose.oneoff": "False",
}
SLACK_SECONDS = 2.0


@pytest.fixture
def engine(docker_engine: Engine) -> Iterator[Engine]:
    """The real engine without a container."""
    yield docker_engine
    docker_engine.clean()


def failure(driver: DockerDriver, seconds: float = 30.0) -> tuple[str, str]:
    """How a restart fails, within its deadline."""
    began = time.monotonic()
    with pytest.raises(DriverFailed) as caught:
        driver.restart(seconds)
    assert time.monotonic() - began < seconds + SLACK_SECONDS
    return caught.value.reason, str(caught.value)


def started_at(engine: Engine, name: str) -> str:
    """What the engine says itself."""
    return str(engine.inspect(name)["State"]["StartedAt"])


# Which container.


@pytest.mark.parametrize(
    ("labels", "settings"),
    [
        ({}, {"container": "chosen"}),
        ({"role": "model=a"}, {"label": "role=model=a"}),
        (COMPOSE, {"compose": {"project": "models", "service": "vllm"}}),
    ],
)
def test_the_container_is_found_and_no_other(engine: Engine, labels: Any, settings: Any) -> None:
    """By name, by label and by service; a second container beside it is left alone."""
    engine.run(name="chosen", labels=labels)
    engine.run(name="chosen-2", labels={**COMPOSE, "com.docker.compose.service": "other", "role": "model=b"})
    driver, beside = engine.driver(**settings), started_at(engine, "chosen-2")
    before = driver.describe()
    assert (before.identity, before.running, before.detail) == (
        f"{engine.inspect('chosen')['Id'][:12]}@{started_at(engine, 'chosen')}",
        True,
        "",
    )
    driver.restart(30.0)
    after = driver.describe()
    assert after.running
    assert after.identity not in (None, before.identity)
    assert started_at(engine, "chosen-2") == beside


def test_a_one_off_container_of_compose_does_not_count(engine: Engine) -> None:
    """`compose run` makes one with the labels of the service."""
    engine.run(name="vllm-1", labels=COMPOSE)
    engine.run(name="vllm-run", labels={**COMPOSE, "com.docker.compose.oneoff": "True"})
    found = engine.driver(compose={"project": "models", "service": "vllm"}).describe()
    assert found.identity is not None
    assert found.identity.startswith(engine.inspect("vllm-1")["Id"][:12])


def test_a_part_of_a_name_or_of_an_id_finds_nothing(engine: Engine) -> None:
    """Docker would take the beginning of an id for the container, and for its restart."""
    engine.run(name="vllm-a")
    whole, before = engine.inspect("vllm-a")["Id"], started_at(engine, "vllm-a")
    for name in ("vllm", "llm-a", "vllm-", "VLLM-A", whole[:12], whole):
        driver = engine.driver(container=name)
        assert (driver.describe().identity, driver.describe().detail) == (None, f"there is no container {name}")
        assert failure(driver) == ("not_found", f"there is no container {name}")
    for label in ("role=mode", "role=model-2"):
        assert failure(engine.driver(label=label))[0] == "not_found"
    assert started_at(engine, "vllm-a") == before


def test_two_containers_with_one_label_are_ambiguous(engine: Engine) -> None:
    """Also when one of them does not run: nobody knows which is meant."""
    for name in ("one", "two"):
        engine.run(name=name, labels={"role": "model"})
    with engine.client() as client:
        client.stop("two", timeout=2)
    driver, before = engine.driver(label="role=model"), started_at(engine, "one")
    said = "2 containers carry role=model: one, two"
    assert (driver.describe().identity, driver.describe().detail) == (None, said)
    assert failure(driver) == ("ambiguous", said)
    assert started_at(engine, "one") == before


@pytest.mark.parametrize("new_name", ["0123456789ab_vllm-a", "vllm-a_old", "vllm-a-old"])
def test_a_container_that_is_being_recreated_is_left_alone(engine: Engine, new_name: str) -> None:
    """Compose and others give the old one another name for a while."""
    engine.run(name="vllm-a")
    driver = engine.driver(container="vllm-a")
    with engine.client() as client:
        client.rename("vllm-a", new_name)
    before = started_at(engine, new_name)
    said = f"there is no container vllm-a; it seems to go by the name {new_name} now"
    assert driver.describe().detail == said
    assert failure(driver) == ("renamed", said)
    assert started_at(engine, new_name) == before


def test_a_container_of_another_name_is_no_leftover(engine: Engine) -> None:
    """`vllm-a-2` has nothing to do with `vllm-a`."""
    for name in ("vllm-a-2", "x_vllm-a", "vllm-a_older"):
        engine.run(name=name)
    assert failure(engine.driver(container="vllm-a")) == ("not_found", "there is no container vllm-a")


# What state it is in.


def test_a_container_that_somebody_stopped_stays_stopped(engine: Engine) -> None:
    """A restart would undo what a person wanted."""
    driver = engine.driver(container=engine.run(name="vllm-a"))
    with engine.client() as client:
        client.stop("vllm-a", timeout=2)
    found = driver.describe()
    assert (found.identity, found.running) == (None, False)
    assert found.detail == "container vllm-a does not run (exited with status 0)"
    assert failure(driver) == (
        "stopped",
        "container vllm-a does not run (exited with status 0) and is not started: somebody may have stopped it",
    )
    assert engine.inspect("vllm-a")["State"]["Running"] is False


def test_a_paused_container_stays_paused(engine: Engine) -> None:
    """Its process is the same one before, during and after; it only looks stuck."""
    driver = engine.driver(container=engine.run(name="vllm-a"))
    before = driver.describe().identity
    with engine.client() as client:
        client.pause("vllm-a")
        found = driver.describe()
        assert (found.identity, found.running, found.detail) == (before, False, "container vllm-a is paused")
        assert failure(driver)[0] == "stopped"
        assert engine.inspect("vllm-a")["State"]["Paused"] is True
        client.unpause("vllm-a")
    assert driver.describe().identity == before


def test_a_container_between_two_tries_of_its_restart_policy_is_left_to_it(engine: Engine) -> None:
    """Docker says it runs and is restarting at once; there is no process."""
    with engine.client() as client:
        made = client.create_container(
            "stallwatch-test:1",
            ["/bin/sh", "-c", "exit 3"],
            name="crashes",
            host_config=client.create_host_config(network_mode="none", restart_policy={"Name": "always"}),
        )
        client.start(made["Id"])
    driver = engine.driver(container="crashes")
    # Docker waits twice as long after each crash: by then it is seconds, long enough to look and to call.
    assert eventually(lambda: engine.inspect("crashes")["RestartCount"] >= 5)
    assert eventually(lambda: driver.describe().detail == "container crashes does not run (restarting)")
    assert failure(driver)[0] == "stopped"


def test_a_container_that_ignores_sigterm_is_killed_after_its_time(engine: Engine) -> None:
    """`stop_seconds` is the engine's time to be patient, not ours."""
    driver = engine.driver(container=engine.run(IGNORES_TERM), stop_seconds=1)
    before = driver.describe().identity
    began = time.monotonic()
    driver.restart(30.0)
    assert 1.0 <= time.monotonic() - began < 15.0
    assert driver.describe().identity not in (None, before)


def test_a_restart_that_outlasts_the_deadline_says_that_it_may_go_on(engine: Engine) -> None:
    """The engine does not stop restarting because nobody listens any more."""
    driver = engine.driver(container=engine.run(IGNORES_TERM, name="slow"), stop_seconds=3)
    before = driver.describe().identity
    assert failure(driver, 1.0) == (
        "deadline",
        f"restarting slow: no answer from {engine.host} in 1 s; whether the container is being restarted, nobody knows",
    )
    assert eventually(lambda: driver.describe().identity not in (None, before))


# What state the engine is in.


def test_the_engine_is_killed_during_the_call(engine: Engine) -> None:
    """Nobody knows what became of the container, and the driver says so."""
    driver = engine.driver(container=engine.run(SAYS_TERM, name="vllm-a"), stop_seconds=20)
    said: list[tuple[str, str]] = []
    thread = threading.Thread(target=lambda: said.append(failure(driver)))
    thread.start()
    try:
        with engine.client() as client:
            assert eventually(lambda: b"asked to end" in client.logs("vllm-a"))
        engine.kill()
        thread.join(10)
        lost = "the connection was lost; whether the container is being restarted, nobody knows"
        assert said == [("unavailable", f"restarting vllm-a: {engine.host}: {lost}")]
        found = driver.describe()
        assert (found.identity, found.detail) == (None, f"{engine.host} refuses connections; does Docker run?")
        assert failure(driver) == ("unavailable", found.detail)
    finally:
        thread.join(30)
        engine.start()
    assert driver.describe().running is False  # the engine that came back ended what the dead one had left


def test_an_engine_that_hangs_is_not_waited_for(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped daemon accepts and never answers; afterwards everything is as before."""
    monkeypatch.setattr(docker_driver, "DESCRIBE_SECONDS", 0.5)
    driver = engine.driver(container=engine.run(name="vllm-a"))
    before = driver.describe().identity
    assert engine.process is not None
    os.kill(engine.process.pid, signal.SIGSTOP)
    try:
        found = driver.describe()
        assert found.identity is None
        assert f"no answer from {engine.host} in 0.5 s" in found.detail
        assert failure(driver, 0.5)[0] == "deadline"
    finally:
        os.kill(engine.process.pid, signal.SIGCONT)
    assert eventually(lambda: driver.describe().identity == before)


def test_the_restart_was_not_asked_for_when_the_engine_hung_before(tmp_path: Path) -> None:
    """A deadline that ends before the call was sent leaves no doubt: nothing was restarted."""
    with stubborn(tmp_path) as host:
        _, said = failure(made(host), 0.3)
    assert "nobody knows" not in said


def test_another_user_may_not_use_the_socket(engine: Engine) -> None:
    """The socket belongs to root and a group."""
    driver = engine.driver(container=engine.run())
    before = driver.describe().identity
    with _as_nobody():
        found = driver.describe()
        said = failure(driver)
    assert (found.identity, found.detail) == (None, f"this user may not use {engine.host}")
    assert said == ("no_permission", f"this user may not use {engine.host}")
    assert driver.describe().identity == before


@contextmanager
def _as_nobody() -> Iterator[None]:
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def test_a_socket_that_does_not_exist(tmp_path: Path) -> None:
    """Docker is not installed, or the remediator's container does not see the socket."""
    driver = made(f"unix://{tmp_path}/none.sock")
    assert driver.describe().detail == f"unix://{tmp_path}/none.sock does not exist; does Docker run?"
    assert failure(driver)[0] == "unavailable"


def test_a_socket_proxy_that_allows_three_requests_is_enough(engine: Engine) -> None:
    """The version, one inspection and one restart; anything else is 403, and then the reason says so."""
    engine.run(name="vllm-a", labels={"role": "model"})
    with socket_proxy(engine.socket, "vllm-a") as host:
        driver = engine.driver(container="vllm-a", host=host)
        before = driver.describe().identity
        driver.restart(30.0)
        assert driver.describe().identity not in (None, before)
        for settings in ({"container": "vllm-b"}, {"label": "role=model"}):
            assert failure(engine.driver(host=host, **settings))[0] == "no_permission"


def test_nothing_of_the_environment_is_used(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither another engine, nor a proxy, nor the headers of somebody's own configuration."""
    name = engine.run()
    (tmp_path / "config.json").write_text('{"HttpHeaders": {"Content-Length": "-1"}}', encoding="ascii")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    with socket_proxy(engine.socket, name) as host:
        for driver in (engine.driver(container=name), engine.driver(container=name, host=host)):
            driver.restart(30.0)
            assert driver.describe().identity is not None
    monkeypatch.undo()  # the tests' own client would use it


# Faults that a real engine cannot be made to have.


def made(host: str, **settings: Any) -> DockerDriver:
    """A driver for vllm-a."""
    return DockerSettings.model_validate({"kind": "docker", "container": "vllm-a", "host": host, **settings}).make()


def test_the_fake_has_the_form_of_the_real_one(engine: Engine) -> None:
    """Every key that the fake answers stands in the real answer, with a value of the same type."""

    def check(fake: dict[str, Any], real: dict[str, Any]) -> None:
        for key, value in fake.items():
            assert type(real[key]) is type(value), key
            if isinstance(value, dict):
                check(value, real[key])

    name = engine.run()
    with engine.client() as client:
        check(INSPECTED, client.inspect_container(name))
        check(LISTED, client.containers()[0])
        check(VERSION, client.version())


def test_one_restart_is_one_call_by_id(tmp_path: Path) -> None:
    """A rename between the inspection and the call cannot hit another container."""
    fake = FakeEngine()
    with fake.serve(tmp_path) as host:
        made(host, stop_seconds=7).restart(5.0)
    assert fake.calls == [
        "GET /version",
        "GET /v1.41/containers/vllm-a/json",
        f"POST /v1.41/containers/{ID}/restart?t=7",
    ]


@pytest.mark.parametrize(
    ("status", "message", "reason", "said"),
    [
        (500, "Cannot restart container vllm-a: tried to kill container, but did not receive an exit event",
         "will_not_stop",
         "Cannot restart container vllm-a: tried to kill container, but did not receive an exit event"),
        (500, "Cannot restart container vllm-a: container 4f4f PID 7 is zombie and can not be killed. Use the --init "
         "option when creating containers to run an init inside the container that forwards signals and reaps "
         "processes", "will_not_stop", "PID 7 is zombie and can not be killed"),
        (500, "Cannot restart container vllm-a: Cannot kill container: 4f4f: permission denied", "will_not_stop",
         "permission denied"),
        (500, "Cannot restart container vllm-a: failed to create task: no such device\nmore\x1b[0m", "error",
         "the engine answers 500: Cannot restart container vllm-a: failed to create task: no such device"),
        (404, f"No such container: {ID}", "not_found", "container vllm-a was removed at that moment"),
        (403, "authorization denied by plugin", "no_permission", "does not allow it (403)"),
        (503, "", "error", "the engine answers 503: "),
    ],
)  # fmt: skip
def test_failures_of_the_call_are_told_apart(tmp_path: Path, status: int, message: str, reason: str, said: str) -> None:
    """By what the engine answers; one printable line, and one call whatever it was."""
    fake = FakeEngine(restart=(status, {"message": message}))
    with fake.serve(tmp_path) as host:
        found = failure(made(host), 5.0)
    assert found[0] == reason
    assert said in found[1]
    assert found[1].isprintable()
    assert sum(call.startswith("POST") for call in fake.calls) == 1


@pytest.mark.parametrize(
    "answer",
    [
        (200, []),
        (200, {}),
        (200, None),
        (200, b"<html>"),
        (200, {"Id": 7}),
        (200, {**INSPECTED, "State": None}),
        (301, None),
        (500, b"\xff\x00"),
    ],
)
@pytest.mark.parametrize("place", ["inspect", "version"])
def test_what_is_no_docker_engine_is_an_error_and_no_exception(tmp_path: Path, place: str, answer: Any) -> None:
    """Something else listens there."""
    fake = FakeEngine()
    setattr(fake, place, answer)
    with fake.serve(tmp_path) as host:
        found = made(host).describe()
        reason, said = failure(made(host), 5.0)
    assert found.identity is None
    assert found.detail == said != ""
    assert said.isprintable()
    assert reason == "error"
    assert not any(call.startswith("POST") for call in fake.calls)


@pytest.mark.parametrize("dribbles", [b"", b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_the_deadline_holds_for_all_of_an_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dribbles: bytes
) -> None:
    """An engine that never answers; one whose head never ends; one whose body never ends."""
    monkeypatch.setattr(docker_driver, "DESCRIBE_SECONDS", 0.4)
    with stubborn(tmp_path, dribbles) as host:
        began = time.monotonic()
        found = made(host).describe()
        assert time.monotonic() - began < 0.4 + SLACK_SECONDS
        assert found.identity is None
        assert found.detail.endswith(f"no answer from {host} in 0.4 s")
        assert failure(made(host), 0.4)[0] == "deadline"


def test_an_engine_that_hangs_up(tmp_path: Path) -> None:
    """Before anything was asked of it."""
    with stubborn(tmp_path, ends=True) as host:
        reason, said = failure(made(host), 5.0)
    assert reason == "unavailable"
    assert "nobody knows" not in said


# Settings.


def test_the_defaults(tmp_path: Path) -> None:
    """The engine gets its time to stop the container and to start it."""
    driver = DockerSettings(kind="docker", container="vllm-a").make()
    assert (driver.host, driver.stop_seconds, driver.timeout_seconds) == ("unix:///var/run/docker.sock", 30, 120.0)
    assert DockerSettings(kind="docker", container="vllm-a", stop_seconds=100).make().timeout_seconds == 190.0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "must hold exactly one of container, label and compose"),
        ("container: vllm-a\nlabel: a=b", "must hold exactly one of container, label and compose"),
        ("container: ..", "container: must be a container's exact name"),
        ("container: a/../b", "container: must be a container's exact name"),
        ("container: /vllm-a", "container: must be a container's exact name"),
        ("container: vllm-*", "container: must be a container's exact name"),
        ("label: role", "label: must be written as key=value"),
        ("label: =a", "label: must be written as key=value"),
        ("compose: {project: models}", "compose.service: is missing"),
        ("container: aa\nhost: /var/run/docker.sock", "host: must be unix:///path/of/the/socket or tcp://host:port"),
        ("container: aa\nhost: ssh://user@host", "host: must be unix:///path/of/the/socket or tcp://host:port"),
        ("container: aa\nhost: tcp://user:secret@host:1", "host: must be unix:///path"),
        ("container: aa\nhost: tcp://host", "host: must be unix:///path/of/the/socket or tcp://host:port"),
        ("container: aa\nstop_seconds: 1.5", "stop_seconds: must be a number"),
        ("container: aa\nstop_seconds: 0", "stop_seconds: must be above 0"),
        ("container: aa\ntimeout_seconds: 30", "timeout_seconds must be longer than stop_seconds (30)"),
        ("container: aa\nimage: x", "image: unknown key"),
    ],
)
def test_settings_that_are_wrong(tmp_path: Path, text: str, error: str) -> None:
    """One line that says what to write; a secret in it is not shown."""
    (tmp_path / "driver.yml").write_text(f"kind: docker\n{text}\n", encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        load_yaml(tmp_path / "driver.yml", DockerSettings)
    assert error in str(caught.value)
    assert "secret" not in str(caught.value)


def test_without_the_sdk_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an optional part."""
    monkeypatch.setitem(sys.modules, "docker", None)
    monkeypatch.delitem(sys.modules, "remediator.drivers.docker_client", raising=False)
    with pytest.raises(SettingsError, match=r"pip install 'stallwatch\[docker\]'"):
        DockerSettings(kind="docker", container="vllm-a").make()
