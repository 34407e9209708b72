"""The whole chain on loopback: a backend, the exporter, Prometheus, Alertmanager and the remediator.

`settings` of a chain are files like those in config/, with ports and short limits put in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import requests
import yaml

from demo.parts import ChainError, Part, Parts, find_program, free_port, get, post

ROOT = Path(__file__).resolve().parent.parent
NAME = "demo"
SHORT_LIMITS = {
    "suspect_after_seconds": 5,
    "stuck_after_seconds": 10,
    "ask_timeout_seconds": 3,
    "idle_ask_seconds": 5,
    "startup_grace_seconds": 60,
    "unreachable_after_seconds": 8,
    "down_after_seconds": 15,
}
"""So short only because the simulated server's longest healthy step is known; a real server keeps the defaults."""


@dataclasses.dataclass
class Ports:
    """Where everything listens: the usual ports where they are free."""

    backend: int = dataclasses.field(default_factory=lambda: free_port(8000))
    exporter: int = dataclasses.field(default_factory=lambda: free_port(9840))
    remediator: int = dataclasses.field(default_factory=lambda: free_port(9841))
    prometheus: int = dataclasses.field(default_factory=lambda: free_port(9090))
    alertmanager: int = dataclasses.field(default_factory=lambda: free_port(9093))


