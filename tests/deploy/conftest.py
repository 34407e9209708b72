"""The real Docker engine of the driver's tests."""

from __future__ import annotations

from tests.remediator.drivers.docker_engine import docker_engine

__all__ = ["docker_engine"]
