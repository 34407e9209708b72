"""The kubernetes driver: which life it names, when it refuses, and that it deletes one pod, once, and no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from remediator.drivers import Description
from remediator.drivers.kubernetes import KubernetesSettings
from stallwatch.settings import SettingsError, load_yaml
from tests.remediator.drivers.kubernetes_api import TOKEN, Right
from tests.remediator.drivers.kubernetes_cluster import NAMESPACE, NO_GPU, Cluster, Object, stamp, template
from tests.remediator.drivers.kubernetes_stage import (
    ROLLOUT,
    SET_ROLLOUT,
    Hands,
    KubernetesStage,
    changes,
    fails,
)

RBAC = Path(__file__).parents[3] / "deploy" / "kubernetes" / "rbac.yaml"


# Settings.

BASE = "kind: kubernetes\nnamespace: llm\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "exactly one of pod and selector must be set"),
        ("pod: a\nselector: app=a", "exactly one of pod and selector must be set"),
        ("pod: ../secrets/x", "pod: must be a name in Kubernetes: small letters, digits, dash and dot"),
        ("pod: a..b", "pod: must be a name in Kubernetes: small letters, digits, dash and dot"),
        ("pod: ''", "pod: must be a name in Kubernetes: small letters, digits, dash and dot"),
        ("selector: ' , '", "selector: must select by a label, such as app=vllm; an empty selector fits every pod"),
        ("pod: a\naction: restart_workload", "workload belongs to action: restart_workload, and is needed there"),
        ("pod: a\nworkload: {kind: StatefulSet, name: a}",
         "workload belongs to action: restart_workload, and is needed there"),
        ("pod: a\naction: restart_workload\nworkload: {kind: DaemonSet, name: a}",
         "workload.kind: must be one of 'Deployment' or 'StatefulSet'"),
        ("pod: a\naction: restart_workload\nworkload: {kind: Deployment, name: a}",
         "the pods of a Deployment change their names: use selector instead of pod"),
        ("selector: a=b\naction: restart_workload\ngrace_seconds: 5\nworkload: {kind: Deployment, name: a}",
         "grace_seconds belongs to action: delete_pod; a rollout takes the pod's own"),
        ("pod: a\naction: evict", "action: must be one of 'delete_pod' or 'restart_workload'"),
        ("pod: a\ngrace_seconds: 0", "grace_seconds: must be greater than or equal to 1"),
        ("pod: a\ncontext: b", "context needs kubeconfig"),
        ("pod: a\nkubeconfg: b", "kubeconfg: unknown key; did you mean kubeconfig?"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    """Before anything is asked of any API."""
    path = tmp_path / "driver.yml"
    path.write_text(BASE + text)
    with pytest.raises(SettingsError) as caught:
        load_yaml(path, KubernetesSettings)
    assert str(caught.value) == f"{path}: {message}"


def test_the_namespace_is_needed() -> None:
    """No namespace of a kubeconfig's context is taken for it."""
    with pytest.raises(ValidationError):
        KubernetesSettings.model_validate({"kind": "kubernetes", "pod": "a"})


def test_a_missing_client_is_said_once_and_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is optional."""
    monkeypatch.setitem(sys.modules, "kubernetes.client", None)
    with pytest.raises(SettingsError) as caught:
        KubernetesSettings(kind="kubernetes", namespace="llm", pod="a").make()
    assert str(caught.value) == ("driver kubernetes: its client is not installed: pip install 'stallwatch[kubernetes]'")


def test_the_client_is_not_loaded_before_it_is_needed() -> None:
    """It takes half a second and more: nobody who restarts by other means waits for it."""
    code = "import sys, remediator.config; sys.exit('kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# Which life it is.


def test_the_identity_is_pod_uid_and_container(kubernetes_stage: KubernetesStage) -> None:
    """Named so that a person finds it with kubectl."""
    pod = kubernetes_stage.cluster.pod()
    number = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")[:12]
    wanted = f"{pod['metadata']['name']}/{pod['metadata']['uid']}/{number}"
    assert kubernetes_stage.driver.describe() == Description(wanted, True)


def test_a_container_started_again_in_its_pod_is_another_life(kubernetes_stage: KubernetesStage) -> None:
    """A liveness probe or the kernel's memory killer was faster: the request of the old life must not hit it."""
    before = kubernetes_stage.driver.describe().identity
    kubernetes_stage.kill_outside()
    found = kubernetes_stage.driver.describe()
    assert found.identity not in (None, before)
    assert found.running is True


