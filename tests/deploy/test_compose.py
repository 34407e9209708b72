"""docker-compose.yml, the Dockerfile and config/compose: their schemas, our own loaders, and that they fit together."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from stallwatch import __version__
from tests.deploy.files import COMPOSE, CONFIG, OURS, read, run
from tests.deploy.files import ours as check
from tests.tools import ROOT, run_tool

SERVICES: dict[str, Any] = read(COMPOSE)["services"]
PINNED = re.compile(r"[a-z0-9./-]+:v?\d+\.\d+(\.\d+)?(-[a-z0-9.-]+)?")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
FOLDERS = [CONFIG, CONFIG / "demo"]
OURS_SERVICES = [name for name, service in SERVICES.items() if service["image"] == OURS]


def mounts() -> list[tuple[str, str, str]]:
    """Service, path on the host and path in the container of every bind mount, by the defaults."""
    found = []
    for name, service in SERVICES.items():
        for text in service.get("volumes", []):
            source, target, *_ = text.replace("${STALLWATCH_CONFIG:-./config/compose}", "./config/compose").split(":")
            if source.startswith(("./", "/")):
                found.append((name, source, target))
    return found


def test_the_compose_file_fits_the_compose_schema(tmp_path: Path) -> None:
    """And the check finds a service with a key that Compose does not know."""
    arguments = ["check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    found = run(*arguments, COMPOSE)
    assert found.returncode == 0, found.stdout
    broken = tmp_path / "docker-compose.yml"
    broken.write_text("services: {a: {image: 'a:1', imagine: true}}", encoding="ascii")
    assert run(*arguments, broken).returncode == 1


def test_every_image_is_pinned_and_ours_has_our_version() -> None:
    """Never `latest`: what was checked is what runs."""
    images = [service["image"] for service in SERVICES.values()]
    images += re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert len(images) == len(SERVICES) + 2
    assert [image for image in images if not PINNED.fullmatch(image)] == []
    assert f"stallwatch:{__version__}" == OURS


def test_only_loopback_is_published() -> None:
    """Docker's own firewall rules open a published port to the world, whatever the host's firewall says."""
    ports = {name: port for name, service in SERVICES.items() for port in service.get("ports", [])}
    assert {"exporter", "remediator", "prometheus", "alertmanager", "grafana"} <= ports.keys()
    assert all(port.startswith("127.0.0.1:") for port in ports.values())
    assert "docker-proxy" not in ports


def test_every_service_gives_up_what_it_does_not_need() -> None:
    """No capability, no new privileges, no root beside the proxy, whose socket is root's."""
    for name, service in SERVICES.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        assert "user" not in service or name == "docker-proxy", name
        assert service.get("read_only") or name == "grafana", name
    user = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)
    assert user == ["10001:10001"]


def test_only_the_proxy_has_the_socket_and_only_the_remediator_the_proxy() -> None:
    """Whoever reaches the socket is root on the host."""
    assert [name for name, source, _ in mounts() if "docker.sock" in source] == ["docker-proxy"]
    assert SERVICES["docker-proxy"]["networks"] == ["engine"]
    assert [name for name, service in SERVICES.items() if "engine" in service["networks"]] == [
        "remediator",
        "docker-proxy",
    ]
    assert read(COMPOSE)["networks"]["engine"]["internal"] is True


def test_every_file_that_is_mounted_is_there() -> None:
    """Docker makes an empty folder of a missing one, and says nothing."""
    missing = [source for _, source, _ in mounts() if source.startswith("./") and not (ROOT / source).exists()]
    assert missing == []


