"""The few calls that the kubernetes driver makes, by the official client, each within one deadline.

The client's package is optional, and takes half a second and more to load: the settings load it when they make a
driver, and only then. Its own time-outs are per read, and it would retry, follow redirects and use the environment's
proxy; here it sends through the project's sockets, which do none of this and end with the deadline.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from urllib3.exceptions import HTTPError

from remediator.drivers import DriverFailed, FailureReason
from remediator.drivers.command import first_line
from remediator.drivers.kubernetes_access import Access, prepare
from stallwatch.deadline import Exchange, current

if TYPE_CHECKING:
    from kubernetes.client import AppsV1Api, CoreV1Api, V1Deployment, V1Pod, V1StatefulSet
    from kubernetes.client.exceptions import ApiException

Kind = Literal["Deployment", "StatefulSet"]
"""Workloads whose rollout can be begun."""
Answer = TypeVar("Answer")

MOST_PODS = 100
"""Of one page of a list. More are more than one anyway."""
RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
"""The annotation by which kubectl, too, begins a rollout."""
REASONS: dict[int, FailureReason] = {401: "no_permission", 403: "no_permission", 404: "not_found", 429: "unavailable"}


@contextlib.contextmanager
def connected(access: Access, seconds: float) -> Iterator[Api]:
    """Calls that all end within `seconds` altogether, with the credentials as they are now. Raises `DriverFailed`."""
    from kubernetes.client import ApiClient, AppsV1Api, CoreV1Api  # noqa: PLC0415 (see the top)

    deadline = time.monotonic() + seconds
    configuration, adapter, host = prepare(access)
    with contextlib.closing(adapter), ApiClient(configuration) as client:
        client.rest_client.pool_manager = adapter.poolmanager
        current.exchange = Exchange(deadline)
        yield Api(CoreV1Api(client), AppsV1Api(client), host, deadline, seconds)


@dataclass(frozen=True, slots=True)
class Api:
    """The calls on one connection. Each raises `DriverFailed`, and ends with the deadline of them all."""

    core: CoreV1Api
    apps: AppsV1Api
    host: str
    deadline: float
    seconds: float

    def pod(self, name: str, namespace: str) -> V1Pod:
        """The pod of this name."""
        return self._call(f"get pod {name}", lambda: self.core.read_namespaced_pod(name, namespace))

    def pods(self, selector: str, namespace: str) -> list[V1Pod]:
        """The pods that a label selector fits."""
        found = self._call(
            f"list pods {selector}",
            lambda: self.core.list_namespaced_pod(namespace, label_selector=selector, limit=MOST_PODS),
        )
        if found.metadata and found.metadata._continue:
            raise DriverFailed("ambiguous", f"more than {MOST_PODS} pods match {selector}")
        return list(found.items)

    def delete_pod(self, pod: V1Pod, grace_seconds: int | None) -> None:
        """Delete this very pod: one that has taken its place under the same name has another UID and stays."""
        from kubernetes.client import V1DeleteOptions, V1Preconditions  # noqa: PLC0415

        name, namespace, uid = _identified(pod)
        options = V1DeleteOptions(grace_period_seconds=grace_seconds, preconditions=V1Preconditions(uid=uid))
        # The answer is not read: what it says of the pod is not needed, and the pod is deleted whatever it says.
        delete = self.core.delete_namespaced_pod
        self._call(f"delete pod {name}", lambda: delete(name, namespace, body=options, _preload_content=False))

    def workload(self, kind: Kind, name: str, namespace: str) -> V1Deployment | V1StatefulSet:
        """The Deployment or StatefulSet of this name."""
        apps = self.apps
        read = apps.read_namespaced_deployment if kind == "Deployment" else apps.read_namespaced_stateful_set
        return self._call(f"get {kind} {name}", lambda: read(name, namespace))

    def restart_workload(self, kind: Kind, workload: V1Deployment | V1StatefulSet, at: datetime.datetime) -> None:
        """Begin a rollout of the workload as it was read: a change since then is a conflict."""
        name, namespace, uid = _identified(workload)
        version = workload.metadata.resource_version if workload.metadata else None
        annotations = {RESTARTED_AT: at.strftime("%Y-%m-%dT%H:%M:%SZ")}
        patch = {
            "metadata": {"uid": uid, "resourceVersion": version},
            "spec": {"template": {"metadata": {"annotations": annotations}}},
        }
        apps = self.apps
        write = apps.patch_namespaced_deployment if kind == "Deployment" else apps.patch_namespaced_stateful_set
        self._call(f"patch {kind} {name}", lambda: write(name, namespace, patch, _preload_content=False))

    def _call(self, what: str, call: Callable[[], Answer]) -> Answer:
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415

        failure: DriverFailed
        try:
            return call()
        except ApiException as error:
            if error.status:
                raise _refused(what, error) from None
            failure = self._unreachable(what, error)  # TLS
        except (HTTPError, OSError) as error:
            failure = self._unreachable(what, error)
        except Exception as error:  # its text may hold anything, a secret too
            failure = DriverFailed("error", f"{what}: the request or its answer is not valid ({type(error).__name__})")
        if time.monotonic() >= self.deadline:
            raise DriverFailed(
                "deadline", f"{what}: the API at {self.host} gave no full answer within {self.seconds:g} s"
            ) from None
        raise failure from None

    def _unreachable(self, what: str, error: Exception) -> DriverFailed:
        line = f"{what}: no answer of the API at {self.host}: {_cause(error)}"
        return DriverFailed("unavailable", first_line(line.encode()))


def _identified(thing: V1Pod | V1Deployment | V1StatefulSet) -> tuple[str, str, str]:
    """Name, namespace and UID, without which nothing may be changed."""
    metadata = thing.metadata
    if metadata is None or not metadata.name or not metadata.namespace or not metadata.uid:
        raise DriverFailed("error", "the API gave an object without name, namespace or UID")
    return metadata.name, metadata.namespace, metadata.uid


def _cause(error: BaseException) -> str:
    """The innermost reason that the libraries give, in a few words."""
    inner = error
    while (deeper := inner.__cause__ or inner.__context__) is not None and not isinstance(inner, OSError):
        inner = deeper
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return type(inner).__name__


def _refused(what: str, error: ApiException) -> DriverFailed:
    """What the API said, in its `Status` object; without one it was no API of Kubernetes that answered."""
    code = error.status or 0
    try:
        status = json.loads(error.body or "")
    except ValueError:
        status = None
    said = status.get("message") if isinstance(status, dict) and status.get("kind") == "Status" else None
    reason = REASONS.get(code, "unavailable" if code >= 500 else "error")
    if said is None and reason == "not_found":
        reason = "error"  # a wrong address, rather than a pod that is not there
    if code == 409:
        what += ": changed by somebody else in between, nothing done"
    return DriverFailed(reason, first_line(f"{what}: {code} {said or error.reason or ''}".encode()))
