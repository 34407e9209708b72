"""Both programs behind TLS and users, and the exporter's backends from lists, as a real Prometheus sees them."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import yaml

from demo.parts import Parts, free_port, wait_for
from stallwatch.http import Client, HttpFailed, Response
from tests import certificates
from tests.prometheus import Prometheus, prometheus
from tests.remediator.test_alerts import one, payload

pytestmark = pytest.mark.e2e
USERS = {"reader": "read", "alertmanager": "write"}


class Site:
    """A folder with certificates and a web configuration, and both programs behind it."""

    def __init__(self, folder: Path, parts: Parts) -> None:
        self.folder, self.parts = folder, parts
        self.exporter, self.remediator = free_port(), free_port()
        certificates.make(folder, "ca")
        certificates.make(folder, "server", "ca")
        hashes = {name: bcrypt.hashpw(word.encode(), bcrypt.gensalt(8)).decode() for name, word in USERS.items()}
        pair = {"cert_file": "server.crt", "key_file": "server.key"}
        self._write("web.yml", basic_auth_users=hashes, tls_server_config=pair)
        for name, word in {**USERS, "wrong": "guess"}.items():
            (folder / f"{name}.password").write_text(word)

    def _write(self, name: str, **content: Any) -> Path:
        (self.folder / name).write_text(yaml.safe_dump(content))
        return self.folder / name

    def configure(self, *static: str) -> Path:
        """The exporter's file: a list of targets, and backends of its own."""
        backends = [{"name": name, "url": f"http://127.0.0.1:1/{name}"} for name in static]
        rule = {"source_labels": ["host"], "target_label": "backend"}
        entry = {"file_sd_configs": [{"files": ["targets/*.json"]}], "relabel_configs": [rule]}
        return self._write("exporter.yml", backends=backends, discovery=[entry])

    def discover(self, *hosts: str) -> None:
        """What the list says."""
        (self.folder / "targets").mkdir(exist_ok=True)
        groups = [
            {"targets": ["127.0.0.1:1"], "labels": {"host": h, "__metrics_path__": f"/{h}/metrics"}} for h in hosts
        ]
        (self.folder / "targets" / "new").write_text(json.dumps(groups))
        (self.folder / "targets" / "new").rename(self.folder / "targets" / "list.json")

    def start(self) -> None:
        """Both programs, served when this returns."""
        web = ["--web.config.file", str(self.folder / "web.yml"), "--web.listen-address"]
        config = ["--config.file", str(self.configure("static"))]
        exporter = [sys.executable, "-m", "exporter", *config, *web, f"127.0.0.1:{self.exporter}"]
        self.process = self.parts.start("exporter", [*exporter, "--web.enable-lifecycle"])
        driver = {"kind": "command", "restart": ["true"], "identity": ["echo", "1"]}
        path = self._write(
            "remediator.yml",
            mode="advise",
            exporter_urls=[f"https://127.0.0.1:{self.exporter}"],
            exporter_access={
                "ca_file": str(self.folder / "ca.crt"),
                "username": "reader",
                "password_file": str(self.folder / "reader.password"),
            },
            journal_url=f"sqlite:///{self.folder}/journal.db",
            webhook={"username": "alertmanager", "password_file": str(self.folder / "alertmanager.password")},
            backends=[{"name": "static", "restart_on": ["stuck"], "driver": driver}],
        )
        remediator = [sys.executable, "-m", "remediator", "--config.file", str(path), *web]
        self.parts.start("remediator", [*remediator, f"127.0.0.1:{self.remediator}"])
        for port in (self.exporter, self.remediator):
            wait_for(lambda port=port: self.ask(port, "/-/ready").status == 200, 30, "not ready")

    def ask(self, port: int, path: str, user: str | None = "reader", **more: Any) -> Response:
        """A request of this user."""
        headers = {}
        if user is not None:
            pair = f"{user}:{(self.folder / f'{user}.password').read_text()}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        client = Client(headers, ca_file=str(self.folder / "ca.crt"))
        try:
            method = more.pop("method", "GET")
            url = f"https://127.0.0.1:{port}{path}"
            return client.request(method, url, timeout_seconds=10, max_bytes=10_000_000, **more)
        except HttpFailed as failed:
            return Response(0, str(failed).encode(), {})
        finally:
            client.close()

    def backends(self) -> list[str]:
        """The names that the exporter watches."""
        listed = json.loads(self.ask(self.exporter, "/api/v1/backends").body)["backends"]
        return [entry["name"] for entry in listed]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Both programs; they end with the test."""
    with Parts() as parts:
        made = Site(tmp_path, parts)
        made.start()
        yield made


def test_prometheus_scrapes_both_over_tls_with_a_user(site: Site) -> None:
    """The right password is up, the wrong one and none are not; the backends of a list become series."""
    site.discover("gb10")
    wait_for(lambda: site.backends() == ["gb10", "static"], 20, "the list was not read")
    jobs = []
    for name, port in (("exporter", site.exporter), ("remediator", site.remediator)):
        for user in ("reader", "wrong", None):
            job: dict[str, Any] = {"job_name": f"{name}-{user}", "scheme": "https"}
            job["tls_config"] = {"ca_file": str(site.folder / "ca.crt")}
            job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
            if user is not None:
                job["basic_auth"] = {"username": "reader", "password_file": str(site.folder / f"{user}.password")}
            jobs.append(job)
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    with prometheus(yaml.safe_dump(config), site.folder) as server:

        def scraped(it: Prometheus) -> dict[str, str] | None:
            found = {target["scrapePool"]: target["health"] for target in it.get("targets")["activeTargets"]}
            return found if len(found) == len(jobs) and "unknown" not in found.values() else None

        health = server.wait_for(scraped)
        assert health == {
            f"{program}-{user}": "up" if user == "reader" else "down"
            for program in ("exporter", "remediator")
            for user in ("reader", "wrong", None)
        }
        series = server.wait_for(lambda it: it.get("query?query=stallwatch_backend_info")["result"])
        assert {row["metric"]["backend"] for row in series} == {"gb10", "static"}
        refused = server.get("query?query=stallwatch_discovery_refresh_failures_total")["result"]
        counted = {row["metric"]["mechanism"]: row["value"][1] for row in refused}
        assert counted == {"file": "0", "http": "0", "kubernetes": "0"}


def test_users_who_may_read_may_not_write(site: Site) -> None:
    """A delivery of Alertmanager's own user is taken, and the exporter's evidence is read with the reader's."""
    body = json.loads(payload(one("firing", backend="static")))
    for user, status in ((None, 401), ("wrong", 401), ("reader", 401), ("alertmanager", 202)):
        assert site.ask(site.remediator, "/api/v1/alerts", user, method="POST", json=body).status == status
    for path in ("/", "/metrics", "/-/healthy"):
        for port in (site.exporter, site.remediator):
            assert site.ask(port, path, None).status == 401

    def decided() -> str:
        return str(site.ask(site.remediator, "/api/v1/actions").body)

    wait_for(lambda: "not_confirmed" in decided(), 30, "no decision")
    assert "evidence_unavailable" not in decided()


def test_reload_and_hangup_read_everything_again(site: Site) -> None:
    """The file and its lists; what fails is told and changes nothing; what vanished is watched again."""
    site.discover("a", "b")
    site.configure("static", "second")
    assert site.ask(site.exporter, "/-/reload", method="POST").status == 200
    assert site.backends() == ["a", "b", "second", "static"]
    site.discover("b")
    site.configure("static")
    assert site.process.process is not None
    os.kill(site.process.process.pid, signal.SIGHUP)
    wait_for(lambda: site.backends() == ["b", "static"], 20, "not read again")
    (site.folder / "exporter.yml").write_text("discovery: [{}]\nnonsense: 1\n")
    assert site.ask(site.exporter, "/-/reload", method="POST").status == 500
    assert site.backends() == ["b", "static"]
    (site.folder / "targets" / "list.json").write_text("[{")
    wait_for(
        lambda: b'refresh_failures_total{mechanism="file"} 1.0' in site.ask(site.exporter, "/metrics").body, 20, "?"
    )
    assert site.backends() == ["b", "static"]
