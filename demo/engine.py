"""A simulated vLLM engine: pure, without a clock or a thread of its own. One `step` is one engine step.

It keeps the two sides of a real one apart: what the engine does (`step`), and what the API server has heard of it
(`stats`). An engine that does not step therefore freezes its own statistics and sees no arrivals, as a real one does.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Literal

from demo.families import ENGINE_FAMILIES

BLOCK_TOKENS = 128
KV_BLOCKS = 2047  # of the 2048 configured ones vLLM keeps one for itself
STEP_TOKENS = 256  # what one step can process: max_num_batched_tokens

PauseMode = Literal["keep", "wait", "abort"]


class Histogram:
    """Counts per bucket (not cumulative; the last one is +Inf) and the sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Add one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass
class Stats:
    """What the API server knows of one engine, keyed as `Family.key` says; absent values are 0."""

    values: dict[str, float] = field(default_factory=lambda: {"engine_sleep_state/awake": 1.0})
    histograms: dict[str, Histogram] = field(
        default_factory=lambda: {f.key(): Histogram(f.bounds) for f in ENGINE_FAMILIES if f.kind == "histogram"}
    )
    stepped: bool = False

    def add(self, key: str, amount: float = 1.0) -> None:
        """Raise a counter."""
        self.values[key] = self.values.get(key, 0.0) + amount

    def gauges(self, running: float, waiting: float, kv_use: float) -> None:
        """Set what a step publishes of the queues; `kv_use` from 0 to 1."""
        self.values["num_requests_running"] = running
        self.values["num_requests_waiting"] = self.values["num_requests_waiting_by_reason/capacity"] = waiting
        self.values["kv_cache_usage_perc"] = kv_use
        self.stepped = True


