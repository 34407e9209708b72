"""Pods as targets: names that outlive the pods, what is a target and what is none, and an API that fails.

The API is the tests' own, see tests/remediator/drivers/kubernetes_api.py: no real one can be had on these machines.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from exporter.config import read
from exporter.discovery import Discovery
from exporter.kubernetes_sd import PodSource, Slots, targets_of
from exporter.source_settings import KubernetesSettings
from stallwatch.settings import SettingsError
from tests.exporter.servers import answer, once, scripted
from tests.remediator.drivers.kubernetes_api import TOKEN, FakeApi, serving
from tests.remediator.drivers.kubernetes_cluster import NAMESPACE, Cluster, Object

RULES = """
relabel_configs:
  - {source_labels: [__meta_kubernetes_pod_ip], target_label: __address__, replacement: "$1:8000"}
"""


class Addressed(Cluster):
    """A cluster in which every pod on a node has an address of its own."""

    given = 0

    def settle(self) -> None:
        super().settle()
        for pod in self.all("pods"):
            if "nodeName" in pod["spec"] and "podIP" not in pod["status"]:
                self.given += 1
                pod["status"]["podIP"] = f"10.0.0.{self.given}"

    def run(self) -> None:
        """Until every pod on a node runs, and what terminates is gone."""
        deadline = time.monotonic() + 10
        while True:
            self.settle()
            pods = self.all("pods")
            if all(p["status"]["phase"] == "Running" and "deletionTimestamp" not in p["metadata"] for p in pods):
                return
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def names(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.all("pods")]


@pytest.fixture
def cluster() -> Cluster:
    """A cluster with GPUs for five, in which starting and ending take a moment."""
    return Addressed(gpus=5, start_seconds=0.01, stop_seconds=0.01)


@pytest.fixture
def api(cluster: Cluster) -> Iterator[FakeApi]:
    """Its API."""
    with serving(FakeApi(cluster)) as served:
        yield served


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """The file of the token that the API takes."""
    path = tmp_path / "token"
    path.write_text(TOKEN)
    return path


def settings(api: FakeApi | str, token: Path, label: str = "app in (vllm)") -> KubernetesSettings:
    """What the configuration would say."""
    return KubernetesSettings.model_validate(
        {
            "role": "pod",
            "namespaces": {"names": [NAMESPACE]},
            "selectors": [{"role": "pod", "label": label}],
            "api_server": api if isinstance(api, str) else api.url,
            "bearer_token_file": str(token),
        }
    )


def discovery(api: FakeApi, token: Path, folder: Path) -> Discovery:
    """The exporter's discovery over this cluster."""
    entry = f"kubernetes_sd_configs: [{json.dumps(settings(api, token, 'app=vllm').model_dump(exclude_none=True))}]"
    path = folder / "exporter.yml"
    path.write_text("discovery:\n  - " + (entry + RULES).replace("\n", "\n    "))
    return Discovery(lambda: read(path))


def watched(found: Discovery) -> Mapping[str, str]:
    """The backends after the cluster was asked again."""
    found.load()
    for source in found._sources.values():
        source.join(10)  # type: ignore[attr-defined]
    return {backend.name: backend.url for backend in found.current()}


def test_a_deployment_keeps_its_names(cluster: Any, api: FakeApi, token: Path, tmp_path: Path) -> None:
    """Pods are deleted one by one and all get other names and addresses: the backends' names stay."""
    cluster.deployment(replicas=3)
    cluster.run()
    found = discovery(api, token, tmp_path)
    first = watched(found)
    assert set(first) == {"vllm-0", "vllm-1", "vllm-2"}
    assert [backend.group for backend in found.current()] == ["vllm"] * 3
    names = set(cluster.names())
    for number in range(3):
        before = watched(found)
        cluster.delete_pod(cluster.all("pods")[0])
        cluster.run()
        after = watched(found)
        assert set(after) == {"vllm-0", "vllm-1", "vllm-2"}
        assert sum(before[name] != after[name] for name in after) == 1, number
    assert not names & set(cluster.names())
    assert not set(first.values()) & set(watched(found).values())


