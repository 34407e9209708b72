"""The kubernetes driver on a real cluster, for whoever has one: one disposable pod is restarted for good."""

from __future__ import annotations

import os
from pathlib import Path

from remediator.drivers.kubernetes import KubernetesDriver, KubernetesSettings
from tests import realparts
from tests.remediator.drivers.contract import eventually
from tests.remediator.drivers.kubernetes_stage import KubernetesStage

VARIABLES = {"kubeconfig": "STALLWATCH_TEST_KUBECONFIG", "namespace": "STALLWATCH_TEST_NAMESPACE"}
SELECTOR = "STALLWATCH_TEST_SELECTOR"


def check(driver: KubernetesDriver, seconds: float) -> None:
    """One restart, from the running pod to another running one."""
    before = driver.describe()
    assert before.running, before.detail
    assert before.identity
    driver.restart(30.0)
    assert eventually(lambda: driver.describe().identity not in (None, before.identity), seconds), driver.describe()
    assert driver.describe().running


def test_a_restart_on_a_real_cluster() -> None:
    """docs/drivers/kubernetes.md says what to prepare."""
    missing = [name for name in (*VARIABLES.values(), SELECTOR) if name not in os.environ]
    realparts.need("Kubernetes", f"no cluster: {', '.join(missing)} not set" if missing else None)
    settings = {key: os.environ[name] for key, name in VARIABLES.items()} | {"selector": os.environ[SELECTOR]}
    settings["kubeconfig"] = str(Path(settings["kubeconfig"]).expanduser())
    check(KubernetesSettings.model_validate({"kind": "kubernetes", **settings}).make(), 300.0)


def test_the_same_on_the_made_up_cluster(kubernetes_stage: KubernetesStage) -> None:
    """So that the check above is known to run."""
    check(kubernetes_stage.driver, 20.0)
