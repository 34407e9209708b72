"""The same rule files, unchanged, in vmalert: they load, and fire what Prometheus fires, with the same words."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from demo.parts import free_port, get, wait_for
from tests import realparts
from tests.grafana.scene import FROZEN, Scene, playing
from tests.rules import files

ARGUMENTS = [f"-rule={path}" for path in files.RULE_FILES]


@pytest.fixture(scope="module")
def vmalert() -> str:
    """Debian's victoria-metrics brings it; its version 1.79 is older than many a field of rules."""
    found = shutil.which("vmalert")
    realparts.need("vmalert", None if found else "not installed (apt-get install victoria-metrics)")
    assert found
    return found


@pytest.fixture(scope="module")
def scene(vmalert: str) -> Iterator[Scene]:
    with playing() as played:
        yield played


def test_it_accepts_every_file(vmalert: str) -> None:
    """`-dryRun` parses every expression as MetricsQL and every template, and refuses a field it does not know."""
    done = subprocess.run([vmalert, "-dryRun", *ARGUMENTS], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_it_would_not_accept_a_field_of_prometheus_alone(vmalert: str, tmp_path: Path) -> None:
    """The test above is about something: keep_firing_for, for one, is refused."""
    path = tmp_path / "rules.yml"
    path.write_text(
        files.ALERT_FILES[0].read_text().replace("        labels:\n", "        keep_firing_for: 1m\n        labels:\n")
    )
    done = subprocess.run(
        [vmalert, "-dryRun", f"-rule={path}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0


@contextmanager
def alertmanager() -> Iterator[tuple[int, list[Mapping[str, Any]]]]:
    """What an Alertmanager is sent; its port and the alerts so far."""
    received: list[Mapping[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port, received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_it_fires_what_prometheus_fires(vmalert: str, scene: Scene) -> None:
    """A proof and its suspicion reach the Alertmanager with the same labels and texts, and nothing else does."""
    with alertmanager() as (port, received):
        store = _victoria_metrics(scene)
        address = f"127.0.0.1:{free_port()}"
        argv = [vmalert, *ARGUMENTS, f"-datasource.url={scene.prometheus}", f"-notifier.url=http://127.0.0.1:{port}"]
        argv += [
            f"-remoteWrite.url={store}",
            "-remoteWrite.flushInterval=1s",
            "-evaluationInterval=1s",
            f"-httpListenAddr={address}",
        ]
        part = scene.parts.start("vmalert", argv, f"http://{address}/health")
        wait_for(lambda: _named(received, "ModelServerStuck"), 30, f"vmalert fires nothing: {part.last_words()}")
        wait_for(lambda: _named(received, "RemediationActed"), 30, "vmalert fires no context")
        states = get(f"http://{address}/api/v1/rules").json()["data"]["groups"]
        assert [rule["lastError"] for group in states for rule in group["rules"] if rule["lastError"]] == []
        wait_for(lambda: _names(received) == _prometheus(scene), 30, "they do not fire the same alerts")
        mine, theirs = _named(received, "ModelServerStuck")[-1], scene.alerts()[f"ModelServerStuck {FROZEN}"]
        assert mine["annotations"] == theirs["annotations"]
        own = {"alertgroup"}  # vmalert's label for the group of rules
        assert {key: value for key, value in mine["labels"].items() if key not in own} == theirs["labels"]
        recorded = "backend:stallwatch_backend_stuck:max"
        wait_for(
            lambda: recorded in get(f"{store}/api/v1/label/__name__/values").json()["data"], 30, "nothing recorded"
        )
        part.stop()


def _victoria_metrics(scene: Scene) -> str:
    """Where vmalert writes what it records."""
    address = f"127.0.0.1:{free_port()}"
    argv = ["victoria-metrics", f"-storageDataPath={scene.parts.folder / 'victoria'}", f"-httpListenAddr={address}"]
    scene.parts.start("victoria-metrics", argv, f"http://{address}/health")
    return f"http://{address}"


def _named(received: list[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [alert for alert in received if alert["labels"]["alertname"] == name]


def _names(received: list[Mapping[str, Any]]) -> set[str]:
    return {f"{alert['labels']['alertname']} {alert['labels'].get('backend', '')}".strip() for alert in received}


def _prometheus(scene: Scene) -> set[str]:
    return set(scene.alerts())