def test_a_rollout_keeps_the_names(cluster: Any, api: FakeApi, token: Path, tmp_path: Path) -> None:
    """A new template is another ReplicaSet of the same workload: the name goes over to its pod."""
    deployment = cluster.deployment(strategy={"type": "Recreate"})
    cluster.run()
    found = discovery(api, token, tmp_path)
    before = watched(found)
    deployment["spec"]["template"]["metadata"]["annotations"] = {"restarted": "now"}
    cluster.touch(deployment)
    deadline = time.monotonic() + 10
    while watched(found) in (before, {}):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert set(watched(found)) == set(before) == {"vllm-0"}


def test_a_stateful_set_has_names_of_its_own(cluster: Any, api: FakeApi, token: Path, tmp_path: Path) -> None:
    """Its pod is called the same when it is made anew."""
    cluster.stateful_set()
    cluster.run()
    found = discovery(api, token, tmp_path)
    before = watched(found)
    cluster.delete_pod(cluster.pod())
    cluster.run()
    after = watched(found)
    assert list(before) == list(after) == ["vllm-0"]
    assert before != after


def test_a_pod_that_terminates_is_no_target(cluster: Any, api: FakeApi, token: Path, tmp_path: Path) -> None:
    """Its server is on its way out: it is not watched, and cannot be found down."""
    cluster.stop_seconds = 60
    cluster.deployment()
    cluster.run()
    found = discovery(api, token, tmp_path)
    old = watched(found)
    cluster.delete_pod(cluster.pod())
    new = watched(found)
    assert list(old) == list(new) == ["vllm-0"]
    assert old != new


def test_what_cannot_be_read_keeps_the_last_list(cluster: Any, api: FakeApi, token: Path) -> None:
    """A wrong token, no rights, an API that fails or says what is no list: counted, the pods stay."""
    cluster.stateful_set()
    cluster.run()
    failures: Counter[str] = Counter()
    source = PodSource(settings(api, token), failures)
    source.fetch()
    (kept,) = source.targets()
    token.write_text("wrong")
    source.fetch()
    token.write_text(TOKEN)
    api.rights = set()
    source.fetch()
    api.rights = None
    for fault in ("500", "cut", "html"):
        api.faults = {"list": fault, "GET": fault, "get": fault}
        source.fetch()
    token.unlink()
    source.fetch()
    assert failures == {"kubernetes": 6}
    assert list(source.targets()) == [kept]


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"items": 1}', b"[" * 100_000, b"x"])
def test_answers_that_are_no_list(body: bytes, token: Path) -> None:
    """Typed failures only."""
    failures: Counter[str] = Counter()
    with scripted(once(answer(body=body, Content_Type="application/json"))) as url:
        PodSource(settings(url, token), failures).fetch()
    assert failures == {"kubernetes": 1}


def test_a_list_in_several_pages(token: Path) -> None:
    """The API gives a part at a time; all parts are one list. What is no pod in it is passed over."""
    pages = [
        {"metadata": {"continue": "a&b"}, "items": [pod("p-0")]},
        {"metadata": {}, "items": [pod("p-1"), 5, None]},
    ]
    asked: list[bytes] = []

    def script(connection: Any) -> None:
        asked.append(connection.recv(65536))
        connection.sendall(answer(body=json.dumps(pages[len(asked) - 1]).encode()))

    with scripted(script) as url:
        source = PodSource(settings(url, token), Counter())
        source.fetch()
    assert {labels["backend"] for labels in source.targets()} == {"p-0", "p-1"}
    assert b"limit=200&labelSelector=app%20in%20%28vllm%29 " in asked[0]
    assert b"&continue=a%26b " in asked[1]


def pod(name: str, **status: Any) -> Object:
    """A pod without an owner."""
    container = {
        "name": "vllm",
        "image": "vllm:1",
        "ports": [{"containerPort": 8000, "name": "http", "protocol": "TCP"}],
    }
    return {
        "metadata": {
            "name": name,
            "namespace": "llm",
            "uid": name,
            "labels": {"app.kubernetes.io/name": "llama"},
            "annotations": {"note": "x" * 5000},
        },
        "spec": {"containers": [container, {"name": "proxy"}], "nodeName": "gb10"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.9",
            "conditions": [{"type": "Ready", "status": "True"}],
            **status,
        },
    }


