"""Each kind of server, its pages under every name they have had, and what may be concluded of it at its own limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from exporter.model import AskWhen, FailureReason
from exporter.page import PageError, PageParser, detect
from exporter.recording import Step
from exporter.runtimes import builtin
from tests.recordings.cases.case import HANGS, every, good, limits_of, replayed
from tests.recordings.cases.pages import V0_KV, V1_KV, Exposition, llamacpp, sglang, tgi, vllm

TRTLLM = """# TYPE trtllm_request_success_total counter
trtllm_request_success_total{finished_reason="stop",model_name="m"} 7
trtllm_request_success_total{finished_reason="abort",model_name="m"} 3
trtllm_time_to_first_token_seconds_count{model_name="m"} 9
trtllm_kv_cache_utilization{model_name="m"} 0.25
"""
GAUGES = """trtllm_num_requests_running{model_name="m"} 4
trtllm_num_requests_waiting{model_name="m"} 2
"""


def read(runtime: str, body: str, rank: str = "0", model: str = "model-a") -> Any:
    """One rank's sample."""
    return PageParser(builtin()[runtime]).parse(body.encode()).samples[model, rank]


def standing(runtime: str, body: str, seconds: float = 1500, ask: object = HANGS, **limits: float) -> Sequence[Step]:
    """A page that never changes, watched at the limits of its kind."""
    lines = ({"t": t, **good(body, ask)} for t in every(0, seconds, 10))
    return list(replayed(lines, {"runtime": runtime, "limits": limits}))


def verdicts(steps: Sequence[Step]) -> set[str]:
    """Every verdict there was."""
    return {step.state.verdict.value for step in steps}


@pytest.mark.parametrize("names", [V0_KV, V1_KV, V1_KV + V0_KV, V0_KV + V1_KV], ids="+".join)
def test_vllm_cache_use_by_its_names(names: tuple[str, ...]) -> None:
    """The gauge before and after it was renamed, and both at once in either order, is one gauge."""
    assert read("vllm", vllm(2, 1, 0.5, gen=40, kv_names=names)).kv_use == 0.5


def test_vllm_version_0_has_one_nameless_rank() -> None:
    """Pages without the label `engine` and without a histogram of steps are read by their tokens."""
    sample = read("vllm", vllm(2, 1, 0.5, gen=40, engine=None, kv_names=V0_KV), rank="")
    assert (sample.running, sample.waiting, sample.kv_use, sample.work) == (2, 1, 0.5, 540)


@pytest.mark.parametrize("prefix", ["vllm:", "ray_vllm:", "ray_vllm_"])
def test_vllm_under_ray(prefix: str) -> None:
    """The same page under each prefix that Ray gives it says the same."""
    page = Exposition().vllm(2, 1, 0.5, gen=40, steps=9, succ=3, abort=5, deferred=1, prefix=prefix).text()
    plain = Exposition().vllm(2, 1, 0.5, gen=40, steps=9, succ=3, abort=5, deferred=1).text()
    assert read("vllm", page) == read("vllm", plain)
    assert (read("vllm", page).work, read("vllm", page).deferred) == (9, 1)


@pytest.mark.parametrize("second", ["ray_vllm:", "ray_vllm_"])
def test_a_page_with_both_prefixes_counts_once(second: str) -> None:
    """Two exporters of one engine on one page: neither its requests nor its tokens are doubled."""
    both = Exposition().vllm(2, 1, 0.5, gen=40, steps=9).vllm(2, 1, 0.5, gen=40, steps=9, prefix=second).text()
    assert read("vllm", both) == read("vllm", vllm(2, 1, 0.5, gen=40, steps=9))


@pytest.mark.parametrize("process", range(8))
def test_one_gauge_per_process_is_the_largest(process: int) -> None:
    """Eight API servers publish one gauge: seven zeros and the truth, wherever it stands among them."""
    page = Exposition(None).vllm(0, 0, None, gen=40)
    for n in range(8):
        who = {"engine": "0", "model_name": "model-a", "pid": str(100 + n)}
        page.add("vllm:kv_cache_usage_perc", "gauge", 0.653 * (n == process), **who)
        page.add("vllm:num_requests_running", "gauge", 7 * (n == process), **who)
    assert (read("vllm", page.text()).kv_use, read("vllm", page.text()).running) == (0.653, 7)


@pytest.mark.parametrize("order", [("0", "1"), ("1", "0")])
def test_engines_are_kept_apart_in_any_order(order: tuple[str, str]) -> None:
    """Seven requests of engine 0 and none of engine 1, whichever comes last on the page."""
    page = Exposition()
    for engine in order:
        page.vllm(7 if engine == "0" else 0, gen=40, engine=engine)
    assert [read("vllm", page.text(), rank).running for rank in ("0", "1")] == [7, 0]


@pytest.mark.parametrize("prefix", ["sglang:", "sglang_"])
def test_sglang_by_either_separator(prefix: str) -> None:
    """A colon, or the underscore that some collectors make of it."""
    body = sglang(3, 2, gen=90, prompt=50, decode=70, prefill=30, prefix=prefix)
    reading = PageParser(builtin()["sglang"]).parse(body.encode())
    sample = reading.samples["model-a", ""]
    assert (sample.running, sample.waiting, reading.live) == (3, 2, True)
    assert sorted(sample.tokens.values()) == [30, 50, 70, 90]


def test_sglang_with_its_live_counter_is_convicted() -> None:
    """With the live counter a stand is a stand, and the limit is beyond its own watchdog's 300 s."""
    steps = standing("sglang", sglang(3, 2, decode=70), 400)
    first = next(step.row["t"] for step in steps if step.state.verdict == "stuck")
    assert 330 <= first <= 350  # type: ignore[operator]


