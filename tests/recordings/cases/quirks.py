"""Pages that say something else than they seem to."""

from __future__ import annotations

from tests.recordings.cases.case import HANGS, Asked, Line, Polls, Server, every, good, other, same, served
from tests.recordings.cases.pages import V0_KV, V1_KV, Exposition, sglang, vllm

PHANTOM = vllm(106, 15, 0.904, gen=52000, steps=1900)


def phantom(_: float, asked: Asked) -> Line:
    done = served(asked)
    if not done:
        return good(PHANTOM)
    return good(vllm(0, 0, 0, gen=52000 + done, prompt=500 + 8 * done, steps=1900 + done, succ=7 + done))


def phantom_behind_a_gateway(t: float, _: Asked) -> Line:
    """Another server answers; this one's page is refreshed by a client of its own, in the end."""
    return good(PHANTOM) if t < 1200 else good(vllm(0, 0, 0, gen=52020, prompt=540, steps=1920, succ=8))


def prefill_without_steps(t: float, _: Asked) -> Line:
    done = t > 510
    page = vllm(
        1,
        0,
        0.05 + 0.55 * min(t, 510) / 510,
        gen=900 + 20 * max(0.0, t - 510),
        steps=31 + max(0.0, t - 510),
        prompt=1_006_500 if done else 500,
    )
    return good(page, HANGS)


def embeddings(t: float, _: Asked) -> Line:
    return good(vllm(3, 0, None, gen=0, prompt=800 * t, succ=t))


def renamed(names: tuple[str, ...]) -> Server:
    """A prefill that only the cache's use shows, then a freeze, under these names of it."""

    def server(t: float, _: Asked) -> Line:
        return good(vllm(1, 0, 0.1 + 0.002 * min(t, 240), gen=900, kv_names=names, steps=40), HANGS)

    return server


def gauges_of_eight_processes(t: float, _: Asked) -> Line:
    page = Exposition(None).vllm(1, 0, None, gen=900, prompt=500)
    first = 100 if t < 200 else 300  # the workers were replaced; the server was not
    who = {"engine": "0", "model_name": "model-a"}
    for n in range(8):
        use = 0.05 + 0.001 * t if n == 3 else 0.0
        page.add("vllm:kv_cache_usage_perc", "gauge", use, **who, pid=str(first + n))
    return good(page.text(), HANGS)


def order_of_engines(t: float, _: Asked) -> Line:
    page = Exposition()
    for engine in ("0", "1") if t % 10 else ("1", "0"):
        page.vllm(7 if engine == "0" else 0, 0, 0.2, gen=30 * t if engine == "0" else 0, engine=engine)
    return good(page.text(), {"0": HANGS, "1": "answered"})


def empty_for_two_minutes(t: float, _: Asked) -> Line:
    if 30 < t <= 150:
        return other(200, "")
    gen = 90000 + 40 * t if t <= 30 else 40 * (t - 150)
    return good(vllm(2, 0, 0.1, gen=gen, prompt=20000 if t <= 30 else 300, start=None))


def empty_and_then_lower(t: float, _: Asked) -> Line:
    """What a worker had counted is gone with its file; the server is the same."""
    if 30 < t <= 150:
        return other(200, "")
    return good(vllm(2, 0, 0.1, gen=(90000 if t <= 30 else 63000) + 40 * t, prompt=20000, start=None))


def counters_begin_anew(t: float, _: Asked) -> Line:
    gen, prompt = (90000 + 40 * t, 20000) if t < 60 else (40 + 40 * (t - 60), 90)
    return good(vllm(1, 0, 0.1, gen=gen, prompt=prompt, start=None))


def counters_go_on(t: float, _: Asked) -> Line:
    return good(vllm(1, 0, 0.1, gen=90000 + 2 * t, prompt=20000, start=None))


def one_worker_gone(t: float, _: Asked) -> Line:
    page = Exposition(None)
    page.vllm(1, 0, 0.1, gen=90000 + 40 * t)
    for pid in ("41", "42") if t < 60 else ("41",):
        page.add("vllm:generation_tokens_total", "counter", 4000 + t, engine="0", model_name="model-a", pid=pid)
    return good(page.text())


def misnamed(t: float, _: Asked) -> Line:
    page = Exposition()
    page.add("sglang:num_requests_running", "gauge", 4, model_name="model-a")
    page.add("sglang:cache_hit_rate", "gauge", 0.5, model_name="model-a")
    return good(page.text())


def aborted_streams(t: float, asked: Asked) -> Line:
    left, done = t >= 30, served(asked)
    page = vllm(
        0 if left else 5,
        0,
        0 if left else 0.1,
        gen=40 * min(t, 30) + done,
        steps=8 * min(t, 30) + done,
        prompt=500 + 3010 * left + 8 * done,
        succ=7 + done,
        abort=0,
    )
    return good(page)


QUOTED = '"' + vllm(1, gen=40).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

SERVERS: dict[str, Polls] = {
    "C1-phantom-requests": (phantom, every(0, 600)),
    "C1b-phantom-requests-behind-a-gateway": (phantom_behind_a_gateway, every(0, 1300, 10)),
    "C1c-the-same-page-of-a-hung-engine": (same(PHANTOM), every(0, 250)),
    "C2-prefill-without-steps": (prefill_without_steps, every(0, 560)),
    "C3-embedding-server": (embeddings, every(0, 400)),
    "C4-cache-use-by-its-old-name": (renamed(V0_KV), every(0, 480)),
    "C4b-cache-use-by-both-names": (renamed(V1_KV + V0_KV), every(0, 480)),
    "C4c-cache-use-by-its-new-name": (renamed(V1_KV), every(0, 480)),
    "C5-gauges-of-eight-processes": (gauges_of_eight_processes, every(0, 400, 10)),
    "C6-order-of-engines": (order_of_engines, every(0, 280)),
    "C7-empty-pages": (empty_for_two_minutes, every(0, 260)),
    "C7b-empty-pages-and-then-lower-counters": (empty_and_then_lower, every(0, 260)),
    "C8-counters-begin-anew": (counters_begin_anew, every(0, 120)),
    "C8b-counters-go-on": (counters_go_on, every(0, 120)),
    "C8c-one-worker-gone": (one_worker_gone, every(0, 120)),
    "C10-other-names": (misnamed, every(0, 240)),
    "C10b-names-with-underscores": (
        lambda t, _: good(sglang(2, decode=120 * t, prefix="sglang_"), HANGS),
        every(0, 120),
    ),
    "C11-page-in-quotes": (same(QUOTED), every(0, 240)),
    "C14-json-in-place-of-text": (lambda _t, _asked: other(200, "[]"), every(0, 240)),
    "C15-aborts-that-are-not-counted": (aborted_streams, every(0, 280)),
}
