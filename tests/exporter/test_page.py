"""Parsing: the wanted lines of a page become samples; whatever else arrives is a typed failure."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.model import FailureReason
from exporter.page import PageError, PageParser
from exporter.runtimes import builtin

RECORDINGS = Path(__file__).parent.parent / "recordings"
VLLM = PageParser(builtin()["vllm"])


def recorded(name: str, line: int) -> bytes:
    """The page on one line of a recording."""
    with gzip.open(RECORDINGS / f"{name}.jsonl.gz", "rt") as file:
        return str(json.loads(file.readlines()[line])["body"]).encode()


def test_real_busy_page() -> None:
    """A real vLLM page with 4 running and 2 waiting."""
    reading = VLLM.parse(recorded("02-busy-decode", 10))
    sample = reading.samples["tiny", "0"]
    assert (sample.running, sample.waiting) == (4, 2)
    assert sample.steps == {"vllm:iteration_tokens_total_count": 968}
    assert sample.tokens == {"vllm:generation_tokens_total": 3850, "vllm:prompt_tokens_total": 301}
    assert sample.ended["vllm:request_success_total{finished_reason=length}"] == 5
    assert not any("abort" in name or "error" in name for name in sample.ended)
    assert sample.kv_use == pytest.approx(0.0078, abs=1e-4)
    assert reading.start_time == pytest.approx(1796077252.5)
    assert not reading.asleep


def test_two_engines_are_two_ranks() -> None:
    """Two engines on one page stay apart."""
    assert set(VLLM.parse(recorded("10-dp2-one-frozen", 3)).samples) == {("tiny", "0"), ("tiny", "1")}


def test_absent_gauges_mean_nothing_in_flight() -> None:
    """A page before the first step has counters and no gauges: nothing in flight, KV use unknown."""
    reading = VLLM.parse(b'vllm:iteration_tokens_total_count{engine="0",model_name="m"} 0\n')
    sample = reading.samples["m", "0"]
    assert sample.in_flight == 0
    assert sample.kv_use is None


def test_order_of_lines_and_labels_is_nothing() -> None:
    """The same page with its lines backwards and its labels in another order says the same."""
    body = recorded("02-busy-decode", 10)
    backwards = b"\n".join(reversed(body.splitlines()))
    assert VLLM.parse(backwards) == VLLM.parse(body)
    swapped = body.replace(b'{engine="0",model_name="tiny"}', b'{model_name="tiny",engine="0"}')
    assert VLLM.parse(swapped) == VLLM.parse(body)


def test_gauge_per_process_takes_the_maximum() -> None:
    """Eight API servers publish the gauge under their own pid: seven zeros and the truth, in any order."""
    lines = [f'vllm:kv_cache_usage_perc{{engine="0",model_name="m",pid="{n}"}} {0.653 * (n == 3)}' for n in range(8)]
    lines.append('vllm:generation_tokens_total{engine="0",model_name="m"} 5')
    for body in (lines, lines[::-1]):
        assert VLLM.parse("\n".join(body).encode()).samples["m", "0"].kv_use == 0.653


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", FailureReason.EMPTY),
        (b" \n\n", FailureReason.EMPTY),
        (b"<!doctype html><html><body>503 Service Unavailable</body></html>", FailureReason.UNPARSABLE),
        (b"[]", FailureReason.UNPARSABLE),
        (b'{"error": {"message": "not found"}}', FailureReason.UNPARSABLE),
        (b'"# HELP llamacpp:x y\\nllamacpp:requests_processing 1\\n"', FailureReason.UNPARSABLE),
        (bytes(range(256)) * 4, FailureReason.UNPARSABLE),
        (b"# HELP python_info x\n# TYPE python_info gauge\npython_info 1\n", FailureReason.MISSING_SERIES),
        (b'vllm:num_requests_running{engine="0"} 3\n', FailureReason.MISSING_SERIES),
        (b'vllm:generation_tokens_total{engine="0"} NaN\n', FailureReason.MISSING_SERIES),
        (b'vllm:generation_tokens_total{engine="0\n', FailureReason.UNPARSABLE),
        (b'vllm:generation_tokens_total{engine="0"} many\n', FailureReason.UNPARSABLE),
    ],
)
def test_bad_pages_are_typed_failures(body: bytes, reason: FailureReason) -> None:
    """Empty, HTML, JSON, binary, other series, NaN, cut lines: each says what is wrong, and none says stuck."""
    with pytest.raises(PageError) as caught:
        VLLM.parse(body)
    assert caught.value.reason is reason


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_page_or_a_page_error(noise: bytes) -> None:
    """Whatever the bytes, alone or inside a good page, only a PageError comes out."""
    for body in (noise, recorded_once()[:2000] + noise, b"vllm:generation_tokens_total" + noise + b"\n"):
        with contextlib.suppress(PageError):
            VLLM.parse(body)


_PAGE: list[bytes] = []


def recorded_once() -> bytes:
    """One recorded page, read once."""
    if not _PAGE:
        _PAGE.append(recorded("01-idle", 0))
    return _PAGE[0]


LINES = st.tuples(
    st.sampled_from(
        [
            'vllm:iteration_tokens_total_count{engine="0",model_name="m"}',
            'vllm:iteration_tokens_total_count{engine="1",model_name="m"}',
            'vllm:request_success_total{engine="0",finished_reason="stop",model_name="a } b"}',
            'vllm:num_requests_running{engine="0",model_name="m"}',
            "vllm:num_requests_waiting",
            'vllm:num_requests_waiting{engine="0"} # {x="y"}',
            'vllm:num_requests_waiting{engine="0"} 3 # {x="y"}',
            'vllm:num_requests_waiting{engine="0',
            "vllm:engine_sleep_state{",
            "process_start_time_seconds",
        ]
    ),
    st.sampled_from([" ", "\t", "  ", ""]),
    st.sampled_from(
        ["0", "7", "1.5", "1e3", "+Inf", "NaN", "1_0", "5 1700000000000", "5 6 7", "x", "-1", "9" * 30, ""]
    ),
)


@given(st.lists(st.lists(LINES, max_size=6), min_size=2, max_size=4))
def test_what_is_kept_from_page_to_page_changes_nothing(pages: list[list[tuple[str, str, str]]]) -> None:
    """A parser that has seen other pages reads the next one as a new parser would, whatever stands in the lines."""
    warm = PageParser(builtin()["vllm"])
    for page in pages:
        body = "\n".join("".join(line) for line in page).encode()
        results: list[object] = []
        for parser in (warm, PageParser(builtin()["vllm"])):
            try:
                results.append(parser.parse(body))
            except PageError as error:
                results.append((error.reason, str(error)))
        assert results[0] == results[1]


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_values_that_are_no_numbers_are_not_there(value: str) -> None:
    """A gauge or a counter without a number is as absent as one without a line; the rest of the page counts."""
    labels = '{engine="0",model_name="m"}'
    body = f"""vllm:generation_tokens_total{labels} 7
