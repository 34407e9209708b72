"""The image, built by a real Docker engine from the unchanged Dockerfile, and our services in containers of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import image_stage
from tests.deploy.files import CONFIG
from tests.deploy.image_build import PART, Built
from tests.realparts import need
from tests.remediator.drivers.contract import eventually

PROOF_SECONDS = 60.0
HOLDS = """
id -u && id -g && pwd && stallwatch-exporter --version && stallwatch-remediator --version && touch mine || exit 1
for path in /src /wheels /builder /opt/stallwatch/bin/pip; do test -e $path && exit 2; done
for program in gcc cc make; do command -v $program && exit 3; done
python -c 'import pip' 2>/dev/null && exit 4
touch /opt/stallwatch/x 2>/dev/null && exit 5
python -v -c 'import exporter.__main__, remediator.__main__, demo.vllm' >/tmp/imports 2>&1 || exit 6
grep -c 'code object from /opt/stallwatch/.*[.]py$' /tmp/imports || true
"""
"""Each line fails for itself; the last one counts the modules that had to be compiled at the start."""


@pytest.fixture
def stage(image: Built, tmp_path: Path) -> Iterator[image_stage.Stage]:
    """The networks of the compose file, the proxy in front of the engine, and no container yet."""
    made = image_stage.Stage(image, tmp_path)
    tmp_path.chmod(0o755)
    with image_stage.networks(image) as address, image_stage.haproxy(address, image.engine.socket, tmp_path):
        made.proxy = address
        yield made


def script(built: Built, text: str) -> tuple[int, str]:
    """A shell's script in a container of the image as it is, without a network; its exit code and output."""
    with built.client() as client:
        made = client.create_container(
            built.image, ["sh", "-c", text], host_config=client.create_host_config(network_mode="none")
        )
        client.start(made["Id"])
        code = client.wait(made["Id"])["StatusCode"]
        return int(code), client.logs(made["Id"]).decode(errors="replace")


def test_the_image_holds_the_programs_and_nothing_to_build_with(image: Built) -> None:
    """No pip of ours and no compiler; the user by number; every module compiled, since nobody may write there."""
    with image.client() as client:
        config = client.inspect_image(image.image)["Config"]
    assert config["User"] == "10001:10001"
    assert config["ExposedPorts"].keys() == {"9840/tcp", "9841/tcp"}
    assert config["Healthcheck"]["Test"][:2] == ["CMD", "python"]
    assert config["Labels"]["org.opencontainers.image.title"] == "stallwatch"
    code, printed = script(image, HOLDS)
    lines = printed.splitlines()
    assert (code, lines[:3], lines[-1]) == (0, ["10001", "10001", "/var/lib/stallwatch"], "0"), printed


def test_a_program_without_its_configuration_says_so_in_one_line(image: Built) -> None:
    """`docker run` of the image alone: the mistake that everybody makes first."""
    with image.client() as client:
        made = client.create_container(image.image, host_config=client.create_host_config(network_mode="none"))
        client.start(made["Id"])
        assert client.wait(made["Id"])["StatusCode"] == 2
        (line,) = client.logs(made["Id"]).decode().splitlines()
    assert line.startswith("stallwatch-exporter: /etc/stallwatch/exporter.yml: ")


def test_the_demonstration(stage: image_stage.Stage) -> None:
    """A frozen server is restarted through the proxy and works again; the journal outlives the remediator's container.

    Everything but Prometheus and Alertmanager, whose alert this test sends itself.
    """
    for service in ("demo-server", "demo-traffic", "exporter"):
        stage.start(service)
    stage.healthy("demo-server")
    _reach(stage)
    stage.healthy("exporter")
    stage.start("remediator")  # `depends_on` of the compose file
    stage.until("exporter", lambda: _backend(stage)["verdict"] == "busy", "the server is not busy")
    stage.healthy("remediator")
    for service in ("exporter", "remediator"):
        _has_given_up_everything(stage, service)

    before = stage.inspect("demo-server")["State"]
    assert stage.ask("demo-server", "/demo/freeze", {}) == {"status": "frozen"}
    stage.until("exporter", lambda: _backend(stage)["verdict"] == "stuck", "it is not found stuck", PROOF_SECONDS)
    assert stage.ask("remediator", "/api/v1/alerts", _alert())["opened"] == 1
    stage.until("remediator", lambda: _outcomes(stage) == ["recovered"], "no attempt recovered it", PROOF_SECONDS)
    after = stage.inspect("demo-server")["State"]
    assert (after["Status"], after["StartedAt"] > before["StartedAt"]) == ("running", True)
    assert _backend(stage)["verdict"] in ("busy", "idle")

    began = time.monotonic()
    assert [stage.stop(service) for service in ("remediator", "exporter", "demo-traffic", "demo-server")] == [0] * 4
    assert time.monotonic() - began < 20
    stage.remove("remediator")
    stage.start("remediator")
    stage.until("remediator", lambda: _outcomes(stage) == ["recovered"], "the journal is not what it was")


def test_sigterm_ends_a_program_that_is_the_first_process(image: Built) -> None:
    """Kubernetes puts no init before it, and the kernel keeps from it what it does not handle."""
    mount = f"{CONFIG}/demo/exporter.yml:/etc/stallwatch/exporter.yml:ro"
    with image.client() as client:
        host = client.create_host_config(network_mode="none", binds=[mount], read_only=True, cap_drop=["ALL"])
        made = client.create_container(image.image, host_config=host)
        client.start(made["Id"])
        assert eventually(lambda: b"event=started" in client.logs(made["Id"]), 60)
        client.stop(made["Id"], timeout=30)
        assert client.inspect_container(made["Id"])["State"]["ExitCode"] == 0


def _reach(stage: image_stage.Stage) -> None:
    """Skip where a firewall of this machine lets nothing pass between containers."""
    connect = "import socket; socket.create_connection(('demo-server', 8000), 5)"
    code, printed = stage.run("exporter", "python", "-c", connect)
    if "timed out" in printed or "No route to host" in printed:
        need(PART, "this machine's firewall lets nothing pass between containers")
    assert code == 0, printed


def _has_given_up_everything(stage: image_stage.Stage, service: str) -> None:
    status = "/proc/self/status"
    code, printed = stage.run(service, "sh", "-c", f"id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs):' {status}; touch /x")
    assert code != 0
    assert printed.split()[:7] == ["10001", "CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"], printed
    assert "Read-only file system" in printed


def _backend(stage: image_stage.Stage) -> Any:
    return stage.ask("exporter", "/api/v1/backends/demo")


def _outcomes(stage: image_stage.Stage) -> list[str]:
    return [attempt["outcome"] for attempt in stage.ask("remediator", "/api/v1/actions")["attempts"]]


def _alert() -> dict[str, Any]:
    """What Alertmanager sends, cut to what it must hold."""
    labels = {"alertname": "ModelServerStuck", "backend": "demo", "remediation": "restart"}
    alert = {
        "status": "firing",
        "labels": labels,
        "annotations": {},
        "startsAt": datetime.now(UTC).isoformat(),
        "endsAt": "0001-01-01T00:00:00Z",
        "fingerprint": "c0ffee",
    }
    return {"version": "4", "status": "firing", "truncatedAlerts": 0, "alerts": [alert]}
