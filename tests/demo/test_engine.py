"""The simulated engine, step by step, without a clock."""

from demo.engine import KV_BLOCKS, Engine, Request


def submitted(engine: Engine, *, prompt_tokens: int = 10, max_tokens: int = 3, count: int = 1) -> list[Request]:
    """`count` requests sent at time 0."""
    requests = [Request(prompt_tokens, max_tokens) for _ in range(count)]
    for request in requests:
        engine.submit(request, 0.0)
    return requests


def gauges(engine: Engine) -> tuple[float, float, float]:
    """Running, waiting, and KV blocks in use, as published."""
    values = engine.stats.values
    running, waiting = values.get("num_requests_running", 0.0), values.get("num_requests_waiting", 0.0)
    return running, waiting, round(values.get("kv_cache_usage_perc", 0.0) * KV_BLOCKS)


def counted(engine: Engine) -> tuple[int, float, float]:
    """Steps that gave output, output tokens, prompt tokens."""
    values = engine.stats.values
    steps = sum(engine.stats.histograms["iteration_tokens_total"].counts)
    return steps, values.get("generation_tokens_total", 0.0), values.get("prompt_tokens_total", 0.0)


def test_what_does_not_fit_the_batch_waits() -> None:
    """Four run, the fifth and sixth wait and take the places that become free."""
    engine = Engine(max_num_seqs=4)
    submitted(engine, count=6)
    engine.step(0.1)
    assert gauges(engine) == (4, 2, 4)
    for at in range(2, 4):
        engine.step(at / 10)
    assert gauges(engine) == (0, 2, 0)
    engine.step(0.4)
    assert gauges(engine) == (2, 0, 2)


def test_a_prompt_counts_at_its_first_token() -> None:
    """1000 tokens take 4 steps; the first three raise KV use by 2 blocks each and nothing else."""
    engine = Engine()
    submitted(engine, prompt_tokens=1000, max_tokens=2)
    for step, blocks in enumerate((2, 4, 6), 1):
        engine.step(float(step))
        assert gauges(engine) == (1, 0, blocks)
        assert counted(engine) == (0, 0, 0)
    engine.step(4.0)
    assert counted(engine) == (1, 1, 1000)
    engine.step(5.0)
    assert counted(engine) == (2, 2, 1000)
    assert gauges(engine) == (0, 0, 0)


def test_decoding_goes_first_and_leaves_the_rest_of_a_step_to_a_prefill() -> None:
    """Tokens of a step are shared: what decodes takes one each."""
    engine = Engine()
    submitted(engine, max_tokens=100)
    engine.step(1.0)
    (long,) = submitted(engine, prompt_tokens=1000)
    engine.step(2.0)
    assert long.computed == 255
    assert counted(engine)[0] == 2


def test_an_idle_step_publishes_nothing() -> None:
    """Stale gauges stay until a step with something to do."""
    engine = Engine()
    engine.stats.gauges(106, 15, 0.5)
    engine.step(1.0)
    assert gauges(engine)[:2] == (106, 15)


def test_a_frozen_engine_sees_no_arrivals_and_no_departures() -> None:
    """What came while it was frozen is taken in at the next step, and what came and left meanwhile never was."""
    engine = Engine()
    engine.frozen = True
    stays, leaves = submitted(engine, count=2)
    engine.abort(leaves)
    engine.step(1.0)
    assert gauges(engine) == (0, 0, 0)
    engine.frozen = False
    engine.step(2.0)
    assert gauges(engine) == (1, 0, 1)
    assert stays.generated == 1


def test_an_abort_in_decode_leaves_one_step_without_tokens() -> None:
    """The step under way when a client leaves is counted with the tokens of nobody; a prefill leaves none."""
    engine = Engine()
    for prompt_tokens, more in ((10, 1), (1000, 0)):
        (request,) = submitted(engine, prompt_tokens=prompt_tokens)
        engine.step(1.0)
        before = counted(engine)
        engine.abort(request)
        engine.step(2.0)
        assert counted(engine) == (before[0] + more, *before[1:])
        assert gauges(engine) == (0, 0, 0)


def test_a_full_cache_lets_requests_wait() -> None:
    """A request is admitted once there is room for all it may come to hold."""
    engine = Engine()
    submitted(engine, prompt_tokens=200_000, count=2)
    engine.step(1.0)
    assert gauges(engine)[:2] == (1, 1)


def test_a_pause_that_waits_lets_earlier_requests_end() -> None:
    """Those inside go on to their end; those that come later stay outside until it resumes."""
    engine = Engine()
    submitted(engine, max_tokens=2)
    engine.step(1.0)
    engine.paused = "wait"
    submitted(engine)
    engine.step(2.0)
    engine.step(3.0)
    assert (gauges(engine)[:2], engine.in_flight) == ((0, 0), False)
    engine.paused = None
    engine.step(4.0)
    assert gauges(engine)[:2] == (1, 0)


def test_an_end_is_told_with_its_reason_and_times() -> None:
    """The client learns why it ended; the histograms hold when it was served."""
    engine = Engine()
    (request,) = submitted(engine, max_tokens=2)
    engine.step(1.0)
    engine.step(1.5)
    assert request.outputs.get_nowait() == "length"
    sums = {key: seen.sum for key, seen in engine.stats.histograms.items()}
    assert sums["time_to_first_token_seconds"] == 1.0
    assert sums["inter_token_latency_seconds"] == 0.5
    assert sums["e2e_request_latency_seconds"] == 1.5
    assert sums["request_queue_time_seconds"] == 1.0
    assert engine.stats.values["request_success_total/length"] == 1
