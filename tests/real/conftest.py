"""One real vLLM for all tests here, and for each test a new chain of watchers around it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from demo.parts import Parts, free_port
from tests.real import times as times_file
from tests.real.chain import FIRST_PORT, RealChain
from tests.real.server import ROOT, RealServer


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Minutes of a real server are only for those who ask for them by `-m real`."""
    if "real" not in str(config.option.markexpr):
        for item in items:
            if item.get_closest_marker("real"):
                item.add_marker(pytest.mark.skip(reason="needs a real model server: make test-real"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """vLLM, answering."""
    if not (ROOT / ".venv-vllm" / "ready").exists():
        pytest.skip("vLLM is not installed: tests/real/install_vllm.sh")
    with RealServer(tmp_path_factory.mktemp("vllm"), free_port(FIRST_PORT)).running() as running:
        running.make_well()
        yield running


@pytest.fixture
def chain(server: RealServer) -> Iterator[RealChain]:
    """A chain that the test starts, ended with the server well; pytest shows what it said if the test failed."""
    server.make_well()
    with Parts() as parts:
        chain = RealChain(parts, server)
        try:
            yield chain
        finally:
            sys.stdout.write(f"{chain.logs()}\n== vllm\n{server.last_words()}\n")


@pytest.fixture(scope="session")
def times() -> Iterator[dict[str, times_file.Times]]:
    """Where tests leave the times they measured; written at the end."""
    cases: dict[str, times_file.Times] = {}
    yield cases
    times_file.write(cases)