vllm:iteration_tokens_total_count{labels} {value}
vllm:num_requests_running{labels} {value}
vllm:kv_cache_usage_perc{labels} {value}
process_start_time_seconds {value}
"""
    reading = VLLM.parse(body.encode())
    sample = reading.samples["m", "0"]
    assert (dict(sample.steps), sample.tokens) == ({}, {"vllm:generation_tokens_total": 7})
    assert (sample.in_flight, sample.kv_use, reading.start_time) == (0, None, None)


def test_nothing_else_on_a_real_page_is_work() -> None:
    """Cache queries, preemptions, aborts, `http_*`, `process_*`, and each `*_sum` are on this page, and are no work."""
    body = recorded("02-busy-decode", 10)
    for name in (b"vllm:prefix_cache_queries", b"vllm:num_preemptions", b"http_requests", b"process_cpu", b"_sum{"):
        assert name in body
    sample = VLLM.parse(body).samples["tiny", "0"]
    names = {name.partition("{")[0] for name in (*sample.steps, *sample.tokens, *sample.ended)}
    assert names == {
        "vllm:iteration_tokens_total_count",
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
        "vllm:request_success_total",
    }
    assert not any("abort" in name or "=error" in name for name in sample.ended)
    assert set(VLLM.parse(body).samples) == {("tiny", "0")}


@pytest.mark.parametrize(("value", "asleep"), [("0", True), ("1", False)])
def test_asleep_by_the_page(value: str, asleep: bool) -> None:
    """The state `awake` is 0 while the server sleeps; its other states say nothing."""
    labels = 'engine="0",model_name="m"'
    body = f"""vllm:generation_tokens_total{{{labels}}} 7
vllm:engine_sleep_state{{{labels},sleep_state="awake"}} {value}
vllm:engine_sleep_state{{{labels},sleep_state="weights_offloaded"}} 0
"""
    assert VLLM.parse(body.encode()).asleep is asleep


@pytest.mark.parametrize(("value", "paused"), [("0", False), ("2", True)])
def test_paused_by_the_page(value: str, paused: bool) -> None:
    """SGLang counts the requests that it holds while it is paused."""
    body = f'sglang:realtime_tokens_total{{model_name="m"}} 7\nsglang:num_paused_reqs{{model_name="m"}} {value}\n'
    assert PageParser(builtin()["sglang"]).parse(body.encode()).paused is paused