class Chain:
    """Starts the parts one by one, so that a test can leave one out."""

    def __init__(self, parts: Parts, *, backend_url: str | None = None, mode: str = "restart") -> None:
        self.parts, self.ports, self.mode = parts, Ports(), mode
        self.folder = parts.folder
        self.simulated = backend_url is None
        self.backend_url = backend_url or f"http://127.0.0.1:{self.ports.backend}"
        self.token_file = self.folder / "webhook.token"
        self.token_file.write_text(secrets.token_urlsafe(24))
        self.token_file.chmod(0o600)
        self.exporter: Part | None = None

    @property
    def state_folder(self) -> Path:
        """Where the supervisor keeps the identity of the simulated server."""
        return self.folder / "backend"

    def start_backend(self, *arguments: str) -> None:
        """The simulated server under its supervisor."""
        self.state_folder.mkdir(exist_ok=True)
        server = [sys.executable, "-m", "demo.vllm", "--port", str(self.ports.backend), "--model", "tiny", *arguments]
        supervisor = [sys.executable, "-m", "demo.supervisor", "--state", str(self.state_folder), "--", *server]
        self.parts.start("backend", supervisor, f"{self.backend_url}/health")

    def start_traffic(self, clients: int = 4) -> Part:
        """A batch job that keeps requests in flight."""
        argv = [sys.executable, "-m", "demo.traffic", "--url", self.backend_url, "--clients", str(clients)]
        return self.parts.start("traffic", [*argv, "--max-tokens", "400"])

    def start_exporter(self, limits: Mapping[str, float] | None = None) -> None:
        """The exporter on one backend; short limits for the simulated server only."""
        chosen = limits if limits is not None else (SHORT_LIMITS if self.simulated else {})
        content: dict[str, Any] = {
            "poll_interval_seconds": 1 if self.simulated else 5,
            "poll_timeout_seconds": 3 if self.simulated else 5,
            "backends": [{"name": NAME, "url": self.backend_url, "runtime": "vllm", "group": NAME}],
        }
        if chosen:
            content["limits"] = dict(chosen)
        path = self._write("exporter.yml", content)
        address = f"127.0.0.1:{self.ports.exporter}"
        argv = [sys.executable, "-m", "exporter", "--config.file", str(path), "--web.listen-address", address]
        self.exporter = self.parts.start("exporter", [*argv, "--log.format", "json"], f"http://{address}/-/ready")

    def start_remediator(self) -> None:
        """The remediator with the command driver; in advise mode it never restarts anything."""
        supervisor = [sys.executable, "-m", "demo.supervisor"]
        state = ["--state", str(self.state_folder)]
        driver = {
            "kind": "command",
            "restart": [*supervisor, "restart", *state],
            "identity": [*supervisor, "identity", *state],
            "timeout_seconds": 20,
        }
        if not self.simulated:
            driver |= {"restart": ["false"], "identity": ["echo", "not-ours"]}
        content = {
            "mode": self.mode,
            "exporter_urls": [f"http://127.0.0.1:{self.ports.exporter}"],
            "journal_url": f"sqlite:///{self.folder / 'journal.db'}",
            "webhook": {"bearer_token_file": str(self.token_file)},
            "limits": {"decide_every_seconds": 1},
            "backends": [{"name": NAME, "group": NAME, "driver": driver, "restart_on": ["stuck"]}],
        }
        path = self._write("remediator.yml", content)
        address = f"127.0.0.1:{self.ports.remediator}"
        argv = [sys.executable, "-m", "remediator", "--config.file", str(path), "--web.listen-address", address]
        self.parts.start("remediator", [*argv, "--log.format", "json"], f"http://{address}/-/ready")

    def start_alertmanager(self) -> None:
        """Alertmanager with the example routes, at this chain's addresses."""
        content = yaml.safe_load((ROOT / "config" / "alertmanager.yml").read_text())
        for receiver in content["receivers"]:
            for hook in receiver.get("webhook_configs", []):
                hook["url"] = f"http://127.0.0.1:{self.ports.remediator}/api/v1/alerts"
                hook["http_config"]["authorization"]["credentials_file"] = str(self.token_file)
        path = self._write("alertmanager.yml", content)
        address = f"127.0.0.1:{self.ports.alertmanager}"
        argv = [find_program("alertmanager"), f"--config.file={path}", f"--storage.path={self.folder / 'alertmanager'}"]
        argv += [f"--web.listen-address={address}", "--cluster.listen-address="]
        self.parts.start("alertmanager", argv, f"http://{address}/-/ready")

    def start_prometheus(self) -> None:
        """Prometheus with the project's rules, scraping and deciding once a second."""
        content = yaml.safe_load((ROOT / "config" / "prometheus.yml").read_text())
        content["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
        content["global"].pop("scrape_timeout", None)
        content["rule_files"] = [str(ROOT / "rules" / "alerts" / "*.yml"), str(ROOT / "rules" / "recording.yml")]
        targets = {"stallwatch-exporter": self.ports.exporter, "stallwatch-remediator": self.ports.remediator}
        for job in content["scrape_configs"]:
            job.pop("scrape_interval", None)
            job["static_configs"] = [{"targets": [f"127.0.0.1:{targets[job['job_name']]}"]}]
        content["alerting"] = {
            "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{self.ports.alertmanager}"]}]}]
        }
        path = self._write("prometheus.yml", content)
        address = f"127.0.0.1:{self.ports.prometheus}"
        argv = [find_program("prometheus"), f"--config.file={path}", f"--storage.tsdb.path={self.folder / 'tsdb'}"]
        self.parts.start("prometheus", [*argv, f"--web.listen-address={address}"], f"http://{address}/-/ready")

    def _write(self, name: str, content: Any) -> Path:
        path = self.folder / name
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    def fault(self, what: str) -> None:
        """Cause a fault in the simulated server, for example `freeze` or `prefill?seconds=30`."""
        post(f"{self.backend_url}/demo/{what}").raise_for_status()

    def backend(self) -> Mapping[str, Any]:
        """What the exporter says of the backend; empty while it cannot be asked."""
        with contextlib.suppress(requests.RequestException, ValueError):
            document: Mapping[str, Any] = get(f"http://127.0.0.1:{self.ports.exporter}/api/v1/backends/{NAME}").json()
            return document
        return {}

    def actions(self) -> list[Mapping[str, Any]]:
        """The remediator's attempts, newest first."""
        with contextlib.suppress(requests.RequestException, ValueError):
            found: list[Mapping[str, Any]] = get(f"http://127.0.0.1:{self.ports.remediator}/api/v1/actions").json()[
                "attempts"
            ]
            return found
        return []

    def firing(self) -> set[str]:
        """The names of the alerts that fire in Prometheus."""
        with contextlib.suppress(requests.RequestException, ValueError):
            alerts = get(f"http://127.0.0.1:{self.ports.prometheus}/api/v1/alerts").json()["data"]["alerts"]
            return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}
        return set()

    def identity(self) -> str:
        """The supervisor's word for the process that runs now."""
        return (self.state_folder / "identity").read_text().strip()

    def logged(self, part: str) -> Iterator[Mapping[str, Any]]:
        """The JSON log lines of a part, from its start."""
        path = self.folder / f"{part}.log"
        if not path.exists():
            return
        for line in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict):
                    yield entry


__all__ = ["NAME", "Chain", "ChainError", "Parts"]
