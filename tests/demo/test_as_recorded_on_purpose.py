"""The simulated server held against recordings of real ones, by the same claims: what people do to it."""

from functools import partial
from itertools import pairwise

from demo.traffic import Traffic
from demo.vllm import Options, Server
from tests.demo.conftest import Serve
from tests.demo.pages import (
    Live,
    Page,
    Poll,
    busy_page,
    has,
    moved,
    recorded,
    running,
    six,
    steps,
    value,
    waiting,
    work,
)
from tests.demo.test_as_recorded_frozen import frozen_while_busy

KV_USE = "vllm:kv_cache_usage_perc"


def aborted(before: Page, after: Page, clients: int) -> None:
    """After all clients left, gauges are back to 0 without an abort counted; the HTTP layer counts 2xx."""
    assert running(before) > 0
    assert (running(after), waiting(after), value(after, KV_USE)) == (0, 0, 0)
    for reason in ("abort", "error"):
        name = "vllm:request_success_total"
        assert value(after, name, finished_reason=reason) == value(before, name, finished_reason=reason)
    totals = [value(page, "http_requests_total", handler="/v1/completions") for page in (before, after)]
    assert totals[1] - totals[0] == clients


def test_aborted_recorded() -> None:
    """A real server whose six clients leave at once, thrice; and one in a prefill."""
    for busy, idle, clients in (
        ("busy0", "aborted0", 6),
        ("busy1", "aborted1", 6),
        ("busy2", "aborted2", 6),
        ("prefill", "aborted-prefill", 1),
    ):
        before = recorded("14-abort-all", busy, whole=True)[-1].page
        aborted(before, recorded("14-abort-all", idle)[0].page, clients)


def test_aborted_simulated(serve: Serve) -> None:
    """The simulated one: six clients in decode, and one in a prefill."""
    live = serve()
    assert live.ask() == 200
    for clients, prompt_tokens in ((6, 20), (1, 15_000)):
        with Traffic(live.url, clients=clients, max_tokens=1000, prompt_tokens=prompt_tokens):
            before = live.until(partial(holds, clients))
        after = live.until(partial(has_counted, value(before, "http_requests_total") + clients))
        aborted(before, after, clients)


def holds(clients: int, page: Page) -> bool:
    """Whether that many requests are in flight and some of them has used KV cache."""
    return running(page) + waiting(page) == clients and value(page, KV_USE) > 0


def has_counted(calls: float, page: Page) -> bool:
    """Whether so many HTTP calls have ended and nothing runs."""
    return value(page, "http_requests_total") == calls and not running(page)


def asleep(polls: list[Poll]) -> None:
    """The page says so, nothing moves, and requests that arrive do not show."""
    assert len(polls) >= 6
    for poll in polls:
        state = "vllm:engine_sleep_state"
        assert value(poll.page, state, sleep_state="awake") == 0
        assert value(poll.page, state, sleep_state="weights_offloaded") == 1
        assert (running(poll.page), waiting(poll.page), poll.health) == (0, 0, 200)
    for before, after in steps(polls):
        assert moved(before, after) == set()


def test_asleep_recorded() -> None:
    """A real server put to sleep at level 1, then asked."""
    polls = recorded("12-sleep-mode", "sleeping") + recorded("12-sleep-mode", "sleeping-reqs")
    asleep(polls)


def test_asleep_simulated(serve: Serve) -> None:
    """The simulated one; awake again, it does what has come."""
    live = serve()
    live.post("/sleep?level=1")
    assert live.call("GET", "/is_sleeping") == (200, '{"is_sleeping":true}')
    with Traffic(live.url, clients=2, max_tokens=10_000):
        asleep(live.polls(8, every=0.03))
        live.post("/wake_up")
        awake = live.until(lambda page: running(page) == 2)
        assert value(awake, "vllm:engine_sleep_state", sleep_state="awake") == 1


def paused(polls: list[Poll], resumed: Page) -> None:
    """Paused with mode keep: as frozen, and awake by the page; later arrivals show in waiting once resumed."""
    frozen_while_busy(polls)
    for poll in polls:
        assert value(poll.page, "vllm:engine_sleep_state", sleep_state="awake") == 1
        assert (running(poll.page), waiting(poll.page)) == (4, 2)
    assert (running(resumed), waiting(resumed)) == (4, 4)


def test_paused_recorded() -> None:
    """A real server paused under six clients; two more come."""
    paused(recorded("13-pause-keep", "paused"), recorded("13-pause-keep", "resumed", whole=True)[0].page)


def test_paused_simulated(serve: Serve) -> None:
    """The simulated one."""
    live = serve()
    with six(live):
        busy_page(live)
        live.post("/pause?mode=keep")
        assert live.call("GET", "/is_paused") == (200, '{"is_paused":true}')
        with Traffic(live.url, clients=2, max_tokens=10_000):
            polls = live.polls(12, every=0.03)
            live.post("/resume")
            paused(polls, live.until(lambda page: waiting(page) == 4))
        assert live.call("GET", "/is_paused") == (200, '{"is_paused":false}')


def paused_by_abort(before: Page, polls: list[Poll]) -> None:
    """Paused with mode abort: all six end with the reason abort, counted; then nothing moves."""
    name = "vllm:request_success_total"
    for poll in polls:
        ends = [value(page, name, finished_reason="abort") for page in (before, poll.page)]
        assert ends[1] - ends[0] == 6
        assert (running(poll.page), waiting(poll.page)) == (0, 0)
    for earlier, later in steps(polls):
        assert moved(earlier, later) == set()


def test_paused_by_abort_recorded() -> None:
    """A real server."""
    before = recorded("13c-pause-wait-abort", "busy2")[-1].page
    paused_by_abort(before, recorded("13c-pause-wait-abort", "paused-abort"))


def test_paused_by_abort_simulated(serve: Serve) -> None:
    """The simulated one; requests that come while it is paused wait outside."""
    live = serve()
    with six(live):
        before = busy_page(live)
        live.post("/pause?mode=abort")
        paused_by_abort(before, live.polls(4))


def restarted(polls: list[Poll], *, start_time: bool) -> None:
    """Refused, never anything between, then 200 at once with all counters at 0 and another start time, if any."""
    assert {poll.error for poll in polls} == {None, "refused"}
    at = next(at for at, (a, b) in enumerate(pairwise(polls), 1) if a.error and not b.error)
    before = next(poll.page for poll in polls if poll.page)
    after = polls[at].page
    assert work(before) > (0, 0, 0)
    assert work(after) == (0, 0, 0)
    assert polls[at].health == 200
    assert value(after, "vllm:e2e_request_latency_seconds_count") == 0
    assert not has(after, "http_requests_total")
    name = "process_start_time_seconds"
    assert (name in before, name in after) == (start_time, start_time)
    if start_time:
        assert after[name] > before[name]
    # Several API servers publish no gauges before the first step.
    assert has(after, "vllm:num_requests_running") is start_time


def test_restarted_recorded() -> None:
    """A real server whose engine was killed, and one with two API servers."""
    restarted(recorded("08-killed-engine"), start_time=True)
    restarted(recorded("11-multi-api-idle-restart"), start_time=False)


def test_restarted_simulated_with_two_api_servers() -> None:
    """The simulated one started again on its port: only the counters tell."""
    with Server(Options(step_seconds=0.01, api_servers=2)) as server:
        live = Live(server.url)
        assert live.ask() == 200
        polls = live.polls(2)
    polls += live.polls(2)
    with Server(Options(port=int(live.url.rpartition(":")[2]), api_servers=2)):
        restarted(polls + live.polls(2), start_time=False)
