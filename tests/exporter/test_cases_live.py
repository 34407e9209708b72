"""Cases about fetching and parsing rather than about a sequence of pages, each on a server that behaves as reported."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from exporter.ask import Asker
from exporter.config import backend, runtime_named
from exporter.fetch import Fetcher, FetchFailed
from exporter.model import FailureReason
from exporter.watch import Watch
from tests.exporter.servers import answer, read_request, scripted
from tests.recordings.cases.pages import llamacpp, vllm

LLAMA = llamacpp(1, decodes=40).encode()
WAIT_SECONDS = 5.0


@dataclass
class Site:
    """A server with a body, a status or a function for each path, and a list of what was asked of it."""

    paths: Mapping[str, bytes | Callable[[socket.socket], None]]
    asked: list[str] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)

    def __call__(self, connection: socket.socket) -> None:
        while request := read_request(connection):
            self.heads.append(request.lower())
            self.asked.append(request.split()[1].decode())
            reply = self.paths.get(self.asked[-1], answer("404 Not Found", b'{"detail":"Not Found"}'))
            if callable(reply):
                reply(connection)
                return
            connection.sendall(reply)


@contextlib.contextmanager
def watching(site: Site, runtime: str = "auto", limits: Mapping[str, float] | None = None) -> Iterator[Watch]:
    """A watch over the site, polled by hand."""
    with scripted(site) as url:
        kind = runtime_named(runtime)
        watch = Watch(backend("a", url, kind, limits or {}), Fetcher(url, None, kind.metrics_paths), Asker(url))
        try:
            yield watch
        finally:
            watch.close()


def silence(connection: socket.socket) -> None:
    """Hold the request until the other side gives up."""
    with contextlib.suppress(OSError):
        connection.recv(1)


def test_a_metrics_page_that_never_comes_beside_a_good_health() -> None:
    """llama.cpp#27388: /metrics waits for a loop that hangs and /health does not: unreachable says so, nobody asks."""
    site = Site({"/metrics": silence, "/health": answer(body=b'{"status":"ok"}'), "/props": silence})
    limits = {"poll_timeout_seconds": 0.1, "unreachable_after_seconds": 0.5}
    with watching(site, "llamacpp", limits) as watch:
        until = time.monotonic() + WAIT_SECONDS
        while watch.snapshot.state.verdict != "unreachable" and time.monotonic() < until:
            watch.poll()
            assert watch.snapshot.state.verdict not in ("stuck", "down")
        assert watch.snapshot.state.judgement.reason == "health_answers_metrics_do_not"
        assert not any(path.startswith("/v1/completions") for path in site.asked)


def test_a_health_that_takes_a_second_is_a_good_one() -> None:
    """modelplane#206: /health answers after 1.002 s by design, and a time-out of a second would flap."""

    def slow(connection: socket.socket) -> None:
        time.sleep(1.002)
        connection.sendall(answer(body=b"ok"))

    site = Site({"/metrics": answer("500 Internal Server Error"), "/health": slow})
    with watching(site, "sglang") as watch:
        watch.poll()
        failure = watch.snapshot.state.last_failure
        assert failure is not None
        assert failure.alive is True


def test_a_good_page_needs_no_health() -> None:
    """Where the page can be read, what /health says is not even asked for."""
    site = Site({"/metrics": answer(body=vllm(1, gen=40).encode()), "/health": answer("503 Service Unavailable")})
    with watching(site, "vllm") as watch:
        for _ in range(3):
            watch.poll()
        assert "/health" not in site.asked
        assert watch.snapshot.state.verdict == "busy"


def test_a_redirect_to_another_host_gets_no_key() -> None:
    """litellm#30079: 307 to /metrics/ of the same host is followed with the key, of another host not at all."""
    elsewhere = Site({"/metrics/": answer(body=vllm(gen=40).encode())})
    with scripted(elsewhere) as other:
        here = Site(
            {
                "/metrics": answer("307 Temporary Redirect", Location="/metrics/"),
                "/metrics/": answer(body=vllm(gen=40).encode()),
                "/away": answer("307 Temporary Redirect", Location=f"{other}/metrics/"),
            }
        )
        with scripted(here) as url:
            fetcher = Fetcher(url, {"Authorization": "Bearer secret"})
            assert b"vllm:generation_tokens_total" in fetcher.page(WAIT_SECONDS, 100_000)
            assert all(b"bearer secret" in head for head in here.heads)
            fetcher.use_paths(["/away"])
            with pytest.raises(FetchFailed) as caught:
                fetcher.page(WAIT_SECONDS, 100_000)
            fetcher.close()
    assert caught.value.reason is FailureReason.HTTP_ERROR
    assert elsewhere.asked == []


