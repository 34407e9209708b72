"""Simulated servers for the tests, in this process: they end with the test."""

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from demo.vllm import Options, Server
from tests.demo.pages import Live

Serve = Callable[..., Live]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(ranks=2)` starts a server with these options, with short steps unless said otherwise."""
    with ExitStack() as stack:

        def start(*, step_seconds: float = 0.02, **options: int | str) -> Live:
            server = Server(Options(step_seconds=step_seconds, **options))  # type: ignore[arg-type]
            return Live(stack.enter_context(server).url)

        yield start


@pytest.fixture
def unused_port() -> int:
    """A port of loopback that nothing listens on, below those that the kernel gives to outgoing connections."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no unused port")
