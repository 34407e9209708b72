"""The kubernetes driver's other action: a rollout, only where it can succeed and touches this one pod alone."""

from __future__ import annotations

import pytest

from remediator.drivers.kubernetes_rules import removable
from tests.remediator.drivers.kubernetes_cluster import Object
from tests.remediator.drivers.kubernetes_stage import ROLLOUT, SET_ROLLOUT, Hands, KubernetesStage, changes, fails


@pytest.mark.parametrize(
    ("unavailable", "surplus", "expected"),
    [
        (None, None, 0),  # 25% of one: rounded down for the first, up for the second
        ("25%", "25%", 0),
        ("99%", 1, 0),
        ("100%", "25%", 1),
        (1, 1, 1),
        (1, 0, 1),
        (0, 1, 0),
        ("25%", 0, 1),  # both come to 0: Kubernetes takes 1, or nothing would move
        ("0%", "0%", 1),
        ("0%", "1%", 0),  # 1% of one, rounded up, is one
    ],
)
def test_rounding_of_a_rolling_update(unavailable: int | str | None, surplus: int | str | None, expected: int) -> None:
    """As its documentation has it, for one replica."""
    assert removable(unavailable, surplus) == expected


def rolling(unavailable: int | str, surplus: int | str) -> Object:
    """A strategy."""
    return {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surplus}}


@pytest.mark.parametrize("strategy", [{"type": "Recreate"}, rolling(1, 0), rolling("100%", 1), rolling("25%", 0)])
def test_a_rollout_that_can_be_scheduled(kubernetes_stage: KubernetesStage, hands: Hands, strategy: Object) -> None:
    """The old pod goes first, on the only GPU; exactly one patch is made, and the new server comes up."""
    cluster = kubernetes_stage.cluster
    cluster.objects["deployments", "vllm"]["spec"]["strategy"] = strategy
    driver = kubernetes_stage.make(**ROLLOUT)
    before = driver.describe().identity
    driver.restart(10.0)
    assert changes(kubernetes_stage) == ["patch"]
    for hands.now in (15.0, 40.0, 65.0):
        found = driver.describe()
    assert found.identity not in (None, before)
    assert list(cluster.objects["deployments", "vllm"]["spec"]["template"]["metadata"]["annotations"]) == [
        "kubectl.kubernetes.io/restartedAt"
    ]


def test_why_a_rollout_beside_the_old_pod_is_refused(kubernetes_stage: KubernetesStage, hands: Hands) -> None:
    """The same patch made by hand: an hour later the new pod still waits for the GPU of the stuck one."""
    reason, detail = fails(kubernetes_stage, **ROLLOUT)
    assert reason == "not_schedulable"
    assert detail == (
        "Deployment vllm keeps the old pod until a new one is ready (maxUnavailable comes to 0), and its GPU: "
        "use delete_pod, or the strategy Recreate"
    )
    assert changes(kubernetes_stage) == []
    cluster = kubernetes_stage.cluster
    old = cluster.pod()
    cluster.objects["deployments", "vllm"]["spec"]["template"]["metadata"]["annotations"] = {"by": "hand"}
    for hands.now in (15.0, 40.0, 3600.0):
        cluster.settle()
    assert [pod["status"]["phase"] for pod in cluster.all("pods")] == ["Running", "Pending"]
    assert cluster.all("pods")[0] is old
    assert "deletionTimestamp" not in old["metadata"]


@pytest.mark.parametrize(
    ("spec", "reason", "detail"),
    [
        ({"replicas": 2}, "error", "Deployment vllm has 2 replicas: a rollout would restart healthy ones too"),
        ({"replicas": 0}, "error", "Deployment vllm has 0 replicas: a rollout would restart healthy ones too"),
        ({"paused": True}, "stopped", "Deployment vllm is paused: a rollout would not begin"),
        ({"strategy": rolling("some", 1)}, "error",
         "the Deployment's rolling update has a limit that is neither number nor percentage"),
    ],
)  # fmt: skip
def test_a_rollout_that_would_do_harm_or_nothing(
    kubernetes_stage: KubernetesStage, hands: Hands, spec: Object, reason: str, detail: str
) -> None:
    """Refused before anything is changed."""
    deployment = kubernetes_stage.cluster.objects["deployments", "vllm"]
    kubernetes_stage.cluster.objects = {
        key: thing for key, thing in kubernetes_stage.cluster.objects.items() if key[0] != "replicasets"
    }  # so that the controllers leave the pod alone
    kubernetes_stage.cluster._deploy = lambda deployment: None  # type: ignore[method-assign]
    deployment["spec"] |= {"strategy": {"type": "Recreate"}} | spec
    assert fails(kubernetes_stage, **ROLLOUT) == (reason, detail)
    assert changes(kubernetes_stage) == []


@pytest.mark.parametrize(
    ("strategy", "detail"),
    [
        ({"type": "OnDelete"}, "StatefulSet vllm replaces a pod only once it is deleted (OnDelete): use delete_pod"),
        ({"type": "RollingUpdate", "rollingUpdate": {"partition": 1}},
         "StatefulSet vllm has a partition that keeps its pod from a rollout"),
    ],
)  # fmt: skip
def test_a_stateful_set_that_a_rollout_does_not_reach(stateful: KubernetesStage, strategy: Object, detail: str) -> None:
    """The patch would be accepted and nothing would happen."""
    stateful.cluster.objects["statefulsets", "vllm"]["spec"]["updateStrategy"] = strategy
    assert fails(stateful, pod="vllm-0", **SET_ROLLOUT) == ("not_schedulable", detail)
    assert changes(stateful) == []


def test_a_rollout_of_a_stateful_set(stateful: KubernetesStage, hands: Hands) -> None:
    """It deletes its pod first and makes it anew under the same name."""
    driver = stateful.make(pod="vllm-0", **SET_ROLLOUT)
    before = driver.describe().identity
    driver.restart(10.0)
    for hands.now in (15.0, 40.0):
        found = driver.describe()
    assert found.identity not in (None, before)
    assert changes(stateful) == ["patch"]


def test_a_rollout_of_another_workload_is_refused(kubernetes_stage: KubernetesStage) -> None:
    """The pod is the one of the backend; a name that was mistyped must not restart something else."""
    kubernetes_stage.cluster.gpus = 2
    kubernetes_stage.cluster.deployment("other", {"type": "Recreate"})
    reason, detail = fails(kubernetes_stage, **ROLLOUT | {"workload": {"kind": "Deployment", "name": "other"}})
    assert reason == "error"
    assert detail.endswith("does not belong to Deployment other")
    missing = ROLLOUT | {"workload": {"kind": "StatefulSet", "name": "vllm"}}
    assert fails(kubernetes_stage, **missing) == (
        "not_found", 'get StatefulSet vllm: 404 statefulsets.apps "vllm" not found'
    )  # fmt: skip
    assert changes(kubernetes_stage) == []


def test_a_workload_that_changes_in_between_is_a_conflict(kubernetes_stage: KubernetesStage) -> None:
    """Whoever changes it may begin a rollout of his own; ours would be a second one."""
    deployment = kubernetes_stage.cluster.objects["deployments", "vllm"]
    deployment["spec"]["strategy"] = {"type": "Recreate"}
    kubernetes_stage.api.before_change = lambda cluster: cluster.touch(deployment)
    reason, detail = fails(kubernetes_stage, **ROLLOUT)
    assert reason == "error"
    assert detail.startswith("patch Deployment vllm: changed by somebody else in between, nothing done: 409 ")
    assert "annotations" not in deployment["spec"]["template"]["metadata"]
