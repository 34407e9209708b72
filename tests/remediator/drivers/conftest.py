"""The stages of all kinds of drivers; see contract.py."""

from __future__ import annotations

from tests.remediator.drivers.command_stage import command_stage
from tests.remediator.drivers.docker_engine import docker_engine, docker_stage
from tests.remediator.drivers.kubernetes_stage import hands, kubernetes_stage, stateful
from tests.remediator.drivers.systemd_machine import systemd_machine, systemd_stage

__all__ = [
    "command_stage",
    "docker_engine",
    "docker_stage",
    "hands",
    "kubernetes_stage",
    "stateful",
    "systemd_machine",
    "systemd_stage",
]
