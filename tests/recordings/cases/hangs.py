"""Servers that stopped working behind a good /health, and their healthy or harmless likenesses."""

from __future__ import annotations

from tests.recordings.cases.case import HANGS, Asked, Line, Polls, every, failed, good, same, served
from tests.recordings.cases.pages import START, V0_KV, Exposition, llamacpp, sglang, vllm


def queue_grows_from_zero(t: float, _: Asked) -> Line:
    if t == 0:
        return good(vllm(4, 0, 0.3, gen=9000), HANGS)
    return good(vllm(0, 1 + min(2, t // 60), 0, gen=9000), HANGS)


def recurring(t: float, _: Asked) -> Line:
    lap, phase = divmod(t, 720)  # 600 s of standing, 120 s of work
    done = lap * 120 + max(0.0, phase - 600)
    if phase < 600:
        return good(vllm(0, 5 + (phase > 300), 0, gen=4000 + 40 * done, steps=100 + 10 * done), HANGS)
    return good(vllm(4, 0, 0.2, gen=4000 + 40 * done, steps=100 + 10 * done))


def starving(t: float, _: Asked) -> Line:
    n = t / 10
    page = vllm(4, 227 + 8 * n, 0.2, gen=8000 + 5 * n, prompt=90000 + 19460 * n, deferred=208 + 8 * n, steps=700 + n)
    return good(page)


def poisoned(t: float, _: Asked) -> Line:
    if t <= 240:
        return good(vllm(0, 1 + t // 60, 0, gen=9000), HANGS)
    if t < 300:
        return failed("refused")
    gen = 40 * min(20, max(0.0, t - 305))  # twenty good seconds, then the client's retry
    waiting = 1 if t > 325 else 0
    return good(vllm(1 - waiting, waiting, 0, gen=gen, prompt=10, succ=gen // 400, start=START + 290), HANGS)


def version_0(t: float, _: Asked) -> Line:
    page = Exposition().vllm(35, min(140, 115 + t // 10), 0.99, gen=4700, engine=None, kv_names=V0_KV)
    page.add("vllm:num_requests_swapped", "gauge", 0, model_name="model-a")
    return good(page.text(), HANGS)


def worker_died(t: float, _: Asked) -> Line:
    return good(vllm(46, 0, 0.008, gen=7599 * min(t, 30), steps=165 * min(t, 30)), HANGS)


def worker_died_and_took_the_server(t: float, asked: Asked) -> Line:
    return worker_died(t, asked) if t <= 35 else failed("refused")


def dead_engine_that_answers_500(t: float, asked: Asked) -> Line:
    return {**worker_died(t, asked), "health": 503, "ask": "server_error"}


def one_engine_of_two(t: float, _: Asked) -> Line:
    page = Exposition(None).vllm(6, 0, 0.4, gen=100 * t, engine="0").vllm(4, 0, 0.1, gen=7700, engine="3")
    return good(page.text(), {"0": "answered", "3": HANGS})


def waits_for_a_peer(t: float, asked: Asked) -> Line:
    n = min(40, 1 + t // 10)
    done = served(asked)
    page = vllm(
        0, n, 0.1 + 0.02 * n, gen=5000 + done, prompt=500 + 8 * done, steps=900 + done, succ=7 + done, deferred=n
    )
    return good(page)


def stop_after_286_tokens(t: float, _: Asked) -> Line:
    if t <= 20:
        return good(llamacpp(1, 0, decodes=min(286, 15 * t)), HANGS)
    return failed("timeout", health=200)


SERVERS: dict[str, Polls] = {
    "A1-queue-grows-from-zero": (queue_grows_from_zero, every(0, 240)),
    "A2-stalls-that-come-back": (recurring, every(0, 4 * 720 - 10, 10)),
    "A3-starving-but-moving": (starving, every(0, 300, 10)),
    "A4-poison-request-comes-back": (poisoned, every(0, 570)),
    "A5-version-0-with-a-growing-queue": (version_0, every(0, 250)),
    "A6-structured-output-hangs": (same(vllm(1, 0, 0.002, gen=3500, steps=3500)), every(0, 250)),
    "A7-worker-died": (worker_died, every(0, 280)),
    "A7b-worker-died-and-the-server-with-it": (worker_died_and_took_the_server, every(0, 160)),
    "A7c-dead-engine-that-says-so": (dead_engine_that_answers_500, every(0, 600)),
    "A8-hangs-after-a-minute-of-rest": (same(vllm(gen=64, steps=64, succ=2)), every(0, 600)),
    "A9-some-engines-of-several": (one_engine_of_two, every(0, 250)),
    "A10-waits-for-a-dead-peer": (waits_for_a_peer, every(0, 900)),
    "A10b-waits-for-a-peer-and-is-silent": (
        lambda t, _: good(vllm(0, 40, 0.9, gen=5000, steps=900, deferred=40), HANGS),
        every(0, 400, 10),
    ),
    "A11-nothing-runs-and-the-queue-is-long": (same(sglang(0, 80, decode=120000, gen=90000)), every(0, 450, 10)),
    "A11b-paused-scheduler": (same(sglang(0, 80, decode=120000, gen=90000, paused=12)), every(0, 450, 10)),
    "A12-decode-loop-hangs": (stop_after_286_tokens, every(0, 1100)),
    "A13-decodes-for-clients-that-left": (
        lambda t, _: good(sglang(3, decode=180 * t, gen=90000)),
        every(0, 600),
    ),
}