@dataclass(eq=False)
class Request:
    """One request. `outputs` receives "" per output token if `streams`, and at the end the reason it ended for."""

    prompt_tokens: int
    max_tokens: int
    ends_with: Literal["length", "stop"] = "length"
    streams: bool = False
    step_tokens: int | None = None  # a share of each step of its own, for prefills that last as long as asked
    outputs: SimpleQueue[str] = field(default_factory=SimpleQueue)
    arrived_at: float = 0.0
    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float = 0.0
    computed: int = 0
    generated: int = 0

    @property
    def blocks(self) -> int:
        """KV blocks it holds now."""
        return -(-self.computed // BLOCK_TOKENS)

    @property
    def most_blocks(self) -> int:
        """KV blocks it may come to hold."""
        return -(-(self.prompt_tokens + self.max_tokens) // BLOCK_TOKENS)


class Engine:
    """One rank. Times are seconds of any one monotonic clock. Not thread-safe: the caller holds one lock."""

    def __init__(self, max_num_seqs: int = 4) -> None:
        self.stats = Stats()
        self.frozen = False
        self.asleep = False
        self.paused: PauseMode | None = None
        self._max_num_seqs = max_num_seqs
        self._inbox: deque[tuple[Literal["add", "abort"], Request]] = deque()
        self._running: list[Request] = []
        self._waiting: deque[Request] = deque()
        self._step_ends_at = 0.0

    @property
    def in_flight(self) -> bool:
        """Whether the engine itself holds requests."""
        return bool(self._running or self._waiting)

    def submit(self, request: Request, now: float) -> None:
        """Send a request; the engine sees it at its next step."""
        request.arrived_at = now
        self._inbox.append(("add", request))

    def abort(self, request: Request) -> None:
        """Take a request back (its client has gone); the engine sees it at its next step. It counts nowhere."""
        self._inbox.append(("abort", request))

    def abort_all(self, now: float) -> None:
        """End everything with the reason abort, at once and counted, as pausing with mode abort does."""
        self._drain()
        for request in [*self._running, *self._waiting]:
            self._end(request, "abort", now)
        self._running.clear()
        self._waiting.clear()
        if self.stats.stepped:
            self._publish()

    def sleep(self, level: int) -> None:
        """Publish a sleep level: 0 awake, 1 weights offloaded, 2 all discarded."""
        self.asleep = level > 0
        for at, state in enumerate(("awake", "weights_offloaded", "discard_all")):
            self.stats.values[f"engine_sleep_state/{state}"] = float(at == level)

    def hold_step(self, seconds: float, now: float) -> None:
        """Begin one step that lasts `seconds` and shows nothing; an idle engine gets a request to do it for."""
        if not self.in_flight:
            self._running.append(Request(STEP_TOKENS * 60, 1, step_tokens=STEP_TOKENS * 60, scheduled_at=now))
            self._running[0].arrived_at = now
            self._publish()
        self._step_ends_at = now + seconds

    def step(self, now: float) -> None:
        """One engine step: take in arrivals, fill the batch, compute, publish. Nothing to do publishes nothing."""
        if self.frozen or self.asleep or self.paused in ("keep", "abort") or now < self._step_ends_at:
            return
        # While a pause waits for the running requests, later ones stay outside.
        changed, decoding_aborted = self._drain() if self.paused is None else (False, False)
        self._admit(now)
        if not self._running and not changed:
            return
        had_output, tokens = decoding_aborted, 0
        budget = STEP_TOKENS
        for request in list(self._running):
            decodes = request.computed >= request.prompt_tokens
            share = 1 if decodes else min(request.prompt_tokens - request.computed, request.step_tokens or budget)
            if request.step_tokens is None:
                share = min(share, budget)
                budget -= share
            request.computed += share
            if share and request.computed >= request.prompt_tokens:
                had_output = True
                tokens += self._emit(request, now)
        # Only a step that gave output is counted: a prefill moves no counter until its first token.
        if had_output:
            self.stats.histograms["iteration_tokens_total"].observe(tokens)
        self._publish()

    def _drain(self) -> tuple[bool, bool]:
        """Take in arrivals and aborts: (anything the engine held has changed, a request with output was aborted)."""
        changed = decoding_aborted = False
        while self._inbox:
            what, request = self._inbox.popleft()
            if what == "add":
                self._waiting.append(request)
            elif request in self._running:
                self._running.remove(request)
                changed, decoding_aborted = True, decoding_aborted or request.generated > 0
            elif request in self._waiting:
                self._waiting.remove(request)
                changed = True
        return changed, decoding_aborted

    def _admit(self, now: float) -> None:
        reserved = sum(request.most_blocks for request in self._running)
        while self._waiting and len(self._running) < self._max_num_seqs:
            reserved += self._waiting[0].most_blocks
            if self._running and reserved > KV_BLOCKS:
                return
            request = self._waiting.popleft()
            request.scheduled_at = now
            self.stats.add("prefix_cache_queries_total", request.prompt_tokens)
            self._running.append(request)

    def _emit(self, request: Request, now: float) -> int:
        """Give one output token; returns the tokens that the step's statistics count for it."""
        tokens, seen = 1, self.stats.histograms
        request.generated += 1
        self.stats.add("generation_tokens_total")
        if request.first_token_at is None:
            tokens += request.prompt_tokens
            request.first_token_at = now
            self.stats.add("prompt_tokens_total", request.prompt_tokens)
            self.stats.add("prompt_tokens_by_source_total/local_compute", request.prompt_tokens)
            seen["time_to_first_token_seconds"].observe(now - request.arrived_at)
        else:
            seen["inter_token_latency_seconds"].observe(now - request.last_token_at)
        request.last_token_at = now
        if request.streams:
            request.outputs.put("")
        if request.generated >= request.max_tokens:
            self._running.remove(request)
            self._end(request, request.ends_with, now)
        return tokens

    def _end(self, request: Request, reason: str, now: float) -> None:
        scheduled_at = now if request.scheduled_at is None else request.scheduled_at
        first_token_at = now if request.first_token_at is None else request.first_token_at
        decode_seconds = now - first_token_at
        self.stats.add(f"request_success_total/{reason}")
        for key, value in {
            "request_prompt_tokens": request.prompt_tokens,
            "request_generation_tokens": request.generated,
            "request_max_num_generation_tokens": request.generated,
            "request_params_n": 1,
            "request_params_max_tokens": request.max_tokens,
            "request_time_per_output_token_seconds": decode_seconds / max(1, request.generated - 1),
            "e2e_request_latency_seconds": now - request.arrived_at,
            "request_queue_time_seconds": scheduled_at - request.arrived_at,
            "request_inference_time_seconds": now - scheduled_at,
            "request_prefill_time_seconds": first_token_at - scheduled_at,
            "request_decode_time_seconds": decode_seconds,
            "request_num_preemptions": 0,
            "request_prefill_kv_computed_tokens": request.prompt_tokens,
        }.items():
            self.stats.histograms[key].observe(value)
        request.outputs.put(reason)

    def _publish(self) -> None:
        used = sum(request.blocks for request in self._running)
        self.stats.gauges(len(self._running), len(self._waiting), used / KV_BLOCKS)