def test_sglang_without_it_is_never_convicted_while_in_flight() -> None:
    """Counters that move only when a request ends: half an hour of nothing is stalled, of low confidence."""
    steps = standing("sglang", sglang(3, 2, gen=90000), 1800)
    assert verdicts(steps) == {"busy", "stalled"}
    assert steps[-1].state.judgement.reason == "low_confidence"


def test_sglang_without_it_is_convicted_while_idle() -> None:
    """Nothing in flight and three questions without a byte are proof on any build."""
    assert standing("sglang", sglang(gen=90000), 1000)[-1].state.judgement.reason == "idle_and_unanswered"


@pytest.mark.parametrize("prefix", ["llamacpp:", "llamacpp_"])
def test_llamacpp_by_either_separator(prefix: str) -> None:
    """The counter of decode calls is its work; predicted tokens come in lumps."""
    sample = read("llamacpp", llamacpp(1, 2, decodes=400, prefix=prefix), rank="", model="")
    assert (sample.running, sample.waiting, sample.work) == (1, 2, 400)


def test_llamacpp_without_its_live_counter_is_never_convicted_while_in_flight() -> None:
    """An older build has only counters that move when a slot is released."""
    body = "llamacpp:tokens_predicted_total 900\nllamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"
    steps = standing("llamacpp", body, 3600)
    assert verdicts(steps) == {"busy", "stalled"}
    assert steps[-1].state.judgement.reason == "low_confidence"


def test_llamacpp_is_not_asked_while_it_is_idle() -> None:
    """A request to an idle slot may throw a long prompt's cache away."""
    assert limits_of({"runtime": "llamacpp"}).ask_when is AskWhen.STALLED
    assert not any(step.asked for step in standing("llamacpp", llamacpp(decodes=400), 3600))


@pytest.mark.parametrize("more", [{"done": 900}, {"done": 900, "batches": 40}])
def test_tgi_that_stands_is_convicted(more: Mapping[str, float]) -> None:
    """A queue that only stands, with or without the counter of batches."""
    steps = standing("tgi", tgi(32, 128, **more), 300)
    assert steps[-1].state.judgement.reason == "stalled_and_unanswered"


def test_tgi_that_works_is_busy_whatever_its_health_says() -> None:
    """Its twin: the queue is as full, and requests end; /health is not believed."""
    lines = ({"t": t, **good(tgi(32, 128, done=t), HANGS, health=503)} for t in every(0, 600))
    steps = list(replayed(lines, {"runtime": "tgi"}))
    assert verdicts(steps) == {"busy"}
    assert not any(step.asked for step in steps)


@pytest.mark.parametrize("body", [TRTLLM, TRTLLM + GAUGES], ids=["without gauges", "with gauges"])
def test_trtllm_is_never_asked_and_never_convicted(body: str) -> None:
    """Whether it shows its requests or not: no question behind its work, and so no proof."""
    steps = standing("trtllm", body, 7200)
    assert not any(step.asked for step in steps)
    assert verdicts(steps) <= {"idle", "busy", "stalled"}
    assert sum(read("trtllm", body, "", "m").ended.values()) == 7, "an aborted request is no work"


def test_none_is_never_measured() -> None:
    """A server without metrics is unmeasured, whatever its page holds, and is not asked."""
    steps = standing("none", vllm(3, gen=40), 600)
    assert verdicts(steps) == {"unmeasured"}
    assert not any(step.asked for step in steps)


@pytest.mark.parametrize(
    ("body", "runtime"),
    [
        (vllm(gen=40), "vllm"),
        (vllm(gen=40, engine=None, kv_names=V0_KV), "vllm"),
        (Exposition().vllm(gen=40, prefix="ray_vllm_").text(), "vllm"),
        (sglang(decode=7), "sglang"),
        (sglang(prefix="sglang_"), "sglang"),
        (llamacpp(decodes=7), "llamacpp"),
        (tgi(done=7), "tgi"),
        (TRTLLM, "trtllm"),
        ("[]", "trtllm"),
        ('[{"iter": 1}]', "trtllm"),
        ("", None),
        ("{}", None),
        ("<html></html>", None),
        ("# TYPE python_info gauge\npython_info 1\n", None),
        ("vllm:num_requests_running 3\n", None),
    ],
)
def test_the_kind_of_server_is_told_from_its_page(body: str, runtime: str | None) -> None:
    """Each kind is known by its own series of work, or by its list; anything else is left to the next page."""
    found = detect(body.encode(), builtin().values())
    assert (found.name if found else None) == runtime


@pytest.mark.parametrize("runtime", sorted(set(builtin()) - {"none"}))
def test_missing_series_are_named(runtime: str) -> None:
    """A page of another kind says which series it lacks, so that nobody waits for them for ever."""
    other = tgi(done=7) if runtime != "tgi" else vllm(gen=40)
    with pytest.raises(PageError) as caught:
        PageParser(builtin()[runtime]).parse(other.encode())
    assert caught.value.reason is FailureReason.MISSING_SERIES
    kind = builtin()[runtime]
    assert all(source.names[0] in str(caught.value) for source in (*kind.steps, *kind.tokens, *kind.ended))


def test_the_limits_of_each_kind() -> None:
    """The time that one healthy step may take comes with the kind of server."""
    wanted = {"vllm": 180, "sglang": 330, "llamacpp": 900, "tgi": 180, "trtllm": 330}
    assert {name: limits_of({"runtime": name}).stuck_after_seconds for name in wanted} == wanted
    assert {name for name in builtin() if limits_of({"runtime": name}).names_ranks} == {"vllm"}
