"""The loop of one backend with a clock and a server of the test's own: what is read, asked, published."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from exporter.config import backend, runtime_named
from exporter.fetch import FetchFailed
from exporter.fleet import Fleet
from exporter.metrics import is_dead
from exporter.model import AskResult, FailureReason, RankKey
from exporter.runtimes import HowToAsk, builtin
from exporter.watch import Watch
from stallwatch.settings import SettingsError

WAIT_SECONDS = 5.0


class Clock:
    """A clock that stands until it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_796_000_000.0 + self.now


@dataclass
class Server:
    """A backend as the watch sees it."""

    steps: float = 0
    running: float = 0
    failure: FetchFailed | None = None
    says_paused: bool = False
    props: Mapping[str, object] = field(default_factory=dict)
    body: str = ""
    reads: list[str] = field(default_factory=list)

    def page(self, timeout_seconds: float, max_bytes: int) -> bytes:
        self.reads.append("page")
        if self.failure:
            raise self.failure
        if self.body:
            return self.body.encode()
        labels = 'engine="0",model_name="tiny"'
        return (
            f"vllm:iteration_tokens_total_count{{{labels}}} {self.steps}\n"
            f"vllm:num_requests_running{{{labels}}} {self.running}\n"
        ).encode()

    def alive(self, timeout_seconds: float) -> bool:
        self.reads.append("alive")
        return True

    def models(self, timeout_seconds: float) -> bool:
        self.reads.append("models")
        return True

    def look(self, path: str, timeout_seconds: float) -> Mapping[str, object]:
        self.reads.append(path)
        return self.props

    def use_paths(self, metrics_paths: Sequence[str]) -> None:
        self.reads.append("paths")

    def paused(self, timeout_seconds: float) -> bool:
        self.reads.append("paused")
        return self.says_paused

    def forget_pause(self) -> None:
        self.reads.append("forget")

    def close(self) -> None:
        self.reads.append("closed")


class Asker:
    """An asker whose answers the test releases."""

    def __init__(self, result: AskResult = AskResult.UNANSWERED) -> None:
        self.asked: list[tuple[RankKey, str | None]] = []
        self.release, self.started = threading.Event(), threading.Event()
        self.result = result

    def ask(
        self, how: HowToAsk, rank: RankKey, deadline_seconds: float, named: bool, model: str | None
    ) -> tuple[AskResult, str]:
        self.asked.append((rank, model))
        self.started.set()
        self.release.wait(WAIT_SECONDS)
        return self.result, ""


LIMITS: Mapping[str, float] = {
    "poll_interval_seconds": 1,
    "suspect_after_seconds": 5,
    "stuck_after_seconds": 10,
    "ask_timeout_seconds": 3,
}


def watching(server: Server, asker: Asker, clock: Clock, **more: Any) -> Watch:
    """A watch over the test's server."""
    target = backend("a", "http://127.0.0.1:1", builtin()["vllm"], LIMITS, **more)
    return Watch(target, server, asker, monotonic=clock.monotonic, wall=clock.wall)


def threads_named(prefix: str) -> list[threading.Thread]:
    """Threads beside the loop."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]


def join(prefix: str) -> None:
    """Wait for what runs beside the loop."""
    for thread in threads_named(prefix):
        thread.join(WAIT_SECONDS)


def test_a_question_never_stops_the_loop() -> None:
    """While a question hangs, pages go on being read; its answer is taken in when it comes."""
    server, asker, clock = Server(steps=5, running=2), Asker(), Clock()
    watch = watching(server, asker, clock)
    for _ in range(7):
        watch.poll()
        clock.now += 1
    assert asker.started.wait(WAIT_SECONDS)
    before = server.reads.count("page")
    for _ in range(5):
        watch.poll()
        clock.now += 1
    assert server.reads.count("page") == before + 5
    assert len(asker.asked) == 1, "one at a time"
    asker.release.set()
    join("ask-a")
    watch.poll()
    assert watch.snapshot.state.ranks["tiny", "0"].misses == 1
    assert watch.snapshot.state.verdict == "stuck"


def test_the_question_names_the_model_of_the_page() -> None:
    """No configuration is needed for the model's name: the page has it; the configuration may override it."""
    server, asker, clock = Server(steps=5, running=2), Asker(), Clock()
    asker.release.set()
    watch = watching(server, asker, clock)
    for _ in range(8):
        watch.poll()
        clock.now += 1
    join("ask-a")
    assert asker.asked[0] == (("tiny", "0"), "tiny")


