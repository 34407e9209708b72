"""What only time tells apart, and what must not be compared: steps, gaps, restarts, clients, ranks."""

from __future__ import annotations

from tests.recordings.cases.case import HANGS, Asked, Line, Polls, every, failed, good, same, served
from tests.recordings.cases.pages import START, Exposition, vllm


def one_long_step(t: float, _: Asked) -> Line:
    stood = 30 <= t < 180
    n = t if t < 30 else 30 + max(0.0, t - 180)
    return good(vllm(1, 0, 0.2, gen=20 * n, steps=20 * n), HANGS if stood else "answered")


def first_step_from_idle(t: float, _: Asked) -> Line:
    """Nothing at all is published from 290 to 400 s, not even that a request runs."""
    n = min(60, max(0.0, t - 400))
    page = vllm(1 if 0 < n < 60 else 0, 0, 0.01 * (0 < n < 60), gen=20 * n, steps=20 * n, succ=7 + (n == 60))
    return good(page, HANGS if 290 <= t < 400 else "answered")


def abandoned_prefill(t: float, _: Asked) -> Line:
    if t <= 505:
        kv = 0.45 * t / 200 if t <= 200 else 0.45 * (t - 205) / 300
        return good(vllm(1, 0, kv, gen=900, steps=40), HANGS)
    return good(vllm(1, 0, 0.45, gen=900 + 20 * (t - 505), steps=40 + 20 * (t - 505), prompt=90_500))


def prefill_of_twenty_minutes(t: float, _: Asked) -> Line:
    n = max(0.0, t - 1250)
    return good(vllm(1, 0, min(t, 1250) / 2000, gen=900 + 10 * n, steps=40 + 10 * n), HANGS)


def compiles_its_first_answer(t: float, _: Asked) -> Line:
    """A new process that compiles for 105 s what the first question needs, and shows nothing meanwhile."""
    if t <= 30:
        return good(vllm(2, 0, 0.1, gen=40 * t, steps=20 * t))
    if t < 75:
        return failed("refused")
    done = 1 if t >= 185 else 0
    page = vllm(0, 0, None, gen=done, steps=done, prompt=8 * done, succ=done, start=START + 40)
    return good(page, "answered" if done else HANGS)


def compiles_its_first_prompt(t: float, _: Asked) -> Line:
    """The same process after a small answer: the first long prompt compiles for 105 s with two requests in flight."""
    if t < 75:
        return compiles_its_first_answer(t, ())
    n = 4 + 20 * max(0.0, t - 195)
    running = 2 if t >= 90 else 0
    gen = 0 if t < 80 else n
    return good(
        vllm(running, 0, 0.05, gen=gen, steps=gen, prompt=8, succ=1, start=START + 40),
        HANGS if 90 <= t < 195 else "answered",
    )


def request_between_two_pages(t: float, _: Asked) -> Line:
    n = max(0.0, t - 303)
    return good(vllm(1 if t > 299.5 else 0, 0, 0.0, gen=64 + 20 * n, steps=64 + 20 * n), HANGS)


def clients_come_and_go(t: float, _: Asked) -> Line:
    return good(vllm(4 if t % 100 < 50 else 0, 0, 0.1, gen=900, steps=40), HANGS)


def one_page_in_thirty_seconds(t: float, _: Asked) -> Line:
    return good(vllm(4, 0, 0.1, gen=900, steps=40), HANGS) if t % 30 == 0 else failed("timeout", health=200)


def wandering_start_time(t: float, _: Asked) -> Line:
    return good(vllm(2, 0, 0.1, gen=40 * t, steps=20 * t, start=START + (t / 5 % 5 - 2) / 2))


def restart_under_load(t: float, _: Asked) -> Line:
    gen, prompt = (9000 + 20 * t, 120 + t) if t < 60 else (40 + 20 * (t - 60), 5000 + 90 * (t - 60))
    return good(vllm(2, 0, 0.1, gen=gen, prompt=prompt, start=None))


def one_hung_among_others(t: float, asked: Asked) -> Line:
    """Every two minutes somebody else is served for ten seconds; after twelve minutes nobody comes any more."""
    lap, phase = divmod(min(t, 720), 120)
    others = 20 * (lap * 10 + min(10, phase)) if t else 0
    done = served(asked)
    page = vllm(
        2 if phase < 10 and 0 < t < 720 else 1,
        0,
        0.1,
        gen=others + done,
        prompt=500 + 8 * done,
        steps=others + done,
        succ=7 + lap + done,
    )
    return good(page)


def two_models(t: float, _: Asked) -> Line:
    page = Exposition().vllm(1, gen=900, steps=40, model="model-a")
    page.vllm(3, gen=40 * t, steps=20 * t, model="model-b")
    return good(page.text(), HANGS)


def three_of_eight_frozen_while_idle(_: float, asked: Asked) -> Line:
    page = Exposition(None)
    for n in range(8):
        done = 0 if n in {2, 5, 7} else served(asked, str(n))
        page.vllm(gen=900 + done, prompt=500 + 8 * done, steps=40 + done, succ=7 + done, engine=str(n))
    return good(page.text(), {str(n): HANGS if n in {2, 5, 7} else "answered" for n in range(8)})


def frozen_beside_phantoms(_: float, asked: Asked) -> Line:
    page = Exposition(None).vllm(4, 0, 0.2, gen=900, steps=40, engine="0")
    for n in range(1, 4):
        done = served(asked, str(n))
        run, wait = (0, 0) if done else (106, 15)
        page.vllm(run, wait, 0.0 if done else 0.904, gen=52000 + done, steps=1900 + done, succ=7 + done, engine=str(n))
    return good(page.text(), {"0": HANGS, "1": "answered", "2": "answered", "3": "answered"})


SERVERS: dict[str, Polls] = {
    "T1-step-of-150-seconds": (one_long_step, every(0, 260)),
    "T2-first-step-from-idle": (first_step_from_idle, every(0, 480)),
    "T3-prefill-after-an-abandoned-one": (abandoned_prefill, every(0, 540)),
    "T4-prefill-of-twenty-minutes": (prefill_of_twenty_minutes, every(0, 1300, 10)),
    "T5-compiles-its-first-answer": (compiles_its_first_answer, every(0, 260)),
    "T5b-compiles-its-first-prompt": (compiles_its_first_prompt, every(0, 260)),
    "T6-request-between-two-pages": (request_between_two_pages, [*every(0, 295), 299.5, 300.5, *every(305, 330)]),
    "T7-clients-come-and-go": (clients_come_and_go, every(0, 600)),
    "T8-one-page-in-thirty-seconds": (one_page_in_thirty_seconds, every(0, 420)),
    "T9-start-time-that-wanders": (wandering_start_time, every(0, 300)),
    "T10-restart-while-prompts-rise": (restart_under_load, every(0, 120)),
    "T11-one-hung-request-among-others": (one_hung_among_others, every(0, 1500)),
    "T12-answers-that-move-no-page": (same(vllm(4, gen=900, steps=40), "answered"), every(0, 660)),
    "T13-exporter-restarted-beside-an-idle-freeze": (same(vllm(gen=900, steps=40)), every(0, 1795)),
    "T13b-exporter-restarted-beside-a-busy-freeze": (same(vllm(4, gen=900, steps=40)), every(0, 1795, 10)),
    "T14-two-models-one-frozen": (two_models, every(0, 250)),
    "T15-three-of-eight-frozen-while-idle": (three_of_eight_frozen_while_idle, every(0, 900)),
    "T16-frozen-beside-phantoms": (frozen_beside_phantoms, every(0, 300)),
}