def test_a_deployment_has_no_identity_until_the_new_server_runs(
    kubernetes_stage: KubernetesStage, hands: Hands
) -> None:
    """The replacement waits for the old one's GPU: a pod that waits is no restart."""
    driver = kubernetes_stage.driver
    before = driver.describe().identity
    driver.restart(10.0)
    found = driver.describe()
    assert (found.identity, found.running) == (None, False)
    assert found.detail.endswith(f"is Pending: {NO_GPU}")
    hands.now = 15.0  # the old server has ended
    found = driver.describe()
    assert (found.identity, found.running) == (None, False)
    hands.now = 40.0
    found = driver.describe()
    assert found.identity not in (None, before)
    assert found.running is True


def test_a_stateful_pod_keeps_its_identity_until_it_has_ended(stateful: KubernetesStage, hands: Hands) -> None:
    """By its name one first sees the old life end, then none, then the new one."""
    driver = stateful.make(pod="vllm-0")
    before = driver.describe().identity
    driver.restart(10.0)
    found = driver.describe()
    assert (found.identity, found.running) == (before, False)
    assert found.detail.startswith("pod vllm-0 is already terminating; it should have ended by 20")
    hands.now = 15.0
    assert driver.describe() == Description(None, False, "pod vllm-0 is Pending")
    hands.now = 40.0
    found = driver.describe()
    assert found.identity not in (None, before)
    assert found.running is True


def set_state(cluster: Cluster, state: Object) -> None:
    """Another state of the pod's containers."""
    cluster.start_container(cluster.pod(), 3, state)


def loop(cluster: Cluster) -> None:
    """The container fails again and again."""
    set_state(cluster, {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}})


