"""The Dockerfile, as far as it can be checked without a registry, and the simulated server that runs in it."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import urllib.request
from typing import Any

import pytest

from demo.vllm import Options
from tests.deploy.files import CONFIG, run
from tests.tools import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_the_dockerfile_is_clean() -> None:
    """By hadolint, with no rule turned off."""
    found = run("hadolint", "--no-color", "Dockerfile")
    assert (found.returncode, found.stdout) == (0, "")


def test_the_health_check_of_the_image_tells_well_from_ill(monkeypatch: pytest.MonkeyPatch) -> None:
    """The very command of the Dockerfile: a server that answers, one that is not there, and no proxy is asked."""
    found = re.search(r"^HEALTHCHECK .*? CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert found is not None
    command = json.loads(found[1])
    server = demo_server()
    server.ADDRESS = "127.0.0.1"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with server.Server(Options()) as serving:
        monkeypatch.setenv("STALLWATCH_HEALTH_URL", f"{serving.url}/health")
        well = run(*command)
        assert well.returncode == 0, well.stdout
    assert run(*command).returncode == 1


def test_the_image_gets_what_the_build_copies_and_no_more() -> None:
    """Each COPY of the build stage is let through by .dockerignore, and each package is copied."""
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line[1:].rstrip("/") for line in ignored if line.startswith("!")}
    copied = {
        word
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for word in shlex.split(line)[:-1]
    }
    assert "*" in ignored
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


def test_the_build_finds_its_builder_in_the_lock_file() -> None:
    """The command of sed in the Dockerfile gives one package with its hashes."""
    found = re.search(r"sed -n '([^']+)' requirements-dev.lock", DOCKERFILE)
    assert found is not None
    lines = run("sed", "-n", found[1], "requirements-dev.lock").stdout.splitlines()
    assert re.fullmatch(r"setuptools==\S+ \\", lines[0])
    assert len(lines) >= 2
    assert all(re.match(r"    --hash=sha256:[0-9a-f]{64}", line) or "# via" in line for line in lines[1:])


def demo_server() -> Any:
    """The module config/compose/demo_server.py."""
    spec = importlib.util.spec_from_file_location("demo_server", CONFIG / "demo_server.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_simulated_server_serves_more_than_its_own_loopback() -> None:
    """Another address than 127.0.0.1, as the container's network has; all addresses is what the file says."""
    server = demo_server()
    assert server.ADDRESS == "0.0.0.0"
    server.ADDRESS = "127.0.0.2"
    with server.Server(Options()) as serving:
        port = serving.server_address[1]
        with urllib.request.urlopen(f"http://127.0.0.2:{port}/metrics", timeout=5) as answer:
            assert b"vllm:num_requests_running" in answer.read()
