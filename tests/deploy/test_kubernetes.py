"""deploy/kubernetes: the API's own schemas, the shapes of two kinds that it lacks, and that the parts fit together."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from stallwatch import __version__
from tests.deploy.files import KUBERNETES, OURS, read, run
from tests.deploy.files import ours as check
from tests.deploy.shapes import CUSTOM, SHAPES, Json
from tests.realparts import need
from tests.tools import ROOT, run_tool

VERSIONS = ("1.29", "1.32", "1.37")
NAME = "app.kubernetes.io/name"


def objects() -> list[Json]:
    """Every object of every file that kustomization.yaml names."""
    return [
        found
        for name in read(KUBERNETES / "kustomization.yaml")["resources"]
        for found in yaml.safe_load_all((KUBERNETES / name).read_text(encoding="utf-8"))
    ]


OBJECTS = objects()


def title(found: Json) -> str:
    """How a test calls it."""
    return f"{found['kind']} {found['metadata']['name']}"


def of(kind: str) -> dict[str, Json]:
    """All objects of a kind, by name."""
    return {found["metadata"]["name"]: found for found in OBJECTS if found["kind"] == kind}


def pods() -> dict[str, Json]:
    """The pod templates, by the name of their workload."""
    return {
        name: found["spec"]["template"] for kind in ("Deployment", "StatefulSet") for name, found in of(kind).items()
    }


def test_every_manifest_is_named_and_no_more() -> None:
    """A file that kustomization.yaml forgets is never applied."""
    named = set(read(KUBERNETES / "kustomization.yaml")["resources"])
    assert named == {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"}


@pytest.mark.parametrize("found", OBJECTS, ids=title)
def test_it_fits_its_schema(found: Json) -> None:
    """Strictly, by the schemas of an old, a middle and the newest version; by our own for the operator's kinds."""
    if found["apiVersion"] == CUSTOM:
        jsonschema.validate(found, SHAPES[found["kind"]])
        return
    for version in VERSIONS:
        kubernetes_validate.validate(found, version, strict=True)


def test_the_check_finds_a_mistake() -> None:
    """A key that the API does not know, and one that the operator does not know."""
    wrong: Json = json.loads(json.dumps(of("Deployment")["stallwatch-exporter"]))
    wrong["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)
    wrong = json.loads(json.dumps(of("ServiceMonitor")["stallwatch-exporter"]))
    wrong["spec"]["endpoints"][0]["scrape_timeout"] = "10s"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SHAPES["ServiceMonitor"])


def test_kustomize_builds_it() -> None:
    """As `kubectl kustomize` does; it needs no cluster."""
    if shutil.which("kubectl") is None:
        need("kubectl kustomize", "there is no kubectl, and Debian has no package of it")
    need("kubectl kustomize", None)
    found = run("kubectl", "kustomize", KUBERNETES)
    assert found.returncode == 0, found.stdout
    built = [one for one in yaml.safe_load_all(found.stdout) if one]
    maps = [one["metadata"]["name"] for one in built if one["kind"] == "ConfigMap"]
    assert len(built) == len(OBJECTS) + len(maps)
    text = json.dumps(built)
    for name in maps:  # with a hash, by which the Deployments name them
        assert text.count(f'{{"name": "{name}"}}') == 1
    assert {one["metadata"]["namespace"] for one in built if one["kind"] == "Role"} == {"llm"}


def test_the_rules_are_those_of_the_project(tmp_path: Path) -> None:
    """In step with rules/, and what promtool reads out of them is the same number of rules."""
    found = run(sys.executable, KUBERNETES / "build.py", "--check")
    assert found.returncode == 0, found.stdout
    copy = tmp_path / "rules.yml"
    copy.write_text(yaml.safe_dump(of("PrometheusRule")["stallwatch"]["spec"]), encoding="utf-8")
    sources = [*sorted((ROOT / "rules" / "alerts").glob("*.yml")), ROOT / "rules" / "recording.yml"]
    expected = [group for path in sources for group in read(path)["groups"]]
    assert of("PrometheusRule")["stallwatch"]["spec"]["groups"] == expected
    checked = run_tool("promtool", "check", "rules", copy)
    assert checked.returncode == 0, checked.stdout
    assert f"{sum(len(group['rules']) for group in expected)} rules found" in checked.stdout


def test_a_change_of_the_rules_is_noticed(tmp_path: Path) -> None:
    """By the script of a copy, whose rules have changed since."""
    for folder in ("rules/alerts", "deploy/kubernetes"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "rules" / "recording.yml", tmp_path / "rules")
    build = tmp_path / "deploy" / "kubernetes" / "build.py"
    assert run(sys.executable, build, "--check").returncode == 0
    with (tmp_path / "rules" / "recording.yml").open("a", encoding="utf-8") as file:
        file.write("      - {record: 'backend:one:max', expr: max by (backend) (up)}\n")
    found = run(sys.executable, build, "--check")
    assert (found.returncode, found.stdout) == (
        1,
        "deploy/kubernetes/prometheusrule.yaml is not in step with rules/: run deploy/kubernetes/build.py\n",
    )
    assert run(sys.executable, build).returncode == 0
    assert run(sys.executable, build, "--check").returncode == 0


