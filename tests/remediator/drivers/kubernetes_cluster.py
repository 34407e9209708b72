"""What a cluster does behind its API, as far as the driver can see it: controllers, one node with GPUs, a kubelet.

There is no thread: `settle` brings everything to where it has come by now, and the API calls it before each answer.
"""

from __future__ import annotations

import copy
import datetime
import hashlib
import itertools
import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
"""An object as JSON carries it."""
NAMESPACE = "llm"
ARGUMENT = "--api-key=sk-of-the-server"
NO_GPU = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def stamp() -> str:
    """Now, as the API writes times: UTC in whole seconds."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def template(labels: dict[str, str], containers: tuple[str, ...] = ("vllm",)) -> Object:
    """A pod template whose server takes one GPU."""
    made: list[Object] = [
        {"name": name, "image": f"{name}:1", "args": [ARGUMENT], "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        for name in containers
    ]
    return {"metadata": {"labels": labels}, "spec": {"containers": made, "terminationGracePeriodSeconds": 30}}


@dataclass
class Cluster:
    """The objects by plural and name, all in one namespace."""

    clock: Callable[[], float] = time.monotonic
    gpus: int = 1
    stop_seconds: float = 0.05
    """How long a server takes to end after it was asked to; the grace bounds it."""
    start_seconds: float = 0.05
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    _due: dict[str, float] = field(default_factory=dict)
    _versions: Any = field(default_factory=lambda: itertools.count(100))
    _numbers: Any = field(default_factory=itertools.count)

    # Objects.

    def put(self, plural: str, kind: str, body: Object) -> Object:
        """Store a new object with what the API adds to it."""
        group = "v1" if plural == "pods" else "apps/v1"
        metadata = body["metadata"]
        metadata |= {"namespace": NAMESPACE, "uid": str(uuid.uuid4()), "creationTimestamp": stamp()}
        stored = {"apiVersion": group, "kind": kind, **body}
        self.objects[plural, metadata["name"]] = stored
        self.touch(stored)
        return stored

    def touch(self, thing: Object) -> None:
        """Give a changed object its new version."""
        thing["metadata"]["resourceVersion"] = str(next(self._versions))

    def all(self, plural: str) -> list[Object]:
        """Every object of a kind."""
        return [thing for (found, _), thing in list(self.objects.items()) if found == plural]

    def pod(self) -> Object:
        """The one pod that does not terminate."""
        self.settle()
        (found,) = [pod for pod in self.all("pods") if "deletionTimestamp" not in pod["metadata"]]
        return found

    def deployment(self, name: str = "vllm", strategy: Object | None = None, **spec: Any) -> Object:
        """A Deployment with one replica, with the defaults that the API writes in."""
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
        labels = {"app": name}
        filled = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template(labels)}
        body = {"metadata": {"name": name}, "spec": filled | {"strategy": strategy or rolling} | spec}
        return self.put("deployments", "Deployment", body)

    def stateful_set(self, name: str = "vllm", strategy: Object | None = None, **spec: Any) -> Object:
        """A StatefulSet with one replica."""
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
        labels = {"app": name}
        filled = {"replicas": 1, "serviceName": name, "selector": {"matchLabels": labels}, "template": template(labels)}
        body = {"metadata": {"name": name}, "spec": filled | {"updateStrategy": strategy or rolling} | spec}
        return self.put("statefulsets", "StatefulSet", body)

    def new_pod(self, name: str, made_of: Object, owner: Object | None, **labels: str) -> Object:
        """A pod that nobody has scheduled yet."""
        body = copy.deepcopy(made_of)
        body["metadata"] |= {"name": name}
        body["metadata"]["labels"] = body["metadata"]["labels"] | labels
        if owner is not None:
            body["metadata"]["ownerReferences"] = [self.reference(owner)]
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_GPU}
        body["status"] = {"phase": "Pending", "conditions": [condition], "qosClass": "BestEffort"}
        return self.put("pods", "Pod", body)

    def reference(self, owner: Object) -> Object:
        """How an object names its controller."""
        names = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
        ids = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
        return names | ids | {"controller": True, "blockOwnerDeletion": True}

    def delete_pod(self, pod: Object, grace: int | None = None) -> None:
        """Ask a pod to end; one that stands on no node is gone at once."""
        metadata = pod["metadata"]
        if "nodeName" not in pod["spec"]:
            del self.objects["pods", metadata["name"]]
        elif "deletionTimestamp" not in metadata:
            seconds = pod["spec"]["terminationGracePeriodSeconds"] if grace is None else grace
            ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
            metadata |= {
                "deletionTimestamp": ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "deletionGracePeriodSeconds": seconds,
            }
            self._due[metadata["uid"]] = self.clock() + min(self.stop_seconds, seconds)
            self.touch(pod)

    def remove(self, plural: str, name: str) -> None:
        """Take an object away, and at once all that it owns."""
        uid = self.objects.pop((plural, name))["metadata"]["uid"]
        for (found, other), thing in list(self.objects.items()):
            if any(owner["uid"] == uid for owner in thing["metadata"].get("ownerReferences", [])):
                self.remove(found, other)

    # The kubelet.

    def start_container(self, pod: Object, restarts: int = 0, state: Object | None = None) -> None:
        """A new life of every container of the pod, or another `state` of all of them."""
        statuses = []
        for container in pod["spec"]["containers"]:
            status = {"name": container["name"], "image": container["image"], "imageID": "sha256:0", "ready": not state}
            status |= {"restartCount": restarts, "started": not state, "lastState": {}}
            status |= {"containerID": f"containerd://{uuid.uuid4().hex}{uuid.uuid4().hex}"}
            statuses.append(status | {"state": state or {"running": {"startedAt": stamp()}}})
        pod["status"] |= {"phase": "Running", "startTime": stamp(), "containerStatuses": statuses}
        self.touch(pod)

    def settle(self) -> None:
        """Let controllers, scheduler and kubelet do all that they have to do by now."""
        for _ in range(10):  # a change may call for another
            before = json.dumps(sorted(thing["metadata"]["resourceVersion"] for thing in self.objects.values()))
            for deployment in self.all("deployments"):
                self._deploy(deployment)
            for replica_set in self.all("replicasets"):
                self._replicate(replica_set)
            for stateful_set in self.all("statefulsets"):
                self._keep(stateful_set)
            for pod in self.all("pods"):
                self._run(pod)
            if before == json.dumps(sorted(thing["metadata"]["resourceVersion"] for thing in self.objects.values())):
                return

    def _run(self, pod: Object) -> None:
        metadata, uid = pod["metadata"], pod["metadata"]["uid"]
        if "deletionTimestamp" in metadata:
            if self.clock() >= self._due[uid] and "finalizers" not in metadata:
                del self.objects["pods", metadata["name"]]
        elif "nodeName" not in pod["spec"]:
            if sum("nodeName" in other["spec"] for other in self.all("pods")) < self.gpus:
                pod["spec"]["nodeName"] = "gb10"
                pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
                self._due[uid] = self.clock() + self.start_seconds
                self.touch(pod)
        elif pod["status"]["phase"] == "Pending" and self.clock() >= self._due[uid]:
            self.start_container(pod)

    # The controllers.

    def _owned(self, plural: str, owner: Object) -> list[Object]:
        uid = owner["metadata"]["uid"]
        owners = [(thing, thing["metadata"].get("ownerReferences", [])) for thing in self.all(plural)]
        return [thing for thing, references in owners if any(reference["uid"] == uid for reference in references)]

    def _replicate(self, replica_set: Object) -> None:
        live = [p for p in self._owned("pods", replica_set) if "deletionTimestamp" not in p["metadata"]]
        live = [p for p in live if p["status"]["phase"] not in ("Failed", "Succeeded")]
        name, wanted = replica_set["metadata"]["name"], replica_set["spec"]["replicas"]
        for _ in range(wanted - len(live)):  # at once, while the old one still terminates
            self.new_pod(f"{name}-{next(self._numbers):05x}", replica_set["spec"]["template"], replica_set)
        for pod in live[wanted:]:
            self.delete_pod(pod)

    def _keep(self, stateful_set: Object) -> None:
        name, spec = f"{stateful_set['metadata']['name']}-0", stateful_set["spec"]
        revision, pod = self._hash(spec["template"]), self.objects.get(("pods", name))
        if pod is None:  # only once the old one is gone: the name is taken until then
            self.new_pod(name, spec["template"], stateful_set, **{"controller-revision-hash": revision})
        elif spec["updateStrategy"]["type"] == "RollingUpdate":
            partition = spec["updateStrategy"].get("rollingUpdate", {}).get("partition", 0)
            if pod["metadata"]["labels"]["controller-revision-hash"] != revision and partition == 0:
                self.delete_pod(pod)

    def _hash(self, made_of: Object) -> str:
        return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:10]

    def _deploy(self, deployment: Object) -> None:
        """Rollouts of one replica only."""
        spec, name = deployment["spec"], deployment["metadata"]["name"]
        digest = self._hash(spec["template"])
        sets = self._owned("replicasets", deployment)
        new = self.objects.get(("replicasets", f"{name}-{digest}"))
        if new is None:
            if spec.get("paused") and sets:
                return
            made_of = copy.deepcopy(spec["template"])
            made_of["metadata"]["labels"] |= {"pod-template-hash": digest}
            selector = {"matchLabels": dict(made_of["metadata"]["labels"])}
            meta = {"name": f"{name}-{digest}", "ownerReferences": [self.reference(deployment)]}
            filled = {"replicas": 0, "selector": selector, "template": made_of}
            new = self.put("replicasets", "ReplicaSet", {"metadata": meta, "spec": filled})
        old = [other for other in sets if other is not new]
        old_pods = [pod for other in old for pod in self._owned("pods", other)]
        first, alone = self._room(spec["strategy"])
        ready = any(pod["status"]["phase"] == "Running" for pod in self._owned("pods", new))
        if alone or ready:
            self._scale(old, 0)
        leaving = all("deletionTimestamp" in pod["metadata"] for pod in old_pods)
        recreate = spec["strategy"]["type"] == "Recreate"
        if not old_pods or (not recreate and (first or leaving)):
            self._scale([new], spec["replicas"])

    def _room(self, strategy: Object) -> tuple[bool, bool]:
        """Whether a new pod may come before an old one goes, and whether the old one may go before that."""
        if strategy["type"] == "Recreate":
            return False, True
        limits = strategy["rollingUpdate"]
        surplus, missing = limits["maxSurge"], limits["maxUnavailable"]
        first = surplus not in (0, "0%")  # any percentage of one replica is rounded up to 1
        alone = missing == "100%" or (isinstance(missing, int) and missing >= 1)  # and down to 0
        return first, alone or not first

    def _scale(self, sets: list[Object], replicas: int) -> None:
        for found in sets:
            if found["spec"]["replicas"] != replicas:
                found["spec"]["replicas"] = replicas
                self.touch(found)
