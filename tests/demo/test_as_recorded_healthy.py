"""The simulated server held against recordings of real ones, by the same claims: series, healthy work."""

from demo.traffic import Traffic
from tests.demo.conftest import Serve
from tests.demo.pages import Poll, busy_page, has, moved, recorded, running, shapes, six, steps, value, waiting, work

KV_USE = "vllm:kv_cache_usage_perc"


def test_a_fresh_page_has_the_recorded_series(serve: Serve) -> None:
    """A server that has answered nothing yet has the 425 series of a real one."""
    real = next(poll.page for poll in recorded("16-startup") if poll.page)
    assert shapes(serve().page()) == shapes(real)


def test_an_idle_page_has_the_recorded_series(serve: Serve) -> None:
    """After one completion an idle server has the 440 series of a real one."""
    live = serve()
    assert live.ask() == 200
    idle = live.until(lambda page: has(page, "http_requests_total"))
    assert shapes(idle) == shapes(recorded("01-idle")[0].page)


def test_a_busy_page_has_the_recorded_series(serve: Serve) -> None:
    """A busy server has the series of a real one."""
    live = serve()
    assert live.ask() == 200
    with six(live):
        assert shapes(busy_page(live)) == shapes(recorded("02-busy-decode", "busy")[0].page)


def test_a_page_of_two_engines_has_the_recorded_series(serve: Serve) -> None:
    """Two engines behind two API servers: no process_*, no *_created, a series per engine."""
    live = serve(ranks=2, api_servers=2)
    for rank in ("0", "1"):
        assert live.ask(X_data_parallel_rank=rank) == 200
    page = live.until(lambda page: has(page, "http_requests_total"))
    assert shapes(page) == shapes(recorded("10-dp2-one-frozen")[0].page)


def test_a_page_after_sleep_has_the_recorded_series(serve: Serve) -> None:
    """The families of sleep mode appear with its first use."""
    live = serve()
    live.post("/sleep?level=1")
    live.post("/wake_up")
    real = {series for series in shapes(recorded("12-sleep-mode")[-1].page) if series.startswith("vllm:")}
    assert {series for series in shapes(live.page()) if series.startswith("vllm:")} == real


def decodes(polls: list[Poll]) -> None:
    """Output tokens and steps move at every poll, at most 4 tokens a step, and the sums agree."""
    assert len(polls) >= 5
    for before, after in steps(polls):
        (steps_before, tokens_before, _), (steps_after, tokens_after, _) = work(before), work(after)
        assert 0 < steps_after - steps_before <= tokens_after - tokens_before <= 4 * (steps_after - steps_before)
    for poll in polls:
        _, generated, prompts = work(poll.page)
        assert value(poll.page, "vllm:iteration_tokens_total_sum") == generated + prompts
        assert running(poll.page) <= 4
        by_reason = value(poll.page, "vllm:num_requests_waiting_by_reason", reason="capacity")
        assert waiting(poll.page) == by_reason <= 2


def test_decoding_recorded() -> None:
    """A real server under six clients."""
    decodes(recorded("02-busy-decode", "busy"))


def test_decoding_simulated(serve: Serve) -> None:
    """The simulated one."""
    live = serve()
    with six(live, max_tokens=20):
        busy_page(live)
        decodes(live.polls(6, every=0.2))


def prefills(polls: list[Poll], prompt_tokens: int) -> None:
    """From the start of a long prompt to its first token only KV use moves, upwards; then the whole prompt counts."""
    rises = jumps = 0
    for before, after in steps(polls):
        (steps_before, tokens_before, prompts_before), (steps_after, tokens_after, prompts_after) = (
            work(before),
            work(after),
        )
        if prompts_after > prompts_before:
            assert (prompts_after - prompts_before) % prompt_tokens == 0
            assert 0 < steps_after - steps_before <= tokens_after - tokens_before
            jumps += 1
        elif running(before) == running(after) == 1 and tokens_before == tokens_after:
            assert moved(before, after) <= {KV_USE}
            assert value(after, KV_USE) >= value(before, KV_USE)
            rises += value(after, KV_USE) > value(before, KV_USE)
    assert rises >= 3
    assert jumps >= 1
    assert polls[-1].page[KV_USE + '{engine="0",model_name="tiny"}'] == 0.0


def test_prefilling_recorded() -> None:
    """A real server with prompts of 15,000 tokens."""
    polls = recorded("03-long-prefill")
    idle = next(at for at, poll in enumerate(polls) if at > 15 and not running(poll.page))
    prefills(polls[: idle + 1], 15_000)


def test_prefilling_simulated(serve: Serve) -> None:
    """The simulated one."""
    live = serve()
    with Traffic(live.url, clients=1, max_tokens=2, prompt_tokens=15_000):
        polls = live.polls_until(lambda page: work(page)[2] > 0, every=0.1)
    polls += live.polls_until(lambda page: not running(page))
    prefills(polls, 15_000)


def one_long_step(polls: list[Poll], least: int) -> None:
    """With a request running, nothing of vllm: moves for `least` polls, health answers, then the counters move."""
    still = 0
    for (before, after), poll in zip(steps(polls), polls[1:], strict=True):
        assert poll.health == 200
        if running(before) == 1 and not moved(before, after):
            still += 1
        elif still >= least and work(after) > work(before):
            return
        else:
            still = 0
    raise AssertionError("no long step that ended well")


def test_one_long_step_recorded() -> None:
    """A real server without chunked prefill."""
    one_long_step(recorded("04-single-huge-step"), 10)


def test_one_long_step_simulated(serve: Serve) -> None:
    """The simulated one, on demand."""
    live = serve()
    live.post("/demo/huge-step?seconds=1")
    one_long_step(live.polls_until(lambda page: work(page)[1] > 0, every=0.04), 5)