def test_labels_of_a_pod() -> None:
    """Those that Prometheus gives, a target for each port, and no value that is a document."""
    first, second = targets_of([pod("p")], Slots())
    prefix = "__meta_kubernetes_pod_"
    assert first == {
        "__address__": "10.0.0.9:8000",
        "backend": "p",
        "group": "p",
        "__meta_kubernetes_namespace": "llm",
        f"{prefix}name": "p",
        f"{prefix}uid": "p",
        f"{prefix}ip": "10.0.0.9",
        f"{prefix}node_name": "gb10",
        f"{prefix}phase": "Running",
        f"{prefix}ready": "true",
        f"{prefix}label_app_kubernetes_io_name": "llama",
        f"{prefix}labelpresent_app_kubernetes_io_name": "true",
        f"{prefix}annotationpresent_note": "true",
        f"{prefix}container_name": "vllm",
        f"{prefix}container_image": "vllm:1",
        f"{prefix}container_port_number": "8000",
        f"{prefix}container_port_name": "http",
        f"{prefix}container_port_protocol": "TCP",
    }
    assert (second["__address__"], second[f"{prefix}container_name"]) == ("10.0.0.9", "proxy")


@pytest.mark.parametrize(
    ("status", "addresses"),
    [
        ({"podIP": "fd00::9"}, ["[fd00::9]:8000", "[fd00::9]"]),
        ({"podIP": None}, []),
        ({"phase": "Failed"}, []),
        ({"phase": "Succeeded"}, []),
        ({"conditions": "none"}, ["10.0.0.9:8000", "10.0.0.9"]),
    ],
)
def test_which_pods_are_targets(status: dict[str, Any], addresses: list[str]) -> None:
    """IPv6 in brackets; a pod without an address, or whose life is over, is none."""
    assert [labels["__address__"] for labels in targets_of([pod("p", **status)], Slots())] == addresses


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (["abc"], {"a": 0, "b": 1, "c": 2}),
        (["abc", "bc"], {"b": 1, "c": 2}),
        (["abc", "bcd"], {"b": 1, "c": 2, "d": 0}),
        (["abc", "cdef"], {"c": 2, "d": 0, "e": 1, "f": 3}),
        (["abc", "c", "c"], {"c": 2}),
        (["abc", "c", "cx"], {"c": 2, "x": 0}),
        (["abc", "", "xyz"], {"x": 0, "y": 1, "z": 2}),
    ],
)
def test_numbers(history: list[str], expected: dict[str, int]) -> None:
    """One row: the pods at each look, and their numbers at the last."""
    slots = Slots()
    for uids in history:
        found = slots.assign({("llm", "vllm"): list(uids)})
    assert found["llm", "vllm"] == expected


def test_outside_of_a_cluster(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an address there is nobody to ask; with one, a token is needed."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    given = settings("http://127.0.0.1:1", token).model_copy(update={"api_server": None, "ca_file": None})
    failures: Counter[str] = Counter()
    PodSource(given, failures).fetch()
    assert failures == {"kubernetes": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{role: node, namespaces: {names: [a]}, selectors: [{label: x}]}", "role: must be 'pod'|role: must be one of"),
        ("{role: pod, selectors: [{label: x}]}", "namespaces: is missing"),
        ("{role: pod, namespaces: {names: []}, selectors: [{label: x}]}", "names: must hold at least 1"),
        ("{role: pod, namespaces: {names: [../x]}, selectors: [{label: x}]}", r"names\[0\]: "),
        ("{role: pod, namespaces: {names: [a]}, selectors: []}", "selectors: must hold at least 1"),
        (
            "{role: pod, namespaces: {names: [a]}, selectors: [{label: x}], api_server: 'http://a'}",
            "needs a bearer_token",
        ),
    ],
)
def test_bad_settings(text: str, words: str, tmp_path: Path) -> None:
    """One line that names the key."""
    path = tmp_path / "exporter.yml"
    path.write_text(f"discovery: [{{kubernetes_sd_configs: [{text}]}}]")
    with pytest.raises(SettingsError, match=words):
        read(path)
