"""Restarts by Kubernetes: deletes the pod, for its controller to make anew, or begins a rollout of its workload.

A life of the server is a container that runs, named by its pod, the pod's UID and the container's ID: a container
that the kubelet starts again in the same pod is another life. While none runs there is no identity. The rights that are
needed, and why deleting the pod is the default: docs/drivers/kubernetes.md.
"""

from __future__ import annotations

import datetime
import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from remediator.drivers import Description, DriverFailed, check_same
from remediator.drivers.kubernetes_access import Access
from remediator.drivers.kubernetes_api import Api, Kind, connected
from remediator.drivers.kubernetes_rules import (
    check_pod,
    check_workload,
    choose_container,
    describe_pod,
    only_live_pod,
)
from stallwatch.settings import Seconds, SettingsError, Strict

if TYPE_CHECKING:
    from kubernetes.client import V1Pod

DESCRIBE_SECONDS = 8.0
"""Of the ten that a description may take."""
INSTALL = "its client is not installed: pip install 'stallwatch[kubernetes]'"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def _name(text: str) -> str:
    if not _NAME.fullmatch(text) or ".." in text:
        raise ValueError("must be a name in Kubernetes: small letters, digits, dash and dot")
    return text


def _selector(text: str) -> str:
    if not text.strip(" ,"):
        raise ValueError("must select by a label, such as app=vllm; an empty selector fits every pod")
    return text


ObjectName = Annotated[str, AfterValidator(_name)]
"""The name of an object or a namespace."""


class WorkloadSettings(Strict):
    """What owns the pod."""

    kind: Kind
    name: ObjectName


class KubernetesSettings(Strict):
    """Restart a pod by its exact `pod` or by a label `selector` that fits exactly one live pod."""

    kind: Literal["kubernetes"]
    namespace: ObjectName
    pod: ObjectName | None = None
    selector: Annotated[str, AfterValidator(_selector)] | None = None
    container: ObjectName | None = None
    action: Literal["delete_pod", "restart_workload"] = "delete_pod"
    workload: WorkloadSettings | None = None
    grace_seconds: Annotated[int, Field(ge=1)] | None = None
    """Not 0: that forgets the pod without waiting for the server to end, which would leave the GPU taken."""
    kubeconfig: Annotated[str, Field(min_length=1)] | None = None
    context: Annotated[str, Field(min_length=1)] | None = None
    timeout_seconds: Seconds = 120.0

    @model_validator(mode="after")
    def _check(self) -> KubernetesSettings:
        if (self.pod is None) == (self.selector is None):
            raise ValueError("exactly one of pod and selector must be set")
        if (self.action == "restart_workload") != (self.workload is not None):
            raise ValueError("workload belongs to action: restart_workload, and is needed there")
        if self.workload is not None and self.workload.kind == "Deployment" and self.pod is not None:
            raise ValueError("the pods of a Deployment change their names: use selector instead of pod")
        if self.workload is not None and self.grace_seconds is not None:
            raise ValueError("grace_seconds belongs to action: delete_pod; a rollout takes the pod's own")
        if self.context is not None and self.kubeconfig is None:
            raise ValueError("context needs kubeconfig")
        return self

    def make(self) -> KubernetesDriver:
        """The driver that these settings describe. Raises `SettingsError` if the client is not installed."""
        try:
            # Here, rather than in the first description, which has ten seconds: a busy machine may need some of them.
            importlib.import_module("kubernetes.client")
        except ImportError:
            raise SettingsError(f"driver kubernetes: {INSTALL}") from None
        workload = (self.workload.kind, self.workload.name) if self.workload else None
        return KubernetesDriver(
            access=Access(self.kubeconfig, self.context),
            namespace=self.namespace,
            pod=self.pod,
            selector=self.selector,
            container=self.container,
            workload=workload,
            grace_seconds=self.grace_seconds,
            timeout_seconds=self.timeout_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesDriver:
    """One pod, by name or by selector. Each look is a connection of its own, so that a rotated token is seen."""

    access: Access
    namespace: str
    pod: str | None = None
    selector: str | None = None
    container: str | None = None
    workload: tuple[Kind, str] | None = None
    """Kind and name; a rollout of it is begun instead of deleting the pod."""
    grace_seconds: int | None = None
    timeout_seconds: float = 120.0
    kind: str = "kubernetes"
    programs: Sequence[str] = ()

    def describe(self) -> Description:
        """Identity and state now; no identity while no container of a server runs."""
        try:
            with connected(self.access, DESCRIBE_SECONDS) as api:
                pod = self._find(api)
            return describe_pod(pod, choose_container(pod, self.container))
        except DriverFailed as failure:
            # Only where the API answered that there is no such pod is it known that nothing runs.
            gone = failure.reason in ("not_found", "will_not_stop")
            return Description(None, False if gone else None, failure.detail)

    def restart(self, deadline_seconds: float, identity: str | None = None) -> None:
        """Delete the pod that is there now, or patch its workload; returns when the API has accepted it."""
        with connected(self.access, deadline_seconds) as api:
            # The workload first: its version goes into the patch, so that what happens from here on is a conflict.
            workload = api.workload(*self.workload, self.namespace) if self.workload else None
            pod = self._find(api)
            container = choose_container(pod, self.container)
            check_pod(pod, by_name=self.pod is not None)
            check_same(identity, describe_pod(pod, container).identity)
            if self.workload is None or workload is None:
                api.delete_pod(pod, self.grace_seconds)
            else:
                check_workload(self.workload[0], workload, pod)
                api.restart_workload(self.workload[0], workload, datetime.datetime.now(datetime.UTC))

    def _find(self, api: Api) -> V1Pod:
        if self.pod is not None:
            return api.pod(self.pod, self.namespace)
        return only_live_pod(api.pods(self.selector or "", self.namespace), self.selector or "")