def test_a_page_in_quotes_does_not_end_the_watching() -> None:
    """llama.cpp#17384: the page as one JSON string is unmeasured, and the next good one is read as ever."""
    quoted = b'"' + LLAMA.replace(b"\n", b"\\n") + b'"'
    site = Site({"/metrics": answer(body=quoted), "/health": answer()})
    with watching(site, "llamacpp") as watch:
        watch.poll()
        assert (watch.snapshot.state.verdict, watch.snapshot.state.judgement.reason) == ("unmeasured", "unparsable")
        site.paths = {**site.paths, "/metrics": answer(body=LLAMA)}
        watch.poll()
        assert watch.snapshot.state.verdict == "busy"


def test_a_slow_server_has_one_reading_at_a_time_and_no_packing_to_do() -> None:
    """llama.cpp#29104: polls wait for each other, a time-out closes its connection, and nothing asks to compress."""
    lock, now, most, closed = threading.Lock(), [0], [0], threading.Event()

    def slow(connection: socket.socket) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        try:
            if connection.recv(1) == b"":
                closed.set()
        finally:
            with lock:
                now[0] -= 1

    site = Site({"/metrics": slow, "/health": answer()})
    limits = {"poll_interval_seconds": 0.01, "poll_timeout_seconds": 0.1}
    with watching(site, "vllm", limits) as watch:
        watch.start()
        until = time.monotonic() + WAIT_SECONDS
        while site.asked.count("/metrics") < 5 and time.monotonic() < until:
            time.sleep(0.01)
        watch.stop()
        watch.join(WAIT_SECONDS)
    assert site.asked.count("/metrics") >= 5
    assert most[0] == 1
    assert closed.is_set()
    assert all(b"accept-encoding: identity" in head for head in site.heads)


@pytest.mark.parametrize("runtime", ["auto", "llamacpp"])
def test_a_router_is_known_without_loading_a_model(runtime: str) -> None:
    """llama.cpp#23096: reading /metrics of a router loads a model, also before the kind of server is known."""
    loads = Site(
        {
            "/props": answer(body=b'{"role":"router","models":[]}'),
            "/metrics": answer(body=LLAMA),
            "/v1/models": answer(body=b'{"data":[]}'),
        }
    )
    with watching(loads, runtime) as watch:
        for _ in range(5):
            watch.poll()
        assert "/metrics" not in loads.asked
        assert watch.snapshot.state.verdict == "proxy"


@pytest.mark.parametrize("runtime", ["auto", "llamacpp"])
def test_a_sleeping_model_is_not_woken(runtime: str) -> None:
    """llama.cpp#20227: reading /metrics wakes what sleeps and starts its idle time anew."""
    asleep = Site({"/props": answer(body=b'{"is_sleeping":true}'), "/metrics": answer(body=LLAMA)})
    with watching(asleep, runtime) as watch:
        for _ in range(5):
            watch.poll()
        assert "/metrics" not in asleep.asked
        assert watch.snapshot.state.verdict == "paused"


@pytest.mark.parametrize(("runtime", "most"), [("auto", 1), ("trtllm", 0)])
def test_statistics_that_reading_drains_are_left_alone(runtime: str, most: int) -> None:
    """aiperf#877: a JSON list at /metrics is read once at most, its text page at another path from then on."""
    text = b'trtllm_request_success_total{finished_reason="stop",model_name="m"} 5\n'
    site = Site({"/metrics": answer(body=b"[]"), "/prometheus/metrics": answer(body=text)})
    with watching(site, runtime) as watch:
        for _ in range(4):
            watch.poll()
        assert site.asked.count("/metrics") <= most
        assert watch.backend.runtime.name == "trtllm"
        assert watch.snapshot.state.verdict == "idle"


@pytest.mark.parametrize(("runtime", "most"), [("auto", 1), ("trtllm", 0)])
def test_without_a_text_page_the_statistics_are_left_alone_too(runtime: str, most: int) -> None:
    """TensorRT-LLM#4926: with no text anywhere it is unmeasured, and /metrics, slash or not, is not read again."""
    again = answer("307 Temporary Redirect", Location="/metrics")
    site = Site({"/metrics": answer(body=b"[]"), "/metrics/": again, "/health": answer()})
    with watching(site, runtime) as watch:
        for _ in range(4):
            watch.poll()
        assert site.asked.count("/metrics") <= most
        assert watch.snapshot.state.verdict == "unmeasured"


def test_text_where_it_was_found_is_read_there_again() -> None:
    """A gateway publishes the same series at /metrics: a kind of server that is known from text keeps its path."""
    text = b'trtllm:request_success_total{finished_reason="stop",model_name="m"} 5\n'
    site = Site({"/metrics": answer(body=text)})
    with watching(site) as watch:
        for _ in range(3):
            watch.poll()
            assert watch.snapshot.up
        assert watch.backend.runtime.name == "trtllm"