def test_pause_is_asked_only_when_a_page_stands_still_and_beside_the_loop() -> None:
    """A moving server is not asked whether it is paused; a standing one is, and paused is what it then is."""
    server, asker, clock = Server(steps=5, running=2, says_paused=True), Asker(), Clock()
    watch = watching(server, asker, clock)
    for _ in range(5):
        server.steps += 10
        watch.poll()
        clock.now += 1
    join("pause-a")
    # The first page has nothing before it, so it may be asked about once.
    assert server.reads.count("paused") <= 1
    for _ in range(4):
        watch.poll()
        join("pause-a")
        clock.now += 1
    assert watch.snapshot.state.verdict == "paused"
    assert asker.asked == []


def test_a_failed_reading_asks_for_health_unless_refused() -> None:
    """A time-out is told apart by /health; a refused connection needs no second look."""
    server, clock = Server(), Clock()
    watch = watching(server, Asker(), clock)
    server.failure = FetchFailed(FailureReason.REFUSED, "connection refused")
    watch.poll()
    assert "alive" not in server.reads
    server.failure = FetchFailed(FailureReason.TIMEOUT, "no answer")
    watch.poll()
    assert "alive" in server.reads
    assert watch.snapshot.poll_failures == {"refused": 1, "timeout": 1}
    assert not watch.snapshot.up


def test_a_proxy_is_only_asked_for_its_models() -> None:
    """Of a configured proxy /metrics is never read."""
    server, clock = Server(), Clock()
    watch = watching(server, Asker(), clock, proxy=True)
    watch.poll()
    watch.poll()
    assert server.reads == ["models", "models"]
    assert watch.snapshot.state.verdict == "proxy"
    assert watch.snapshot.up


def test_history_keeps_each_change_with_its_sentence() -> None:
    """Every change of verdict is kept with the evidence it rested on."""
    server, clock = Server(steps=5, running=2), Clock()
    watch = watching(server, Asker(AskResult.ANSWERED), clock)
    for _ in range(7):
        watch.poll()
        clock.now += 1
    kinds = [change.verdict for change in watch.snapshot.history]
    assert kinds == ["busy", "stalled"]
    assert "2 running and 0 waiting" in watch.snapshot.history[-1].sentence
    rank = watch.snapshot.history[-1].rank
    assert rank is not None
    previous, latest = rank["previous"], rank["latest"]
    assert previous["values"] == latest["values"], "nothing moved between the two pages"
    assert previous["at"] < latest["at"]


def test_a_loop_that_ended_does_not_look_fresh() -> None:
    """No finished poll for 3 intervals and 2 time-outs: the backend's series must go."""
    server, clock = Server(), Clock()
    watch = watching(server, Asker(), clock)
    watch.poll()
    assert not is_dead(watch.snapshot, clock.now + 12.9)
    assert is_dead(watch.snapshot, clock.now + 13.1)


def test_an_unexpected_error_does_not_end_the_watching() -> None:
    """One poll that raises something nobody thought of is logged, and the next one is made."""

    class Broken(Server):
        def page(self, timeout_seconds: float, max_bytes: int) -> bytes:
            super().page(timeout_seconds, max_bytes)
            if len(self.reads) == 1:
                raise RuntimeError("unthought of")
            done.set()
            return b""

    done = threading.Event()
    target = backend("a", "http://127.0.0.1:1", builtin()["vllm"], {**LIMITS, "poll_interval_seconds": 0.01})
    watch = Watch(target, Broken(), Asker())
    watch.start()
    assert done.wait(WAIT_SECONDS)
    watch.stop()
    watch.join(WAIT_SECONDS)


LLAMA = "llamacpp:n_decode_total 5\nllamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"


def watching_llama(server: Server, clock: Clock, **more: Any) -> Watch:
    """A watch over a llama-server."""
    target = backend("a", "http://127.0.0.1:1", builtin()["llamacpp"], LIMITS, **more)
    return Watch(target, server, Asker(), monotonic=clock.monotonic, wall=clock.wall)


def test_a_sleeping_llama_server_is_left_asleep() -> None:
    """Its /props says that it sleeps: paused, and its /metrics, which would wake it, is not read."""
    server, clock = Server(props={"is_sleeping": True}, body=LLAMA), Clock()
    watch = watching_llama(server, clock)
    for _ in range(3):
        watch.poll()
        clock.now += 1
    assert server.reads == ["/props"] * 3
    assert (watch.snapshot.state.verdict, watch.snapshot.up) == ("paused", True)
    server.props = {"is_sleeping": False}
    watch.poll()
    assert watch.snapshot.state.verdict == "idle"


