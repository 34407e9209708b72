"""Small exposition pages with the series of each kind of server: real names and labels, nothing that no rule reads."""

from __future__ import annotations

START = 1_796_000_000.0
"""When the first process of a case started (Unix seconds)."""

V1_KV = ("vllm:kv_cache_usage_perc",)
V0_KV = ("vllm:gpu_cache_usage_perc",)


class Exposition:
    """A page being written: series by family, in the order in which the families came."""

    def __init__(self, start: float | None = START) -> None:
        self._families: dict[tuple[str, str], list[str]] = {}
        if start is not None:
            self.add("process_start_time_seconds", "gauge", start)

    def add(self, family: str, kind: str, value: float, suffix: str = "", **labels: str) -> None:
        """One sample."""
        inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
        sample = f"{family}{suffix}{{{inner}}}" if inner else family + suffix
        self._families.setdefault((family, kind), []).append(f"{sample} {float(value):.10g}")

    def text(self) -> str:
        """The whole page."""
        lines = []
        for (family, kind), samples in self._families.items():
            lines += [f"# TYPE {family} {kind}", *samples]
        return "\n".join(lines) + "\n"

    def vllm(
        self,
        run: float = 0,
        wait: float = 0,
        kv: float | None = 0.0,
        *,
        gen: float = 0,
        prompt: float = 500,
        steps: float | None = None,
        succ: float = 7,
        engine: str | None = "0",
        model: str = "model-a",
        deferred: float | None = None,
        kv_names: tuple[str, ...] = V1_KV,
        prefix: str = "vllm:",
        abort: float | None = None,
    ) -> Exposition:
        """The series of one vLLM engine; `steps` None: a build without the histogram of iterations."""
        who = {"model_name": model} if engine is None else {"engine": engine, "model_name": model}
        self.add(f"{prefix}num_requests_running", "gauge", run, **who)
        self.add(f"{prefix}num_requests_waiting", "gauge", wait, **who)
        if deferred is not None:
            name = f"{prefix}num_requests_waiting_by_reason"
            self.add(name, "gauge", wait - deferred, **who, reason="capacity")
            self.add(name, "gauge", deferred, **who, reason="deferred")
        for name in kv_names if kv is not None else ():
            self.add(name.replace("vllm:", prefix), "gauge", kv or 0.0, **who)
        self.add(f"{prefix}prompt_tokens_total", "counter", prompt, **who)
        self.add(f"{prefix}generation_tokens_total", "counter", gen, **who)
        if steps is not None:
            self.add(f"{prefix}iteration_tokens_total", "histogram", steps, "_count", **who)
        self.add(f"{prefix}request_success_total", "counter", succ, **who, finished_reason="stop")
        if abort is not None:
            self.add(f"{prefix}request_success_total", "counter", abort, **who, finished_reason="abort")
        return self

    def sglang(
        self,
        run: float = 0,
        queue: float = 0,
        *,
        gen: float = 0,
        prompt: float = 500,
        done: float = 7,
        decode: float | None = None,
        prefill: float = 0,
        paused: float | None = None,
        prefix: str = "sglang:",
    ) -> Exposition:
        """The series of an SGLang server; `decode` None: a build without the live counter."""
        who = {"model_name": "model-a"}
        self.add(f"{prefix}num_running_reqs", "gauge", run, **who)
        self.add(f"{prefix}num_queue_reqs", "gauge", queue, **who)
        if paused is not None:
            self.add(f"{prefix}num_paused_reqs", "gauge", paused, **who)
        self.add(f"{prefix}prompt_tokens_total", "counter", prompt, **who)
        self.add(f"{prefix}generation_tokens_total", "counter", gen, **who)
        self.add(f"{prefix}e2e_request_latency_seconds", "histogram", done, "_count", **who)
        if decode is not None:
            self.add(f"{prefix}realtime_tokens_total", "counter", decode, **who, mode="decode")
            self.add(f"{prefix}realtime_tokens_total", "counter", prefill, **who, mode="prefill_compute")
        return self

    def llamacpp(
        self,
        processing: float = 0,
        deferred: float = 0,
        *,
        decodes: float = 0,
        predicted: float = 900,
        prompt: float = 500,
        prefix: str = "llamacpp:",
    ) -> Exposition:
        """The series of a llama-server, which publishes no start time."""
        self.add(f"{prefix}prompt_tokens_total", "counter", prompt)
        self.add(f"{prefix}tokens_predicted_total", "counter", predicted)
        self.add(f"{prefix}n_decode_total", "counter", decodes)
        self.add(f"{prefix}requests_processing", "gauge", processing)
        self.add(f"{prefix}requests_deferred", "gauge", deferred)
        return self

    def tgi(self, batch: float = 0, queue: float = 0, *, done: float = 0, batches: float | None = None) -> Exposition:
        """The series of a text-generation-inference router."""
        self.add("tgi_batch_current_size", "gauge", batch)
        self.add("tgi_queue_size", "gauge", queue)
        self.add("tgi_request_success", "counter", done)
        for method in ("prefill", "decode") if batches is not None else ():
            self.add("tgi_batch_inference_success", "counter", batches or 0, method=method)
        return self


def vllm(
    run: float = 0, wait: float = 0, kv: float | None = 0.0, *, start: float | None = START, **more: object
) -> str:
    """A vLLM page with one engine."""
    return Exposition(start).vllm(run, wait, kv, **more).text()  # type: ignore[arg-type]


def sglang(run: float = 0, queue: float = 0, **more: object) -> str:
    """An SGLang page."""
    return Exposition().sglang(run, queue, **more).text()  # type: ignore[arg-type]


def llamacpp(processing: float = 0, deferred: float = 0, **more: object) -> str:
    """A llama-server page."""
    return Exposition(None).llamacpp(processing, deferred, **more).text()  # type: ignore[arg-type]


def tgi(batch: float = 0, queue: float = 0, **more: object) -> str:
    """A text-generation-inference page."""
    return Exposition(None).tgi(batch, queue, **more).text()  # type: ignore[arg-type]
