"""What the simulated server does beside what recordings show: faults to order, routing, answers, cost."""

import json
import time
from contextlib import ExitStack

import pytest

from demo.traffic import Traffic
from demo.vllm import Options, Server
from tests.demo.conftest import Serve
from tests.demo.pages import Live, moved, running, steps, value, waiting, work

KV_USE = "vllm:kv_cache_usage_perc"


def test_phantom_work_stays_until_the_next_step(serve: Serve) -> None:
    """After a mass abort some versions show work that is not there; one short request clears it."""
    live = serve()
    live.post("/demo/phantom?running=106&waiting=15&kv=0.904")
    for poll in live.polls(5):
        assert (running(poll.page), waiting(poll.page), value(poll.page, KV_USE)) == (106, 15, 0.904)
    assert live.ask() == 200
    page = live.page()
    assert (running(page), waiting(page), value(page, KV_USE)) == (0, 0, 0)


def test_a_prefill_lasts_as_long_as_ordered(serve: Serve) -> None:
    """Only KV use moves, upwards, until about that time is over; then one token is there."""
    live = serve()
    live.post("/demo/prefill?seconds=1")
    live.until(lambda page: running(page) == 1)
    began = time.monotonic()
    polls = live.polls_until(lambda page: work(page)[1] == 1, every=0.1)
    assert time.monotonic() - began > 0.8
    for before, after in steps(polls[:-1]):
        assert moved(before, after) <= {KV_USE}
        assert value(after, KV_USE) >= value(before, KV_USE)
    assert value(polls[-2].page, KV_USE) > value(polls[0].page, KV_USE)


def test_a_long_ordered_prefill_fits_the_cache(serve: Serve) -> None:
    """A quarter of an hour of prefill still raises KV use from poll to poll and would not fill it."""
    live = serve()
    live.post("/demo/prefill?seconds=900")
    first, *_, last = live.polls(8, every=0.1)
    assert moved(first.page, last.page) >= {KV_USE}
    assert value(last.page, KV_USE) < 0.01


def test_requests_hang_while_a_step_lasts(serve: Serve) -> None:
    """A huge step holds up whatever comes, and then goes on with it."""
    live = serve()
    live.post("/demo/huge-step?seconds=0.6")
    assert live.ask(timeout=0.2) is None
    assert live.ask() == 200


def test_a_request_by_rank_reaches_that_rank(serve: Serve) -> None:
    """The header names the rank; a rank that does not exist is rejected."""
    live = serve(ranks=2)
    assert live.ask(X_data_parallel_rank="1") == 200
    page = live.page()
    assert [value(page, "vllm:generation_tokens_total", engine=rank) for rank in "01"] == [0, 1]
    assert live.ask(X_data_parallel_rank="2") == 400


def test_an_idle_frozen_rank_still_gets_its_share(serve: Serve) -> None:
    """The router knows only what ranks publish, so some of the requests hang, unseen."""
    live = serve(ranks=2)
    live.post("/demo/freeze?rank=0")
    assert sorted(str(live.ask(timeout=0.3)) for _ in range(4)) == ["200", "200", "None", "None"]
    assert running(live.page(), engine="0") == 0


@pytest.mark.parametrize("path", ["/is_paused", "/is_sleeping"])
def test_a_frozen_engine_answers_no_call(serve: Serve, path: str) -> None:
    """What the API server has to ask the engine hangs with it; health and models do not."""
    live = serve()
    live.post("/demo/freeze")
    with pytest.raises(TimeoutError):
        live.call("GET", path, timeout=0.2)
    assert live.call("GET", "/health") == (200, "")
    assert json.loads(live.call("GET", "/v1/models")[1])["data"][0]["id"] == "tiny"


def test_a_stream_says_200_before_the_engine_says_anything(serve: Serve) -> None:
    """A stream gives a status line even from a frozen engine, and its tokens once it is let go."""
    live = serve()
    body = {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 3, "stream": True}
    status, text = live.call("POST", "/v1/chat/completions", body)
    assert (status, text.count("data: "), text.count('" word"')) == (200, 5, 3)
    assert text.endswith("data: [DONE]\n\n")
    live.post("/demo/freeze")
    with pytest.raises(TimeoutError):
        live.call("POST", "/v1/completions", {"prompt": "a", "stream": True}, timeout=0.2)


def test_an_answer_names_its_usage(serve: Serve) -> None:
    """One token per word of the prompt, and as many output tokens as asked for."""
    live = serve()
    _, text = live.call("POST", "/v1/completions", {"prompt": "word " * 300, "max_tokens": 2})
    answer = json.loads(text)
    assert answer["usage"] == {"prompt_tokens": 300, "completion_tokens": 2, "total_tokens": 302}
    assert answer["choices"][0]["finish_reason"] == "length"
    assert work(live.page()) == (2, 2, 300)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/completions", {"prompt": "a", "model": "other"}, 404),
        ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 0}, 400),
        ("POST", "/v1/completions", {"prompt": "a " * 16_400}, 400),
        ("POST", "/v1/completions", [], 400),
        ("POST", "/v1/completions", {}, 400),
        ("GET", "/v1/completions", None, 405),
        ("GET", "/nowhere", None, 404),
        ("POST", "/demo/prefill", None, 400),
        ("POST", "/demo/freeze?rank=7", None, 400),
        ("POST", "/pause?mode=never", None, 400),
    ],
)
def test_what_cannot_be_done_is_said(serve: Serve, method: str, path: str, body: object, status: int) -> None:
    """Wrong calls get the status that the real server gives them, and a JSON body."""
    found, text = serve().call(method, path, body)
    assert found == status
    assert json.loads(text)


def test_a_page_is_cheap() -> None:
    """A page costs less than 5 ms of processor time and is as large as a real one (49 KB)."""
    server = Server(Options())
    try:
        began = time.process_time()
        sizes = [len(server.page()) for _ in range(20)]
        assert (time.process_time() - began) / 20 < 0.005
        assert all(44_000 < size < 54_000 for size in sizes)
    finally:
        server.server_close()


def test_traffic_keeps_requests_in_flight_over_a_restart() -> None:
    """Its clients wait for their answers, begin again after one, and survive a server that goes and comes."""
    with ExitStack() as stack:
        with Server(Options(step_seconds=0.01)) as server:
            live = Live(server.url)
            traffic = stack.enter_context(Traffic(live.url, clients=6, max_tokens=5))
            live.until(lambda page: value(page, "vllm:request_success_total") > 12)
            server.ranks.freeze(True, None)
        stack.enter_context(Server(Options(port=int(live.url.rpartition(":")[2]), step_seconds=0.01)))
        live.until(lambda page: value(page, "vllm:request_success_total") > 12)
    assert traffic.answered > 24
    assert traffic.failed >= 1


def test_traffic_wants_a_url() -> None:
    """An address that is none is refused before anything is sent."""
    with pytest.raises(ValueError, match="not an http:// address"):
        Traffic("localhost:8000", clients=1)