def test_a_llama_router_is_never_scraped() -> None:
    """A router would load a model to answer /metrics: it is a proxy, looked at through /v1/models from then on."""
    server, clock = Server(props={"role": "router"}, body=LLAMA), Clock()
    watch = watching_llama(server, clock)
    for _ in range(3):
        watch.poll()
    assert "page" not in server.reads
    assert watch.snapshot.state.verdict == "proxy"


def test_an_idle_server_is_left_alone_for_as_long_as_it_needs_to_fall_asleep() -> None:
    """With its idle time configured, an idle server is not read until that time is over, and is not stale meanwhile."""
    server, clock = Server(props={"is_sleeping": False}, body=LLAMA), Clock()
    watch = watching_llama(server, clock, sleep_idle_seconds=30.0)
    for _ in range(32):
        watch.poll()
        clock.now += 1
        assert not is_dead(watch.snapshot, clock.now)
    assert server.reads.count("page") == 1
    assert (watch.snapshot.state.verdict, watch.snapshot.state.judgement.reason) == ("paused", "left_alone")
    for _ in range(3):
        watch.poll()
        clock.now += 1
    assert server.reads.count("page") == 2, "it did not fall asleep, so it was used: read again"


def test_the_runtime_is_told_from_the_page() -> None:
    """`auto` becomes the runtime whose series are on the page, with its limits and its way of asking."""
    server, clock = Server(), Clock()
    target = backend("a", "http://127.0.0.1:1", runtime_named("auto"), {})
    watch = Watch(target, server, Asker(), monotonic=clock.monotonic, wall=clock.wall)
    server.body = "python_info 1\n"
    watch.poll()
    assert watch.snapshot.state.verdict == "unmeasured"
    server.body = LLAMA
    watch.poll()
    assert watch.backend.runtime.name == "llamacpp"
    assert watch.backend.limits.stuck_after_seconds == 900
    assert watch.backend.limits.ask_when == "stalled"
    assert watch.snapshot.state.verdict == "idle"
    assert watch.configured is target


class TestFleet:
    """Reloading keeps what did not change."""

    def fleet(self, configured: list[list[str]]) -> Fleet:
        def load() -> list[Any]:
            names = configured[0]
            if "bad" in names:
                raise SettingsError("exporter.yml: backends: is missing")
            slow = {**LIMITS, "poll_interval_seconds": 60}
            return [backend(name, f"http://127.0.0.1:1/{name}", builtin()["vllm"], slow) for name in names]

        return Fleet(load, lambda target: Watch(target, Server(), Asker()))

    def test_unchanged_backends_keep_their_state(self) -> None:
        """A reload adds b, keeps the very watch of a, and drops c with all its series."""
        configured = [["a", "c"]]
        fleet = self.fleet(configured)
        fleet.start()
        kept = fleet.snapshot("a")
        configured[0] = ["a", "b"]
        assert fleet.reload() is None
        assert [s.backend.name for s in fleet.snapshots()] == ["a", "b"]
        after = fleet.snapshot("a")
        assert kept is not None
        assert after is not None
        assert after.taken_at >= kept.taken_at
        assert after.backend is kept.backend
        fleet.stop()

    def test_a_bad_file_changes_nothing(self) -> None:
        """A reload that fails says so and leaves every backend watched."""
        configured = [["a"]]
        fleet = self.fleet(configured)
        fleet.start()
        configured[0] = ["bad"]
        assert fleet.reload() == "exporter.yml: backends: is missing"
        assert not fleet.last_reload_successful
        assert [s.backend.name for s in fleet.snapshots()] == ["a"]
        fleet.stop()

    def test_stopping_does_not_wait_for_a_server_that_hangs(self) -> None:
        """A reading that hangs is left behind: the loop of that backend alone is still there after the stop."""
        reading, release = threading.Event(), threading.Event()

        class Hanging(Server):
            def page(self, timeout_seconds: float, max_bytes: int) -> bytes:
                reading.set()
                assert release.wait(30)
                return super().page(timeout_seconds, max_bytes)

        targets = [backend(name, f"http://127.0.0.1:1/{name}", builtin()["vllm"], LIMITS) for name in ("bad", "good")]
        servers = {"bad": Hanging(), "good": Server()}
        fleet = Fleet(lambda: targets, lambda target: Watch(target, servers[target.name], Asker()))
        fleet.start()
        assert reading.wait(WAIT_SECONDS)
        fleet.stop()
        assert [thread.name for thread in threads_named("watch-")] == ["watch-bad"]
        assert servers["good"].reads, "it was delayed by the one that hangs"
        release.set()
        join("watch-")


@pytest.fixture(autouse=True)
def _quiet(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Log lines of the watch are not part of a test's output."""
