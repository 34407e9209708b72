"""The real Docker engine of the driver's tests, and the image built by another one."""

from __future__ import annotations

from tests.deploy.image_build import image
from tests.remediator.drivers.docker_engine import docker_engine

__all__ = ["docker_engine", "image"]
