"""Pods of a cluster as targets, with Prometheus's labels, and with names that outlive the pods.

A pod of a StatefulSet keeps its name when it is made anew. A pod of a Deployment gets another one: here it takes a
number of its workload, which the pod that takes its place gets after it.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from exporter.source_settings import KubernetesSettings
from exporter.sources import HTTP_TIMEOUT_SECONDS, AskedSource, Labels
from exporter.targets import MAX_BYTES, MAX_VALUE, TargetsError
from stallwatch.http import Client
from stallwatch.settings import read_secret

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
PAGE, MOST_PAGES = 200, 100
_UNSAFE = re.compile(r"[^a-zA-Z0-9_]")
_OVER = ("Succeeded", "Failed")


class PodSource(AskedSource):
    """The pods that a selector fits, in the namespaces that are named; listed anew at each refresh."""

    mechanism = "kubernetes"

    def __init__(self, settings: KubernetesSettings, failures: Counter[str]) -> None:
        names = ",".join(settings.namespaces.names)
        super().__init__(settings.refresh_interval_seconds, f"pods of {names}: {settings.selectors[0].label}", failures)
        self._settings, self._slots = settings, Slots()

    def ask(self) -> list[Labels]:
        """Every live pod with an address. Credentials are read each time: the token of a service account rotates."""
        settings = self._settings
        inside = settings.api_server is None
        token = read_secret(settings.bearer_token_file or f"{ACCOUNT}/token")
        ca_file = settings.ca_file or (f"{ACCOUNT}/ca.crt" if inside else None)
        client = Client({"Authorization": f"Bearer {token}", "Accept": "application/json"}, ca_file=ca_file)
        try:
            server = settings.api_server or _inside()
            found = [pod for name in settings.namespaces.names for pod in self._pods(client, server, name)]
        finally:
            client.close()
        return targets_of(found, self._slots)

    def _pods(self, client: Client, server: str, namespace: str) -> Iterable[Mapping[str, Any]]:
        where = f"{server}/api/v1/namespaces/{namespace}/pods?limit={PAGE}"
        where += f"&labelSelector={quote(self._settings.selectors[0].label, safe='')}"
        more = ""
        for _ in range(MOST_PAGES):
            answer = client.request(
                "GET",
                where + (f"&continue={quote(more, safe='')}" if more else ""),
                timeout_seconds=HTTP_TIMEOUT_SECONDS,
                max_bytes=MAX_BYTES,
            )
            if answer.status != 200:
                raise TargetsError(f"namespace {namespace}: HTTP status {answer.status}")
            try:
                document = json.loads(answer.body)
            except (ValueError, RecursionError) as error:
                raise TargetsError(f"namespace {namespace}: the answer is not JSON") from error
            items = document.get("items") if isinstance(document, dict) else None
            if not isinstance(items, list):
                raise TargetsError(f"namespace {namespace}: the answer is no list of pods")
            yield from (pod for pod in items if isinstance(pod, dict))
            more = _text(_at(document, "metadata", "continue"))
            if not more:
                return
        raise TargetsError(f"namespace {namespace}: more than {PAGE * MOST_PAGES} pods")


def _inside() -> str:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise TargetsError("this is no pod of a cluster: set api_server and bearer_token_file")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class Slots:
    """Numbers for the pods of each workload: a pod keeps its own, a new pod takes the lowest that is free."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], dict[str, int]] = {}

    def assign(self, workloads: Mapping[tuple[str, str], Iterable[str]]) -> Mapping[tuple[str, str], Mapping[str, int]]:
        """The number of each pod, by workload and UID; pods are given in the order of their age."""
        taken: dict[tuple[str, str], dict[str, int]] = {}
        for workload, uids in workloads.items():
            listed = list(uids)
            before = self._taken.get(workload, {})
            kept = {uid: before[uid] for uid in listed if uid in before}
            used = set(kept.values())
            free = (number for number in range(len(listed)) if number not in used)
            taken[workload] = {uid: kept[uid] if uid in kept else next(free) for uid in listed}
        self._taken = taken
        return taken


