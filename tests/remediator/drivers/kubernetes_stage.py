"""The stage of the kubernetes driver. Its cluster and its server process are made up: see kubernetes_api.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from remediator.drivers import DriverFailed
from remediator.drivers.kubernetes import KubernetesDriver, KubernetesSettings
from tests.remediator.drivers.contract import eventually
from tests.remediator.drivers.kubernetes_api import TOKEN, FakeApi, serving
from tests.remediator.drivers.kubernetes_cluster import ARGUMENT, NAMESPACE, Cluster


def write_kubeconfig(path: Path, url: str, user: dict[str, Any] | None = None, **cluster: Any) -> Path:
    """A kubeconfig with one context, named `test`."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u", "namespace": "elsewhere"}}],
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": {"token": TOKEN} if user is None else user}],
    }
    path.write_text(json.dumps(document), encoding="ascii")
    return path


ROLLOUT = {"action": "restart_workload", "workload": {"kind": "Deployment", "name": "vllm"}}
SET_ROLLOUT = {"action": "restart_workload", "workload": {"kind": "StatefulSet", "name": "vllm"}}


@dataclass
class KubernetesStage:
    """An API over a cluster, and a file with which it can be reached."""

    api: FakeApi
    kubeconfig: Path
    secrets: tuple[str, ...] = (TOKEN, ARGUMENT, ARGUMENT.partition("=")[2])

    @property
    def cluster(self) -> Cluster:
        """What stands behind the API."""
        return self.api.cluster

    def make(self, **settings: Any) -> KubernetesDriver:
        """A driver as its settings make it; by the selector app=vllm if nothing else is said."""
        fits = {} if "pod" in settings else {"selector": "app=vllm"}
        base = {
            "kind": "kubernetes",
            "namespace": NAMESPACE,
            "kubeconfig": str(self.kubeconfig),
            "timeout_seconds": 20.0,
        }
        return KubernetesSettings.model_validate(base | fits | settings).make()

    @property
    def driver(self) -> KubernetesDriver:
        """One that deletes the pod of a Deployment."""
        return self.make()

    def kill_outside(self) -> None:
        """The kubelet starts the container anew in the same pod."""
        with self.api.lock:
            pod = self.cluster.pod()
            self.cluster.start_container(pod, restarts=pod["status"]["containerStatuses"][0]["restartCount"] + 1)

    def vanish(self) -> None:
        """The Deployment is deleted with all that it owns."""
        with self.api.lock:
            self.cluster.remove("deployments", "vllm")


@pytest.fixture
def kubernetes_stage(tmp_path: Path) -> Iterator[KubernetesStage]:
    """A Deployment whose pod runs."""
    cluster = Cluster()
    cluster.deployment()
    with serving(FakeApi(cluster)) as api:
        stage = KubernetesStage(api, write_kubeconfig(tmp_path / "kubeconfig", api.url))
        stage.make()  # loads the client, which a busy machine needs seconds for: no test of times is to count them
        assert eventually(lambda: stage.cluster.pod()["status"]["phase"] == "Running")
        yield stage


class Hands:
    """A clock that only a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands(kubernetes_stage: KubernetesStage) -> Hands:
    """The cluster's clock; a server takes 10 s to end and 20 s to start."""
    clock = Hands()
    cluster = kubernetes_stage.cluster
    cluster.clock, cluster.stop_seconds, cluster.start_seconds = clock, 10.0, 20.0
    return clock


@pytest.fixture
def stateful(kubernetes_stage: KubernetesStage) -> KubernetesStage:
    """A StatefulSet in place of the Deployment; its pod vllm-0 runs."""
    cluster = kubernetes_stage.cluster
    kubernetes_stage.vanish()
    cluster.stateful_set()
    cluster.start_container(cluster.pod())
    return kubernetes_stage


def fails(stage: KubernetesStage, seconds: float = 10.0, **settings: Any) -> tuple[str, str]:
    """Reason and text with which a restart fails."""
    with pytest.raises(DriverFailed) as caught:
        stage.make(**settings).restart(seconds)
    assert not any(secret in caught.value.detail for secret in stage.secrets)
    return caught.value.reason, caught.value.detail


def changes(stage: KubernetesStage) -> list[str]:
    """The verbs of the requests that change something, in order."""
    return [verb for verb, _, _ in stage.api.asked if verb not in ("get", "list")]
