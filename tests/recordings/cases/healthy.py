"""Healthy servers that look dead, each with a likeness that is."""

from __future__ import annotations

from tests.recordings.cases.case import HANGS, Asked, Line, Polls, every, failed, good, same, served
from tests.recordings.cases.pages import START, llamacpp, sglang, tgi, vllm


def long_prefill(t: float, _: Asked) -> Line:
    if t <= 510:
        return good(vllm(1, 0, 0.05 + 0.55 * t / 510, gen=900, prompt=500), HANGS)
    return good(vllm(1, 0, 0.6, gen=900 + 20 * (t - 510), prompt=1_006_500))


def swinging_cache(t: float, _: Asked) -> Line:
    return good(vllm(1, 0, 0.30 + 0.01 * (t % 10 == 0), gen=900), HANGS)


def long_answer_without_live_tokens(t: float, _: Asked) -> Line:
    predicted = 900 if t < 310 else 2610
    return good(llamacpp(1 if t < 310 else 0, decodes=10 * min(t, 310), predicted=predicted), HANGS)


def stream_with_live_counter(t: float, _: Asked) -> Line:
    gen = 90000 if t < 125 else 105000
    return good(sglang(1 if t < 125 else 0, gen=gen, done=7 + (t >= 125), decode=120 * min(t, 125)))


def stream_without_live_counter(t: float, _: Asked) -> Line:
    gen = 90000 if t < 600 else 162000  # one answer of ten minutes; a request behind it waits
    return good(sglang(1 if t < 600 else 0, gen=gen, done=7 + (t >= 600)), HANGS if t < 600 else "answered")


def silent_for_forty_minutes(t: float, _: Asked) -> Line:
    if t == 0:
        return good(llamacpp(1, decodes=40), HANGS)
    if t <= 2400:
        return failed("timeout")
    return good(llamacpp(1, decodes=52 + 2 * (t - 2405)))


def slow_metrics(t: float, _: Asked) -> Line:
    return failed("timeout", health=200) if t % 20 >= 10 else good(llamacpp(1, decodes=30 + 8 * t))


def compiles(t: float, _: Asked) -> Line:
    if 20 <= t < 45:
        return failed("timeout", health=200)
    moved = max(0.0, t - 85)  # stood from 10 to 85 s
    page = vllm(2, 0, 0.1, gen=300 + 30 * min(t, 10) + 30 * moved, steps=150 + 15 * min(t, 10) + 15 * moved)
    return good(page, HANGS if t < 85 else "answered")


def unhealthy_while_prefilling(t: float, _: Asked) -> Line:
    return good(sglang(1, decode=5000, prefill=2048 * t), HANGS, health=503 if 20 <= t < 50 else 200)


def full_queue_that_works(t: float, _: Asked) -> Line:
    return good(tgi(32, 128, done=3 * t / 5), HANGS, health=503)


def full_queue_that_does_not(t: float, _: Asked) -> Line:
    return good(tgi(32, min(128, 10 + t // 5), done=900), HANGS, health=503)


def slow_load(t: float, asked: Asked) -> Line:
    if t <= 30:
        return good(vllm(2, 0, 0.1, gen=40 * t, steps=20 * t))
    if t < 575:
        return failed("refused")
    done = served(asked) + 40 * max(0.0, t - 605)
    page = vllm(1 if t > 605 else 0, 0, 0.0, gen=done, steps=done, prompt=0, succ=0, start=START + 40)
    return good(page)


def slow_load_of_a_known_process(t: float, asked: Asked) -> Line:
    """A new process showed itself once, was ended, and the next one loads."""
    if t == 35:
        return good(vllm(0, 0, None, prompt=0, succ=0, start=START + 30), HANGS)
    return slow_load(t, asked)


def paused(t: float, _: Asked) -> Line:
    page = vllm(5, 12, 0.4, gen=9000 + 30 * min(t, 20), steps=min(t, 20))
    return good(page, HANGS, is_paused=20 < t < 1220, is_sleeping=False)


def asleep(t: float, _: Asked) -> Line:
    page = vllm(5, 12, 0.4, gen=9000 + 30 * min(t, 20), steps=min(t, 20))
    return good(page, HANGS, is_paused=False, is_sleeping=20 < t < 1220)


SERVERS: dict[str, Polls] = {
    "B1-prefill-of-a-million-tokens": (long_prefill, every(0, 560)),
    "B1b-cache-use-that-swings": (swinging_cache, every(0, 260)),
    "B2-long-answer-of-llama-server": (long_answer_without_live_tokens, every(0, 330)),
    "B2b-llama-server-that-stands": (same(llamacpp(1, decodes=3000)), every(0, 1000, 10)),
    "B3-stream-of-sglang": (stream_with_live_counter, every(0, 140)),
    "B3b-stream-of-an-older-sglang": (stream_without_live_counter, every(0, 700)),
    "B4-silent-until-the-first-token": (silent_for_forty_minutes, every(0, 2500)),
    "B5-metrics-slower-than-the-scrape": (slow_metrics, every(0, 600)),
    "B6-compiles-a-new-shape": (compiles, every(0, 150)),
    "B7-unhealthy-while-prefilling": (unhealthy_while_prefilling, every(0, 120)),
    "B9-full-queue-that-works": (full_queue_that_works, every(0, 600)),
    "B9b-full-queue-that-does-not": (full_queue_that_does_not, every(0, 250)),
    "B10-slow-to-load": (slow_load, every(0, 650)),
    "B10b-slow-to-load-and-seen-before": (slow_load_of_a_known_process, every(0, 650)),
    "B11-paused-with-requests": (paused, every(0, 1220)),
    "B11b-asleep-with-requests": (asleep, every(0, 1220)),
    "B11c-under-maintenance": (same(vllm(5, 12, 0.4, gen=9600, steps=20)), every(0, 600, 10)),
}