def targets_of(pods: Iterable[Mapping[str, Any]], slots: Slots) -> list[Labels]:
    """A target for each port of each live pod; one without a port where a container names none. Pure, but for slots.

    A pod that terminates is no target any more: its server is on its way out, and its place is free for the next.
    """
    live = [p for p in pods if _at(p, "metadata", "deletionTimestamp") is None and _phase(p) not in _OVER]
    live.sort(key=lambda pod: (_text(_at(pod, "metadata", "creationTimestamp")), _text(_at(pod, "metadata", "name"))))
    numbered: dict[tuple[str, str], list[str]] = {}
    for pod in live:
        if _short_lived(pod):
            numbered.setdefault(_workload(pod), []).append(_text(_at(pod, "metadata", "uid")))
    numbers = slots.assign(numbered)
    return [target for pod in live for target in _of_pod(pod, numbers)]


def _of_pod(pod: Mapping[str, Any], numbers: Mapping[tuple[str, str], Mapping[str, int]]) -> Iterable[Labels]:
    address, workload = _text(_at(pod, "status", "podIP")), _workload(pod)
    if not address:
        return
    name = _text(_at(pod, "metadata", "name"))
    if _short_lived(pod):
        name = f"{workload[1]}-{numbers[workload][_text(_at(pod, 'metadata', 'uid'))]}"
    labels = {**_meta(pod), "backend": name, "group": workload[1]}
    host = f"[{address}]" if ":" in address else address
    for container in _list(_at(pod, "spec", "containers")):
        own = {
            "__meta_kubernetes_pod_container_name": _text(container.get("name")),
            "__meta_kubernetes_pod_container_image": _text(container.get("image")),
        }
        ports = _list(container.get("ports"))
        if not ports:
            yield _kept({**labels, **own, "__address__": host})
        for port in ports:
            number = str(port.get("containerPort", ""))
            own["__meta_kubernetes_pod_container_port_number"] = number
            own["__meta_kubernetes_pod_container_port_name"] = _text(port.get("name"))
            own["__meta_kubernetes_pod_container_port_protocol"] = _text(port.get("protocol"))
            yield _kept({**labels, **own, "__address__": f"{host}:{number}"})


def _meta(pod: Mapping[str, Any]) -> Labels:
    prefix, controller = "__meta_kubernetes_pod_", _controller(pod)
    ready = [c.get("status") for c in _list(_at(pod, "status", "conditions")) if c.get("type") == "Ready"]
    labels = {
        "__meta_kubernetes_namespace": _text(_at(pod, "metadata", "namespace")),
        f"{prefix}name": _text(_at(pod, "metadata", "name")),
        f"{prefix}uid": _text(_at(pod, "metadata", "uid")),
        f"{prefix}ip": _text(_at(pod, "status", "podIP")),
        f"{prefix}host_ip": _text(_at(pod, "status", "hostIP")),
        f"{prefix}node_name": _text(_at(pod, "spec", "nodeName")),
        f"{prefix}phase": _phase(pod),
        f"{prefix}ready": _text(ready[0]).lower() if ready else "unknown",
        f"{prefix}controller_kind": _text(controller.get("kind")),
        f"{prefix}controller_name": _text(controller.get("name")),
    }
    for kind in ("label", "annotation"):
        given = _at(pod, "metadata", f"{kind}s")
        for key, value in given.items() if isinstance(given, dict) else ():
            labels[f"{prefix}{kind}_{_UNSAFE.sub('_', str(key))}"] = _text(value)
            labels[f"{prefix}{kind}present_{_UNSAFE.sub('_', str(key))}"] = "true"
    return labels


def _kept(labels: Labels) -> Labels:
    """Without what is empty, or longer than any name or address: an annotation can hold a whole document."""
    return {name: value for name, value in labels.items() if value and len(value) <= MAX_VALUE}


def _short_lived(pod: Mapping[str, Any]) -> bool:
    """Whether the pod that takes its place has another name."""
    return _text(_controller(pod).get("kind")) == "ReplicaSet"


def _workload(pod: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name of what the pod belongs to; of a Deployment, without the hash of its present template."""
    name = _text(_controller(pod).get("name")) or _text(_at(pod, "metadata", "name"))
    digest = _text(_at(pod, "metadata", "labels", "pod-template-hash"))
    return _text(_at(pod, "metadata", "namespace")), name.removesuffix(f"-{digest}") if digest else name


def _controller(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    owners = _list(_at(pod, "metadata", "ownerReferences"))
    return next((owner for owner in owners if owner.get("controller") is True), {})


def _phase(pod: Mapping[str, Any]) -> str:
    return _text(_at(pod, "status", "phase"))


def _at(thing: Any, *keys: str) -> Any:
    for key in keys:
        thing = thing.get(key) if isinstance(thing, dict) else None
    return thing


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