def ended(cluster: Cluster) -> None:
    """Killed by the kernel, not yet started again."""
    set_state(cluster, {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": stamp()}})


def evicted(cluster: Cluster) -> None:
    """The kubelet gave it up; the object stays listed beside its replacement."""
    pod = cluster.pod()
    pod["status"] = {"phase": "Failed", "reason": "Evicted"}
    cluster.objects = {key: thing for key, thing in cluster.objects.items() if key[0] == "pods"}


def second(cluster: Cluster) -> None:
    """Two replicas."""
    cluster.gpus = 2
    cluster.new_pod("vllm-other", template({"app": "vllm"}), None)


def sidecar(cluster: Cluster) -> None:
    """A proxy was injected before the server."""
    spec = cluster.pod()["spec"]
    spec["containers"].insert(0, {"name": "istio-proxy", "image": "proxy:1"})


def without_id(cluster: Cluster) -> None:
    """A kubelet that does not tell the ID."""
    del cluster.pod()["status"]["containerStatuses"][0]["containerID"]


def gone(cluster: Cluster) -> None:
    """Nothing is left."""
    cluster.remove("deployments", "vllm")


@pytest.mark.parametrize(
    ("happens", "running", "detail"),
    [
        (loop, False, "container vllm of pod POD is waiting: CrashLoopBackOff: back-off 5m0s"),
        (ended, False, "container vllm of pod POD has ended with status 137: OOMKilled"),
        (evicted, False, "no live pod matches app=vllm"),
        (second, None, "2 live pods match app=vllm: POD, vllm-other"),
        (sidecar, None, "pod POD has 2 containers (istio-proxy, vllm): name one of them"),
        (without_id, True, "pod POD: the API tells no ID of container vllm"),
        (gone, False, "no live pod matches app=vllm"),
    ],
)  # fmt: skip
def test_without_a_certain_life_there_is_no_identity(
    kubernetes_stage: KubernetesStage, happens: Any, running: bool | None, detail: str
) -> None:
    """And a line that says why; `running` is only denied where the API said so."""
    name = kubernetes_stage.cluster.pod()["metadata"]["name"]
    happens(kubernetes_stage.cluster)
    assert kubernetes_stage.driver.describe() == Description(None, running, detail.replace("POD", name))


def test_the_container_can_be_named(kubernetes_stage: KubernetesStage) -> None:
    """With a sidecar the right one's life counts."""
    before = kubernetes_stage.driver.describe().identity
    sidecar(kubernetes_stage.cluster)
    assert kubernetes_stage.make(container="vllm").describe().identity == before
    found = kubernetes_stage.make(container="server").describe()
    assert (found.identity, found.running) == (None, None)
    assert found.detail.endswith("has no container server, only istio-proxy, vllm")


# The restart by deletion.


def test_one_delete_of_the_pod_that_was_read(kubernetes_stage: KubernetesStage) -> None:
    """Bound to its UID, with the pod's own grace unless another is configured."""
    uid = kubernetes_stage.cluster.pod()["metadata"]["uid"]
    kubernetes_stage.driver.restart(10.0)
    assert changes(kubernetes_stage) == ["delete"]
    assert kubernetes_stage.api.bodies == [{"preconditions": {"uid": uid}}]


def test_the_grace_can_be_set(kubernetes_stage: KubernetesStage, hands: Hands) -> None:
    """A server that is stuck seldom ends when it is asked to."""
    kubernetes_stage.make(grace_seconds=5).restart(10.0)
    assert kubernetes_stage.api.bodies[0]["gracePeriodSeconds"] == 5
    assert kubernetes_stage.cluster.all("pods")[0]["metadata"]["deletionGracePeriodSeconds"] == 5


def test_a_replacement_is_never_deleted(stateful: KubernetesStage) -> None:
    """Somebody else replaces the pod between our look and our call; the new one has the old one's name."""

    def replace(cluster: Cluster) -> None:
        del cluster.objects["pods", "vllm-0"]

    stateful.api.before_change = replace
    reason, detail = fails(stateful, pod="vllm-0")
    assert reason == "error"
    assert detail.startswith(
        "delete pod vllm-0: changed by somebody else in between, nothing done: 409 Operation cannot"
    )
    assert "deletionTimestamp" not in stateful.cluster.pod()["metadata"]
    assert changes(stateful) == ["delete"]


def test_a_pod_that_vanishes_in_between_is_not_found(kubernetes_stage: KubernetesStage) -> None:
    """Its replacement has another name and stays as well."""

    def replace(cluster: Cluster) -> None:
        del cluster.objects["pods", cluster.pod()["metadata"]["name"]]

    kubernetes_stage.api.before_change = replace
    name = kubernetes_stage.cluster.pod()["metadata"]["name"]
    assert fails(kubernetes_stage) == ("not_found", f'delete pod {name}: 404 pods "{name}" not found')
    assert "deletionTimestamp" not in kubernetes_stage.cluster.pod()["metadata"]


def leaving(cluster: Cluster) -> None:
    """Terminates, and nothing takes its place yet."""
    pod = cluster.pod()
    pod["metadata"]["finalizers"] = ["example.com/keep"]
    cluster.objects = {key: thing for key, thing in cluster.objects.items() if key[0] == "pods"}
    cluster.delete_pod(pod)


def orphan(cluster: Cluster) -> None:
    """Made by hand."""
    del cluster.pod()["metadata"]["ownerReferences"]
    cluster.objects = {key: thing for key, thing in cluster.objects.items() if key[0] == "pods"}


def adopted(cluster: Cluster) -> None:
    """An owner that is no controller only takes it along when it is deleted."""
    cluster.pod()["metadata"]["ownerReferences"][0]["controller"] = False
    cluster.objects = {key: thing for key, thing in cluster.objects.items() if key[0] == "pods"}


def static(cluster: Cluster) -> None:
    """From a file of the kubelet; the API only mirrors it."""
    cluster.pod()["metadata"]["ownerReferences"][0] |= {"kind": "Node", "name": "gb10", "apiVersion": "v1"}
    cluster.objects = {key: thing for key, thing in cluster.objects.items() if key[0] == "pods"}


@pytest.mark.parametrize(
    ("happens", "reason", "detail"),
    [
        (gone, "not_found", "no live pod matches app=vllm"),
        (evicted, "not_found", "no live pod matches app=vllm"),
        (second, "ambiguous", "2 live pods match app=vllm: POD, vllm-other"),
        (sidecar, "ambiguous", "pod POD has 2 containers (istio-proxy, vllm): name one of them"),
        (leaving, "will_not_stop", "pod POD is already terminating; it should have ended by "),
        (orphan, "not_schedulable", "pod POD has no controller: once deleted, nothing would make a new one"),
        (adopted, "not_schedulable", "pod POD has no controller: once deleted, nothing would make a new one"),
        (static, "error", "pod POD is a static pod of node gb10: deleting it restarts nothing"),
    ],
)  # fmt: skip
def test_what_is_not_deleted(kubernetes_stage: KubernetesStage, happens: Any, reason: str, detail: str) -> None:
    """Where nothing would come back, or it is not certain what would go, nothing is asked of the API."""
    name = kubernetes_stage.cluster.pod()["metadata"]["name"]
    happens(kubernetes_stage.cluster)
    found = fails(kubernetes_stage)
    assert found[0] == reason
    assert found[1].startswith(detail.replace("POD", name))
    assert changes(kubernetes_stage) == []


def test_by_name_only_where_the_name_comes_back(kubernetes_stage: KubernetesStage) -> None:
    """The next pod of a Deployment would never be found, and the attempt would call the restart failed."""
    name = kubernetes_stage.cluster.pod()["metadata"]["name"]
    reason, detail = fails(kubernetes_stage, pod=name)
    assert reason == "renamed"
    assert detail.startswith(f"pod {name} belongs to ReplicaSet vllm-")
    assert detail.endswith(": the next one has another name; use selector")
    assert changes(kubernetes_stage) == []


def test_a_terminating_stateful_pod_is_not_deleted_again(stateful: KubernetesStage, hands: Hands) -> None:
    """By its name, too."""
    stateful.make(pod="vllm-0").restart(10.0)
    reason, detail = fails(stateful, pod="vllm-0")
    assert (reason, detail[:39]) == ("will_not_stop", "pod vllm-0 is already terminating; it s")
    assert changes(stateful) == ["delete"]


@pytest.mark.parametrize(
    "selector",
    ["app=vllm", "app==vllm,tier!=test", "app in (vllm, sglang)", "app,app notin (sglang)", "!tier,app=vllm"],
)
def test_selectors_are_the_apis_own(kubernetes_stage: KubernetesStage, selector: str) -> None:
    """Equality and sets, as kubectl -l takes them."""
    assert kubernetes_stage.make(selector=selector).describe().identity
    assert kubernetes_stage.make(selector=f"{selector},app=other").describe().identity is None


def test_a_selector_that_the_api_refuses(kubernetes_stage: KubernetesStage) -> None:
    """Its own words say what is wrong."""
    found = kubernetes_stage.make(selector="app = = vllm").describe()
    assert (found.identity, found.running) == (None, None)
    assert found.detail == "list pods app = = vllm: 400 unable to parse requirement: app = = vllm"


def test_more_pods_than_one_page_are_ambiguous(kubernetes_stage: KubernetesStage) -> None:
    """Even if all of the first page have ended: the live one may stand on the next."""
    cluster = kubernetes_stage.cluster
    for number in range(100):
        cluster.new_pod(f"old-{number}", template({"app": "vllm"}), None)["status"]["phase"] = "Failed"
    assert fails(kubernetes_stage) == ("ambiguous", "more than 100 pods match app=vllm")


# The rights.


def rights(*roles: str) -> set[Right]:
    """What the roles of rbac.yaml allow."""
    documents = [
        d for d in yaml.safe_load_all(RBAC.read_text()) if d["kind"] == "Role" and d["metadata"]["name"] in roles
    ]
    assert len(documents) == len(roles)
    return {
        (verb, group, resource)
        for document in documents
        for rule in document["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def use(stage: KubernetesStage, hands: Hands, rollouts: bool) -> None:
    """Everything that the driver can do, in one go."""
    cluster = stage.cluster
    stage.driver.describe()
    stage.driver.restart(10.0)
    if rollouts:
        for hands.now in (100.0, 200.0):
            cluster.settle()
        cluster.objects["deployments", "vllm"]["spec"]["strategy"] = {"type": "Recreate"}
        stage.make(**ROLLOUT).restart(10.0)
    stage.vanish()
    cluster.stateful_set()
    for hands.now in (300.0, 400.0):
        cluster.settle()
    stage.make(pod="vllm-0").restart(10.0)
    if rollouts:
        for hands.now in (500.0, 600.0):
            cluster.settle()
        stage.make(pod="vllm-0", **SET_ROLLOUT).restart(10.0)


@pytest.mark.parametrize("rollouts", [False, True])
def test_the_rights_in_rbac_yaml_are_exactly_those_needed(
    kubernetes_stage: KubernetesStage, hands: Hands, rollouts: bool
) -> None:
    """The API refuses whatever the roles do not name; and every right that they name is used."""
    roles = ["stallwatch-restart-pods"] + (["stallwatch-restart-workloads"] if rollouts else [])
    kubernetes_stage.api.rights = rights(*roles)
    use(kubernetes_stage, hands, rollouts)
    assert set(kubernetes_stage.api.asked) == kubernetes_stage.api.rights


def test_a_missing_right_is_told_in_the_apis_words(kubernetes_stage: KubernetesStage) -> None:
    """They name the right, so that it can be given."""
    kubernetes_stage.api.rights = rights("stallwatch-restart-pods") - {("delete", "", "pods")}
    assert kubernetes_stage.driver.describe().identity
    reason, detail = fails(kubernetes_stage)
    assert reason == "no_permission"
    assert 'cannot delete resource "pods" in API group "" in the namespace "llm"' in detail
    reason, detail = fails(kubernetes_stage, namespace="kube-system")
    assert reason == "no_permission"
    assert kubernetes_stage.driver.describe().running is True


def test_rbac_yaml_is_valid_and_bound() -> None:
    """Every object is one that the client's own models take; the bindings name the roles and the account."""
    from kubernetes import client  # noqa: PLC0415

    documents = list(yaml.safe_load_all(RBAC.read_text()))
    assert [d["kind"] for d in documents] == ["ServiceAccount", "Role", "RoleBinding", "Role", "RoleBinding"]
    assert not [d for d in documents if d["kind"].startswith("Cluster")]
    for document in documents:
        model = getattr(client, f"V1{document['kind']}").from_dict(document)
        assert client.ApiClient().sanitize_for_serialization(model) == document
    account, roles = documents[0], documents[1::2]
    for role, binding in zip(roles, documents[2::2], strict=True):
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["metadata"]["namespace"] == role["metadata"]["namespace"] == NAMESPACE
        (subject,) = binding["subjects"]
        assert (subject["name"], subject["namespace"]) == (
            account["metadata"]["name"],
            account["metadata"]["namespace"],
        )


# The fake.


def test_what_the_fake_says_is_what_the_client_knows(kubernetes_stage: KubernetesStage, hands: Hands) -> None:
    """No field of the fake's objects is lost or changed on the way through the official client's models."""
    from kubernetes import client  # noqa: PLC0415

    cluster = kubernetes_stage.cluster
    seen: list[Object] = []
    for change in (lambda c: None, loop, ended, lambda c: c.delete_pod(c.pod(), 5), lambda c: c.settle()):
        change(cluster)
        seen += [yaml.safe_load(yaml.safe_dump(thing)) for thing in cluster.objects.values()]
    cluster.stateful_set("other")
    cluster.settle()
    seen += cluster.objects.values()
    assert {thing["kind"] for thing in seen} == {"Pod", "Deployment", "ReplicaSet", "StatefulSet"}
    for thing in seen:
        model = getattr(client, f"V1{thing['kind']}").from_dict(thing)
        written = client.ApiClient().sanitize_for_serialization(model)
        assert flat(written) == flat(thing)


def flat(thing: Any, path: str = "") -> dict[str, Any]:
    """Every leaf by its path; times lose what only spells them differently."""
    if isinstance(thing, dict):
        return {k: v for key, value in thing.items() for k, v in flat(value, f"{path}.{key}").items()}
    if isinstance(thing, list):
        return {k: v for number, value in enumerate(thing) for k, v in flat(value, f"{path}[{number}]").items()}
    return {path: thing.replace("+00:00", "Z") if isinstance(thing, str) else thing}


def test_no_secret_is_in_what_a_driver_shows(kubernetes_stage: KubernetesStage) -> None:
    """Its own text is part of what a log may hold."""
    assert TOKEN not in repr(kubernetes_stage.driver)
