"""What the kubernetes driver reads out of pods and workloads, and when it refuses. No connection, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from remediator.drivers import Description, DriverFailed
from remediator.drivers.command import first_line

if TYPE_CHECKING:
    from kubernetes.client import V1ContainerStatus, V1Deployment, V1OwnerReference, V1Pod, V1StatefulSet

ID_CHARACTERS = 12
"""Of a container's ID, as engines show it; the pod's UID stands beside it."""
CHANGES_NAMES = {"ReplicaSet", "ReplicationController", "DaemonSet", "Job"}
"""Controllers that give the pod they make anew another name. A StatefulSet keeps it."""
ENDED = {"Succeeded", "Failed"}


def pod_name(pod: V1Pod) -> str:
    """The name of a pod that the API gave."""
    return pod.metadata.name or "?" if pod.metadata else "?"


def terminating_since(pod: V1Pod) -> str | None:
    """By when a terminating pod should have ended; None for a pod that stays."""
    at = pod.metadata.deletion_timestamp if pod.metadata else None
    return at.strftime("%Y-%m-%d %H:%M:%SZ") if at else None


def only_live_pod(pods: Sequence[V1Pod], selector: str) -> V1Pod:
    """The one pod that neither terminates nor has ended. Raises `DriverFailed` when there is none or several.

    A pod that was evicted stays listed as Failed; a replaced one is listed until it has ended.
    """
    live = [pod for pod in pods if not terminating_since(pod) and not (pod.status and pod.status.phase in ENDED)]
    if len(live) > 1:
        names = ", ".join(sorted(pod_name(pod) for pod in live)[:5])
        raise DriverFailed("ambiguous", f"{len(live)} live pods match {selector}: {names}")
    if live:
        return live[0]
    if leaving := next(filter(terminating_since, pods), None):
        raise DriverFailed("will_not_stop", f"{_leaving(leaving)}, and no other pod matches {selector}")
    raise DriverFailed("not_found", f"no live pod matches {selector}")


def _leaving(pod: V1Pod) -> str:
    return f"pod {pod_name(pod)} is already terminating; it should have ended by {terminating_since(pod)}"


def choose_container(pod: V1Pod, wanted: str | None) -> str:
    """The container that holds the server: the one that is configured, else the only one. Raises `DriverFailed`.

    The first of several would be a guess: an injected proxy may stand before the server.
    """
    names = [container.name for container in pod.spec.containers] if pod.spec else []
    if wanted is None and len(names) == 1:
        return names[0]
    listed = ", ".join(names)
    if wanted is None:
        raise DriverFailed("ambiguous", f"pod {pod_name(pod)} has {len(names)} containers ({listed}): name one of them")
    if wanted not in names:
        raise DriverFailed("error", f"pod {pod_name(pod)} has no container {wanted}, only {listed}")
    return wanted


def describe_pod(pod: V1Pod, container: str) -> Description:
    """The life of `container`. A terminating pod keeps its identity for as long as its container runs."""
    statuses = (pod.status.container_statuses if pod.status else None) or []
    status = next((status for status in statuses if status.name == container), None)
    leaving = _leaving(pod) if terminating_since(pod) else ""
    if status is None or not status.state or not status.state.running:
        why = leaving or _why_not_running(pod, status, container)
        return Description(None, False, first_line(why.encode()))
    number = (status.container_id or "").rpartition("/")[2]
    uid = pod.metadata.uid if pod.metadata else None
    if not number or not uid:
        return Description(None, not leaving, f"pod {pod_name(pod)}: the API tells no ID of container {container}")
    return Description(f"{pod_name(pod)}/{uid}/{number[:ID_CHARACTERS]}", not leaving, leaving)


def _why_not_running(pod: V1Pod, status: V1ContainerStatus | None, container: str) -> str:
    if status and status.state and (waiting := status.state.waiting):
        why = ": ".join(filter(None, (waiting.reason, waiting.message))) or "no reason given"
        return f"container {container} of pod {pod_name(pod)} is waiting: {why}"
    if status and status.state and (ended := status.state.terminated):
        why = ended.reason or "no reason given"
        return f"container {container} of pod {pod_name(pod)} has ended with status {ended.exit_code}: {why}"
    phase = (pod.status.phase if pod.status else None) or "in no known phase"
    unmet = [c for c in (pod.status.conditions if pod.status else None) or [] if c.status == "False" and c.message]
    said = unmet[0].message if unmet else (pod.status.reason if pod.status else None)
    return f"pod {pod_name(pod)} is {phase}" + (f": {said}" if said else "")


def controller_of(pod: V1Pod) -> V1OwnerReference | None:
    """What keeps the pod and would make a new one."""
    owners = (pod.metadata.owner_references if pod.metadata else None) or []
    return next((owner for owner in owners if owner.controller), None)


def check_pod(pod: V1Pod, *, by_name: bool) -> None:
    """Raise `DriverFailed` where a new pod would not come, or would not be found again."""
    name, owner = pod_name(pod), controller_of(pod)
    if terminating_since(pod):
        raise DriverFailed("will_not_stop", _leaving(pod))
    if owner is None:
        raise DriverFailed(
            "not_schedulable", f"pod {name} has no controller: once deleted, nothing would make a new one"
        )
    if owner.kind == "Node":
        raise DriverFailed("error", f"pod {name} is a static pod of node {owner.name}: deleting it restarts nothing")
    if by_name and owner.kind in CHANGES_NAMES:
        raise DriverFailed(
            "renamed", f"pod {name} belongs to {owner.kind} {owner.name}: the next one has another name; use selector"
        )


def check_workload(kind: str, workload: V1Deployment | V1StatefulSet, pod: V1Pod) -> None:
    """Raise `DriverFailed` unless a rollout would replace this one pod, without a second place for the new one."""
    name = (workload.metadata.name if workload.metadata else None) or "?"
    spec, owner = workload.spec, controller_of(pod)
    if spec is None or owner is None or not _owns(kind, workload, pod, owner):
        raise DriverFailed("error", f"pod {pod_name(pod)} does not belong to {kind} {name}")
    replicas = 1 if spec.replicas is None else spec.replicas
    if replicas != 1:
        raise DriverFailed("error", f"{kind} {name} has {replicas} replicas: a rollout would restart healthy ones too")
    if kind == "Deployment":
        _check_deployment(name, workload)  # type: ignore[arg-type]
    else:
        _check_stateful_set(name, workload)  # type: ignore[arg-type]


def _owns(kind: str, workload: V1Deployment | V1StatefulSet, pod: V1Pod, owner: V1OwnerReference) -> bool:
    metadata = workload.metadata
    if metadata is None:
        return False
    if kind == "StatefulSet":
        return owner.kind == kind and owner.uid == metadata.uid
    # Between them stands a ReplicaSet, named after the Deployment and the hash that its pods are labelled with.
    labels = (pod.metadata.labels if pod.metadata else None) or {}
    return owner.kind == "ReplicaSet" and owner.name == f"{metadata.name}-{labels.get('pod-template-hash')}"


def _check_deployment(name: str, deployment: V1Deployment) -> None:
    spec = deployment.spec
    if spec is None or spec.paused:
        raise DriverFailed("stopped", f"Deployment {name} is paused: a rollout would not begin")
    strategy = spec.strategy
    if strategy is not None and strategy.type == "Recreate":
        return
    rolling = strategy.rolling_update if strategy else None
    if removable(rolling.max_unavailable if rolling else None, rolling.max_surge if rolling else None) < 1:
        raise DriverFailed(
            "not_schedulable",
            f"Deployment {name} keeps the old pod until a new one is ready (maxUnavailable comes to 0), and its GPU: "
            "use delete_pod, or the strategy Recreate",
        )


def _check_stateful_set(name: str, stateful_set: V1StatefulSet) -> None:
    strategy = stateful_set.spec.update_strategy if stateful_set.spec else None
    if strategy is not None and strategy.type == "OnDelete":
        raise DriverFailed(
            "not_schedulable", f"StatefulSet {name} replaces a pod only once it is deleted (OnDelete): use delete_pod"
        )
    if strategy is not None and strategy.rolling_update and strategy.rolling_update.partition:
        raise DriverFailed("not_schedulable", f"StatefulSet {name} has a partition that keeps its pod from a rollout")


def removable(most_unavailable: int | str | None, most_surplus: int | str | None, replicas: int = 1) -> int:
    """How many old pods a rolling update may remove before a new one is ready.

    Both limits are a number or a percentage of the replicas, 25% where none is written; the first is rounded down,
    the second up. Where both come to 0 Kubernetes takes 1 for the first, since the rollout could not move otherwise.
    """
    unavailable = _of(most_unavailable, replicas, up=False)
    return 1 if unavailable == 0 and _of(most_surplus, replicas, up=True) == 0 else unavailable


def _of(value: int | str | None, replicas: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    number = (value or "25%").removesuffix("%")
    if not number.isdecimal():
        raise DriverFailed("error", "the Deployment's rolling update has a limit that is neither number nor percentage")
    parts = int(number) * replicas
    return -(-parts // 100) if up else parts // 100