def test_our_programs_take_their_configurations(tmp_path: Path) -> None:
    """With the very arguments of the manifests, on the addresses of the pods."""
    for name, template in pods().items():
        if name == "stallwatch-postgresql":
            continue
        (container,) = template["spec"]["containers"]
        file = KUBERNETES / "config" / f"{container['name']}.yml"
        assert check(container["args"], tmp_path, file) == 0
        (generated,) = [
            one for one in read(KUBERNETES / "kustomization.yaml")["configMapGenerator"] if one["name"] == name
        ]
        assert generated["files"] == [f"{file.name}=config/{file.name}"]


def test_the_configurations_fit_together() -> None:
    """One name for a backend, services that are there, advice only, and a Role in the models' namespace."""
    exporter, remediator = (read(KUBERNETES / "config" / f"{name}.yml") for name in ("exporter", "remediator"))
    assert remediator["mode"] == "advise"
    assert [one["name"] for one in exporter["backends"]] == [one["name"] for one in remediator["backends"]]
    assert remediator["exporter_urls"] == ["http://stallwatch-exporter.stallwatch.svc:9840"]
    assert "@stallwatch-postgresql.stallwatch.svc/" in remediator["journal_url"]
    services = of("Service")
    assert services["stallwatch-exporter"]["spec"]["ports"][0]["port"] == 9840
    namespaces = {found["metadata"]["namespace"] for found in of("Role").values()}
    assert {one["driver"]["namespace"] for one in remediator["backends"]} == namespaces


def test_two_replicas_share_a_database() -> None:
    """A SQLite journal in two pods would be two journals."""
    spec = of("Deployment")["stallwatch-remediator"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (2, "Recreate")
    assert read(KUBERNETES / "config" / "remediator.yml")["journal_url"].startswith("postgresql://")
    assert of("Deployment")["stallwatch-exporter"]["spec"]["replicas"] == 1


def test_every_pod_is_as_small_as_it_can_be() -> None:
    """What the standard `restricted` of the namespace asks for, and a root file system that cannot be written."""
    for name, template in pods().items():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert container["resources"]["limits"]["memory"], name
            assert {"livenessProbe", "readinessProbe"} <= container.keys(), name
        # Only the remediator talks to the API.
        if name != "stallwatch-remediator":
            assert spec["automountServiceAccountToken"] is False, name
    account = pods()["stallwatch-remediator"]["spec"]["serviceAccountName"]
    assert account in of("ServiceAccount")


def test_images_are_pinned() -> None:
    """Ours by our version, and where it is pulled from is said in one place."""
    images = {c["image"] for template in pods().values() for c in template["spec"]["containers"]}
    assert images == {OURS, "postgres:16.6"}
    (moved,) = read(KUBERNETES / "kustomization.yaml")["images"]
    assert (moved["name"], str(moved["newTag"])) == ("stallwatch", __version__)


def test_probes_services_and_monitors_name_ports_that_are_there() -> None:
    """And a Service's name is the label `job` that the rules look for."""
    rules = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "rules" / "alerts").glob("*.yml"))
    for name, service in of("Service").items():
        template = pods()[name]
        assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        ports = {port["name"] for c in template["spec"]["containers"] for port in c["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for name, monitor in of("ServiceMonitor").items():
        service = of("Service")[name]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert {one["port"] for one in monitor["spec"]["endpoints"]} <= {p["name"] for p in service["spec"]["ports"]}
        assert f'job="{name}"' in rules


def test_the_network_policies_let_through_what_is_needed_and_no_more() -> None:
    """Who may reach which port, by the labels of the pods."""
    policies = of("NetworkPolicy")
    assert policies["stallwatch-nothing-else"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    reached = {
        name: {
            (json.dumps(source, sort_keys=True), port["port"])
            for rule in policy["spec"].get("ingress", [])
            for source in rule["from"]
            for port in rule["ports"]
        }
        for name, policy in policies.items()
    }
    monitoring = json.dumps({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}})
    remediator = json.dumps({"podSelector": {"matchLabels": {NAME: "stallwatch-remediator"}}})
    assert reached["stallwatch-exporter"] == {(monitoring, 9840), (remediator, 9840)}
    assert reached["stallwatch-remediator"] == {(monitoring, 9841)}
    assert reached["stallwatch-postgresql"] == {(remediator, 5432)}
    for name in pods():
        assert policies[name]["spec"]["podSelector"]["matchLabels"] == {NAME: name}


def test_secrets_are_in_no_file() -> None:
    """The Secret is made by hand; the pods and the configuration name the same files of it."""
    assert of("Secret") == {}
    text = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    config = (KUBERNETES / "config" / "remediator.yml").read_text(encoding="utf-8")
    for key in ("webhook.token", "journal.password"):
        assert f"--from-file={key}=" in text
        assert f"/run/secrets/stallwatch/{key}" in config
    for name in ("stallwatch-remediator", "stallwatch-postgresql"):
        spec = pods()[name]["spec"]
        (volume,) = [one for one in spec["volumes"] if "secret" in one]
        assert volume["secret"]["secretName"] == "stallwatch-remediator"
        mounted = {one["name"]: one["mountPath"] for one in spec["containers"][0]["volumeMounts"]}
        assert mounted[volume["name"]] == "/run/secrets/stallwatch"


def test_kubernetes_gives_a_restart_the_time_that_it_needs() -> None:
    """The longest timeout of a driver fits into what a pod has to end."""
    assert pods()["stallwatch-remediator"]["spec"]["terminationGracePeriodSeconds"] > 120.0 + 5.0