@pytest.mark.parametrize("name", OURS_SERVICES)
def test_the_health_check_of_our_programs_asks_the_port_that_they_serve(name: str) -> None:
    """The image has one check; a service with another port says so."""
    service = SERVICES[name]
    if service.get("healthcheck") == {"disable": True}:
        assert "ports" not in service
        return
    default = re.search(r"STALLWATCH_HEALTH_URL=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert default is not None
    url = service.get("environment", {}).get("STALLWATCH_HEALTH_URL", default[1])
    assert url.startswith(f"http://127.0.0.1:{service['ports'][0].rpartition(':')[2]}/")


def test_the_other_services_have_a_health_check() -> None:
    """Of their own, on a port that they serve."""
    for name, service in SERVICES.items():
        if name not in OURS_SERVICES:
            assert service["healthcheck"]["test"][:2] == ["CMD", "wget"], name
            assert re.match(r"http://127\.0\.0\.1:\d+/", service["healthcheck"]["test"][-1]), name


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_our_programs_take_their_configurations(folder: Path, tmp_path: Path) -> None:
    """With the very arguments of the compose file and the Dockerfile."""
    default = re.search(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert default is not None
    assert check(json.loads(default[1]), tmp_path, folder / "exporter.yml") == 0
    assert check(SERVICES["remediator"]["command"], tmp_path, folder / "remediator.yml") == 0


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_backend_has_one_name_in_both_programs(folder: Path) -> None:
    """And the remediator restarts through the proxy only."""
    exporter, remediator = read(folder / "exporter.yml"), read(folder / "remediator.yml")
    assert [backend["name"] for backend in remediator["backends"]] == [
        backend["name"] for backend in exporter["backends"]
    ]
    assert {backend["driver"]["host"] for backend in remediator["backends"]} == {"tcp://docker-proxy:2375"}


def test_it_only_advises_unless_somebody_says_otherwise() -> None:
    """The demonstration restarts the simulated server, by its container's name, and nothing else."""
    assert read(CONFIG / "remediator.yml")["mode"] == "advise"
    demo = read(CONFIG / "demo" / "remediator.yml")
    assert demo["mode"] == "restart"
    assert [backend["driver"]["container"] for backend in demo["backends"]] == [
        SERVICES["demo-server"]["container_name"]
    ]
    variables = dict(line.split("=") for line in (CONFIG / "demo.env").read_text().splitlines() if line[0] != "#")
    assert variables == {"COMPOSE_PROFILES": "demo", "STALLWATCH_CONFIG": "./config/compose/demo"}
    assert {name for name, service in SERVICES.items() if "profiles" in service} == {"demo-server", "demo-traffic"}


def test_docker_gives_a_restart_the_time_that_it_needs() -> None:
    """`docker compose down` while a restart is under way."""
    longest = 0.0
    for folder in FOLDERS:
        for backend in read(folder / "remediator.yml")["backends"]:
            longest = max(longest, backend["driver"]["stop_seconds"] + 90.0)
    assert float(SERVICES["remediator"]["stop_grace_period"].removesuffix("s")) > longest


def test_promtool_takes_the_configuration_with_the_rules_where_they_are_mounted(tmp_path: Path) -> None:
    """Every mount of the service, laid out as in the container."""
    for _, source, target in (mount for mount in mounts() if mount[0] == "prometheus"):
        copy = tmp_path / target.removeprefix("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / source).is_dir() else shutil.copy)(ROOT / source, copy)
    found = run_tool("promtool", "check", "config", tmp_path / "etc" / "prometheus" / "prometheus.yml")
    assert found.returncode == 0, found.stdout
    assert "SUCCESS: 4 rule files found" in found.stdout


def test_prometheus_asks_services_that_are_there() -> None:
    """By the names and ports of the compose file, and with the job names of the example."""
    config, example = read(CONFIG / "prometheus.yml"), read(ROOT / "config" / "prometheus.yml")
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert targets.keys() == {job["job_name"] for job in example["scrape_configs"]}
    targets["alertmanager"] = config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    for target in (target for found in targets.values() for target in found):
        service, _, port = target.partition(":")
        assert SERVICES[service]["ports"][0].endswith(f":{port}")


def test_alertmanager_is_the_example_with_two_addresses_put_in() -> None:
    """The routes are tested at the example; here they must not drift."""
    found = run_tool("amtool", "check-config", CONFIG / "alertmanager.yml")
    assert found.returncode == 0, found.stdout
    text = (ROOT / "config" / "alertmanager.yml").read_text(encoding="utf-8")
    expected = text.replace("http://127.0.0.1:9841/", "http://remediator:9841/").replace(
        "/etc/stallwatch/webhook.token", "/run/secrets/webhook_token"
    )
    assert (CONFIG / "alertmanager.yml").read_text(encoding="utf-8") == expected


def test_secrets_are_files_that_git_does_not_take() -> None:
    """Named by the configurations as Docker mounts them, shared by those who need them."""
    secrets = read(COMPOSE)["secrets"]
    assert all(secret.keys() == {"file"} for secret in secrets.values())
    for name, service in SERVICES.items():
        assert set(service.get("secrets", [])) <= secrets.keys(), name
        assert not any("PASSWORD" in key and not key.endswith("__FILE") for key in service.get("environment", {}))
    for path in (CONFIG / "remediator.yml", CONFIG / "demo" / "remediator.yml", CONFIG / "alertmanager.yml"):
        assert "/run/secrets/webhook_token" in path.read_text(encoding="utf-8")
    ignored = (CONFIG / "secrets" / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert [line for line in ignored if not line.startswith("#")] == ["*", "!.gitignore"]
    assert {Path(secret["file"]).parent for secret in secrets.values()} == {Path("config/compose/secrets")}


def test_grafana_finds_its_data_source_and_dashboards() -> None:
    """The data source is the example with Prometheus's address; dashboards stand where their provider looks."""
    text = (ROOT / "grafana" / "provisioning" / "datasources" / "prometheus.yml").read_text(encoding="utf-8")
    expected = text.replace("http://127.0.0.1:9090", "http://prometheus:9090")
    assert (CONFIG / "grafana-datasource.yml").read_text(encoding="utf-8") == expected
    targets = {target: source for name, source, target in mounts() if name == "grafana"}
    provider = read(ROOT / targets["/etc/grafana/provisioning/dashboards/stallwatch.yml"])["providers"][0]
    assert list((ROOT / targets[provider["options"]["path"]]).glob("*.json"))
