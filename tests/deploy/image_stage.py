"""Containers of the image as docker-compose.yml describes them, on networks of the same names, without Compose.

Haproxy is the one of this machine, in front of the engine's socket, at the address of the internal network's bridge;
containers know it as `docker-proxy`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from docker.errors import APIError, NotFound  # type: ignore[import-untyped]

from tests.deploy.files import COMPOSE, CONFIG, read
from tests.deploy.image_build import PART, Built
from tests.realparts import need
from tests.remediator.drivers.contract import eventually
from tests.tools import ROOT

SERVICES: dict[str, Any] = read(COMPOSE)["services"]
NETWORKS: dict[str, Any] = read(COMPOSE)["networks"]
STARTED_SECONDS = 60.0
"""Until a health check was well: its interval is 10 s, and this machine may be busy."""


class Stage:
    """Our services. `folder` holds the secrets; the journal is a volume of the engine, as in the compose file."""

    def __init__(self, built: Built, folder: Path) -> None:
        self.built, self.folder, self.proxy = built, folder, ""
        self.token = "t0ken-of-the-test"
        (folder / "webhook_token").write_text(f"{self.token}\n", encoding="ascii")
        (folder / "webhook_token").chmod(0o644)

    def start(self, service: str) -> None:
        """Make the container of a service and start it, with the demonstration's configuration."""
        wants = SERVICES[service]
        hosts = {"docker-proxy": self.proxy} if "engine" in wants["networks"] else {}
        with self.built.client() as client:
            host = client.create_host_config(
                network_mode=wants["networks"][0],
                binds=[self._mount(text) for text in wants.get("volumes", [])]
                + [f"{self.folder / secret}:/run/secrets/{secret}:ro" for secret in wants.get("secrets", [])],
                extra_hosts=hosts,
                # Compose's words, and the engine's.
                read_only=wants["read_only"],
                tmpfs=wants["tmpfs"],
                cap_drop=wants["cap_drop"],
                security_opt=wants["security_opt"],
                init=wants["init"],
            )
            first, *others = wants["networks"]
            made = client.create_container(
                wants["image"],
                wants.get("command"),
                name=wants.get("container_name", service),
                environment=wants.get("environment", {}),
                healthcheck={"test": ["NONE"]} if wants.get("healthcheck") == {"disable": True} else None,
                host_config=host,
                networking_config=client.create_networking_config(
                    {first: client.create_endpoint_config(aliases=[service])}
                ),
            )
            for network in others:
                client.connect_container_to_network(made["Id"], network, aliases=[service])
            client.start(made["Id"])

    def _mount(self, text: str) -> str:
        source, target, *mode = text.replace("${STALLWATCH_CONFIG:-./config/compose}", str(CONFIG / "demo")).split(":")
        return ":".join([str(ROOT / source) if source.startswith("./") else source, target, *mode])

    def inspect(self, service: str) -> dict[str, Any]:
        """What the engine says of the container."""
        return self.built.engine.inspect(SERVICES[service].get("container_name", service))

    def healthy(self, service: str) -> None:
        """Wait until the health check of the image says so."""

        def is_healthy() -> bool:
            return bool(self.inspect(service)["State"]["Health"]["Status"] == "healthy")

        assert eventually(is_healthy, STARTED_SECONDS), self.said(service)

    def said(self, service: str) -> str:
        """Its log, and what the engine thinks of it."""
        with self.built.client() as client:
            log = client.logs(self.inspect(service)["Id"], tail=30).decode(errors="replace")
        return f"{json.dumps(self.inspect(service)['State'])}\n{log}"

    def run(self, service: str, *command: str) -> tuple[int, str]:
        """A command inside; its exit code and what it printed."""
        with self.built.client() as client:
            made = client.exec_create(self.inspect(service)["Id"], list(command))
            text = client.exec_start(made["Id"]).decode(errors="replace")
            return int(client.exec_inspect(made["Id"])["ExitCode"]), text

    def ask(self, service: str, path: str, document: Any = None) -> Any:
        """GET, or POST of JSON, at the container's own address; gives the JSON of the answer. Raises `OSError`."""
        address = self.inspect(service)["NetworkSettings"]["Networks"]["watch"]["IPAddress"]
        port = SERVICES[service]["ports"][0].rpartition(":")[2]
        body = None if document is None else json.dumps(document).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"http://{address}:{port}{path}", body, headers)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            return json.load(answer)

    def until(self, service: str, holds: Callable[[], Any], what: str, seconds: float = 60.0) -> None:
        """Wait; while a program starts it may refuse connections."""

        def quietly() -> bool:
            with suppress(OSError):
                return bool(holds())
            return False

        assert eventually(quietly, seconds), f"{what}\n{self.said(service)}"

    def stop(self, service: str) -> int:
        """As `docker stop` does, with the compose file's patience; gives the exit code."""
        with self.built.client() as client:
            client.stop(self.inspect(service)["Id"], timeout=30)
        return int(self.inspect(service)["State"]["ExitCode"])

    def remove(self, service: str) -> None:
        """The container; its volume stays."""
        with self.built.client() as client:
            client.remove_container(self.inspect(service)["Id"], force=True)


@contextmanager
def networks(built: Built) -> Iterator[str]:
    """The compose file's networks; gives the address of this machine in the internal one. Skips without bridges."""
    with built.client() as client:
        try:
            for name, options in NETWORKS.items():
                client.create_network(name, internal=(options or {}).get("internal", False))
            yield client.inspect_network("engine")["IPAM"]["Config"][0]["Gateway"].partition("/")[0]
        except APIError as error:
            if "bridge" not in str(error):
                raise
            need(PART, f"the engine can make no network: {error.explanation}")
        finally:
            built.engine.clean()
            for name in NETWORKS:
                with suppress(NotFound):
                    client.remove_network(name)
            with suppress(NotFound):
                client.remove_volume("journal", force=True)


@contextmanager
def haproxy(address: str, socket: Path, folder: Path) -> Iterator[None]:
    """config/compose/docker-proxy.cfg at port 2375 of an address of a bridge that nobody else has."""
    program = shutil.which("haproxy")
    if program is None:
        need("haproxy", "is not installed; Debian: apt-get install --no-install-recommends haproxy")
    need("haproxy", None)
    text = (CONFIG / "docker-proxy.cfg").read_text(encoding="utf-8")
    for before, after in (
        ("bind :2375\n", f"bind {address}:2375\n"),
        ("unix@/var/run/docker.sock", f"unix@{socket}"),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    (folder / "haproxy.cfg").write_text(text, encoding="utf-8")
    with (folder / "haproxy.txt").open("wb") as log:
        process = subprocess.Popen([str(program), "-db", "-f", folder / "haproxy.cfg"], stdout=log, stderr=log)
        try:
            yield
            assert process.poll() is None, (folder / "haproxy.txt").read_text(encoding="utf-8")
        finally:
            process.terminate()
            process.wait(10)
