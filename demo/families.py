"""The metric families of a vLLM page as a table: names, kinds, labels and histogram bounds, in the page's order.

Source: the pages of vLLM 0.32.0 in `tests/recordings`; a test holds the two together. The HELP texts are our own.
"""

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]

_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)
_STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)

SLEEP_SECONDS = (0.01, 0.1, 1.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
HTTP_FINE_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0),
    *(2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0),
)
HTTP_COARSE_SECONDS = (0.1, 0.5, 1.0)


class Family(NamedTuple):
    """One metric family of the engines; `label` and its `values` are what it has beside engine and model_name."""

    name: str
    kind: Kind
    text: str
    label: str = ""
    values: tuple[str, ...] = ("",)
    bounds: tuple[float, ...] = ()
    per_rank: bool = True

    def key(self, value: str = "") -> str:
        """Where `Stats.values` keeps the series: `generation_tokens_total`, `request_success_total/length`."""
        short = self.name.removeprefix("vllm:")
        return f"{short}/{value}" if value else short


def _counter(name: str, text: str, label: str = "", values: str = "", *, per_rank: bool = True) -> Family:
    return Family(f"vllm:{name}_total", "counter", text, label, tuple(values.split()) or ("",), per_rank=per_rank)


def _gauge(name: str, text: str, label: str = "", values: str = "") -> Family:
    return Family(f"vllm:{name}", "gauge", text, label, tuple(values.split()) or ("",))


def _histogram(name: str, bounds: tuple[float, ...], text: str) -> Family:
    return Family(f"vllm:{name}", "histogram", text, bounds=bounds)


ENGINE_FAMILIES: tuple[Family, ...] = (
    _counter("estimated_flops_per_gpu", "Estimated floating point operations of one GPU."),
    _counter("estimated_read_bytes_per_gpu", "Estimated bytes one GPU read from its memory."),
    _counter("estimated_write_bytes_per_gpu", "Estimated bytes one GPU wrote to its memory."),
    _gauge("num_requests_running", "Requests in the batch that the engine works on."),
    _gauge("num_requests_waiting", "Requests that wait for a place in the batch."),
    _gauge(
        *("num_requests_waiting_by_reason", "Waiting requests, split by why they wait: no capacity, or deferred."),
        *("reason", "capacity deferred"),
    ),
    _gauge(
        *("engine_sleep_state", "Which sleep state holds (1) and which do not (0); awake 0 means asleep."),
        *("sleep_state", "awake weights_offloaded discard_all"),
    ),
    _gauge("kv_cache_usage_perc", "Share of the KV cache in use, from 0 to 1."),
    _counter("prefix_cache_queries", "Prompt tokens that were looked up in the prefix cache."),
    _counter("prefix_cache_hits", "Prompt tokens that were found in the prefix cache."),
    _counter("external_prefix_cache_queries", "Prompt tokens that were looked up in a cache shared between servers."),
    _counter("external_prefix_cache_hits", "Prompt tokens that were found in a cache shared between servers."),
    _counter("mm_cache_queries", "Items that were looked up in the multi-modal cache."),
    _counter("mm_cache_hits", "Items that were found in the multi-modal cache."),
    _counter("num_preemptions", "Requests that lost their place in the batch for want of KV cache."),
    _counter("prompt_tokens", "Prompt tokens processed."),
    _counter(
        *("prompt_tokens_by_source", "Prompt tokens processed, by where their KV values came from."),
        *("source", "local_compute local_cache_hit external_kv_transfer"),
    ),
    _counter("prompt_tokens_cached", "Prompt tokens that some cache supplied."),
    _counter(
        *("prompt_tokens_cached_by_source", "Prompt tokens that some cache supplied, by the tier it lies in."),
        *("source", "device host p2p disk external_unspecified"),
    ),
    _counter("generation_tokens", "Output tokens generated."),
    _counter(
        *("request_success", "Requests that ended, by the reason they ended for."),
        *("finished_reason", "stop length abort error repetition"),
    ),
    _counter(
        *("admission_rejections", "Requests turned away at a limit of the queue.", "reason"),
        *("max_num_queued_reqs max_num_queued_tokens",),
        per_rank=False,
    ),
    _histogram("request_prompt_tokens", _TOKENS, "Prompt tokens of a request."),
    _histogram("request_generation_tokens", _TOKENS, "Output tokens of a request."),
    _histogram("iteration_tokens_total", _STEP_TOKENS, "Tokens of one engine step; its count is the number of steps."),
    _histogram("request_max_num_generation_tokens", _TOKENS, "Most output tokens of any sequence of a request."),
    _histogram("request_params_n", (1.0, 2.0, 5.0, 10.0, 20.0), "Parameter n of a request."),
    _histogram("request_params_max_tokens", _TOKENS, "Parameter max_tokens of a request."),
    _histogram("time_to_first_token_seconds", _FIRST_TOKEN, "Time from arrival to the first output token."),
    _histogram("inter_token_latency_seconds", _PER_TOKEN, "Time between two output tokens of a request."),
    _histogram("request_time_per_output_token_seconds", _PER_TOKEN, "Mean time per output token of a request."),
    _histogram("e2e_request_latency_seconds", _REQUEST, "Time from arrival to end of a request."),
    _histogram("request_queue_time_seconds", _REQUEST, "Time a request waited."),
    _histogram("request_inference_time_seconds", _REQUEST, "Time a request ran."),
    _histogram("request_prefill_time_seconds", _REQUEST, "Time a request ran before its first output token."),
    _histogram("request_decode_time_seconds", _REQUEST, "Time a request ran after its first output token."),
    _histogram("request_num_preemptions", (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0), "How often a request was preempted."),
    _histogram("request_prefill_kv_computed_tokens", _TOKENS, "Prompt tokens of a request that no cache supplied."),
)

# A gauge whose labels are the server's cache configuration; the values are those of the recorded server.
CACHE_CONFIG = (
    "_block_size_resolved=True block_size=128 cache_dtype=auto cache_hit_alignment_tokens=None "
    "effective_attention_block_size=128 enable_mamba_shared_prefix_checkpoint=False enable_prefix_caching=True "
    "engine={rank} gpu_memory_utilization=0.92 hash_block_size=None is_attention_free=False "
    "kv_cache_dtype_skip_layers=[] kv_cache_layout=None kv_cache_max_concurrency=16.0 "
    "kv_cache_memory_bytes=1073741824 kv_cache_size_tokens=262144 kv_offloading_backend=native "
    "kv_offloading_size=None kv_sharing_fast_prefill=False mamba_block_size=None mamba_cache_dtype=auto "
    "mamba_cache_mode=none mamba_page_size_padded=None mamba_ssm_cache_dtype=auto num_cpu_blocks=None "
    "num_gpu_blocks=2048 num_gpu_blocks_override=None prefix_cache_retention_interval=0 "
    "prefix_caching_hash_algo=sha256 prefix_match_unit=None replayssm_buffer_len=16 skip_page_size_padded=None "
    "sliding_window=None swa_bounded_replay=True use_kda_recoverssm=False use_replayssm=False "
    "user_specified_block_size=False"
)
