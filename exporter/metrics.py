"""Every metric name and HELP text, and a collector that renders snapshots. A scrape never polls a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from exporter.discovery import Counts
from exporter.exposition import of_backend
from exporter.model import AskResult, FailureReason, Verdict
from exporter.snapshot import Snapshot
from exporter.verdict import Shown, shown
from stallwatch import __version__

BACKEND = ["backend"]
STALE_INTERVALS, STALE_TIMEOUTS = 3, 2
"""A backend whose loop finished no poll for 3 intervals and 2 time-outs must not look fresh."""

GAUGES = {
    "engine_progress_rate": "Engine steps per second between the last two good pages, summed over ranks (tokens per "
    "second where the runtime counts no steps), by the stallwatch exporter. 0 during a prefill that only raises KV "
    "use; absent where nothing can be measured.",
    "stalled_seconds": "How long the worst rank has stood still with work in flight, up to the last good page; for an "
    "idle rank with unanswered asks, since the first of them was proven. By the stallwatch exporter.",
    "restart_detected": "1 for restart_hold_seconds after a new server process was seen, else 0. By the stallwatch "
    "exporter.",
    "stallwatch_backend_up": "Whether the last poll was read and understood.",
    "stallwatch_backend_requests_running": "Requests running on the last good page, summed over ranks.",
    "stallwatch_backend_requests_waiting": "Requests waiting on the last good page, summed over ranks.",
    "stallwatch_backend_stuck_after_seconds": "The effective limit from which a stall that is proven is stuck; a "
    "longer stall that ended by itself raises it.",
    "stallwatch_backend_suspect_after_seconds": "The limit from which a stall is suspected.",
    "stallwatch_backend_asks_unanswered": "Misses in a row of the rank that stalled_seconds speaks of.",
    "stallwatch_backend_asks_required": "Misses in a row that prove that rank stuck: 1 with work in flight, 3 idle; "
    "+Inf where nothing can be proven, 0 where none can be had and restart_unconfirmed_after_seconds is set.",
    "stallwatch_backend_prefill_only_seconds": "How long KV use has been the only thing that moved on the last good "
    "page: a long prefill.",
    "stallwatch_backend_start_time_seconds": "Start time of the server process as its page publishes it.",
    "stallwatch_backend_last_observation_timestamp_seconds": "When the last good page was read.",
    "stallwatch_backend_last_progress_timestamp_seconds": "When progress was last seen on a page.",
    "stallwatch_backend_poll_duration_seconds": "How long the last poll took.",
}
COUNTERS = {
    "stallwatch_backend_work": "Engine steps (or tokens where the runtime counts no steps) seen since the exporter "
    "started; never falls when the server restarts.",
    "stallwatch_backend_tokens": "Tokens seen since the exporter started; never falls when the server restarts.",
    "stallwatch_backend_restarts": "New server processes seen, whoever restarted them.",
    "stallwatch_backend_polls": "Polls of this backend.",
}


class _Families:
    """The families of one scrape; a name that is not listed above is a programming error.

    Samples are appended as they are: at 46 for each of 1,000 backends, the families' own method took a third of the
    time.
    """

    def __init__(self) -> None:
        self._gauges = {name: GaugeMetricFamily(name, text, labels=BACKEND) for name, text in GAUGES.items()}
        self._counters = {name: CounterMetricFamily(name, text, labels=BACKEND) for name, text in COUNTERS.items()}

    def gauge(self, name: str, labels: dict[str, str], value: float | None) -> None:
        if value is not None:
            self._gauges[name].samples.append(Sample(name, labels, value))

    def counter(self, name: str, labels: dict[str, str], value: float) -> None:
        self._counters[name].samples.append(Sample(f"{name}_total", labels, value))

    def __iter__(self) -> Iterator[Metric]:
        yield from self._gauges.values()
        yield from self._counters.values()


class SnapshotCollector(Collector):
    """Renders the newest snapshot of each backend. Families are built anew, so no series outlives its backend."""

    def __init__(
        self,
        snapshots: Callable[[], Sequence[Snapshot]],
        monotonic: Callable[[], float],
        last_reload_successful: Callable[[], bool],
        discovered: Callable[[], Counts] = Counts,
    ) -> None:
        self._snapshots, self._monotonic, self._reload_ok = snapshots, monotonic, last_reload_successful
        self._discovered = discovered

    def collect(self) -> Iterable[Metric]:
        """Yield every family; called once per scrape."""
        now = self._monotonic()
        families = _Families()
        info = GaugeMetricFamily(
            "stallwatch_backend_info", "What a backend is; always 1.", labels=["backend", "runtime", "url", "group"]
        )
        verdicts = GaugeMetricFamily(
            "stallwatch_backend_verdict", "1 for the present verdict, 0 for the others.", labels=["backend", "verdict"]
        )
        ranks = GaugeMetricFamily(
            "stallwatch_rank_stalled_seconds", "The stall clock of one rank.", labels=["backend", "rank"]
        )
        asks = CounterMetricFamily(
            "stallwatch_backend_asks", "Short requests sent, by what came of them.", labels=["backend", "result"]
        )
        failures = CounterMetricFamily(
            "stallwatch_backend_poll_failures", "Polls that gave no usable page.", labels=["backend", "reason"]
        )
        asks_total, failures_total = f"{asks.name}_total", f"{failures.name}_total"
        for snapshot in self._snapshots():
            name, backend, state = snapshot.backend.name, snapshot.backend, snapshot.state
            info.add_metric([name, backend.runtime.name, backend.url, backend.group], 1)
            _timestamps(families, snapshot)
            if is_dead(snapshot, now):
                continue
            for verdict in Verdict:
                labels = of_backend(name, "verdict", verdict)
                verdicts.samples.append(Sample(verdicts.name, labels, float(state.verdict is verdict)))
            for result in AskResult:
                count = state.asks.get(result, 0)
                asks.samples.append(Sample(asks_total, of_backend(name, "result", result), count))
            for reason in FailureReason:
                count = snapshot.poll_failures.get(reason, 0)
                failures.samples.append(Sample(failures_total, of_backend(name, "reason", reason), count))
            gauges = shown(state, backend.limits, now)
            _backend(families, snapshot, gauges)
            if gauges.stalled_seconds is not None:
                for key, label in state.rank_names().items():
                    ranks.add_metric([name, label], state.ranks[key].shown_stall_seconds)
        yield from families
        yield from (info, verdicts, ranks, asks, failures)
        yield from self._own()

    def _own(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "stallwatch_config_last_reload_successful",
            "Whether the last attempt to load the configuration succeeded.",
            value=float(self._reload_ok()),
        )
        build = GaugeMetricFamily("stallwatch_build_info", "The version that runs; always 1.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        yield from _discovery(self._discovered())


def _discovery(counts: Counts) -> Iterator[Metric]:
    failures = CounterMetricFamily(
        "stallwatch_discovery_refresh_failures",
        "Lists of targets that could not be read or used; the last good list stays.",
        labels=["mechanism"],
    )
    for mechanism, number in counts.failures.items():
        failures.add_metric([mechanism], number)
    yield failures
    yield GaugeMetricFamily(
        "stallwatch_discovered_backends", "Backends that come from lists of targets, in this shard.", counts.backends
    )
    refused = GaugeMetricFamily(
        "stallwatch_discovery_targets_refused", "Targets that are not watched now, by why.", labels=["reason"]
    )
    for reason, number in counts.refused.items():
        refused.add_metric([reason], number)
    yield refused


def is_dead(snapshot: Snapshot, now: float) -> bool:
    """Whether the backend's loop finished no poll for so long that its values must not be shown."""
    limits = snapshot.backend.limits
    bound = STALE_INTERVALS * limits.poll_interval_seconds + STALE_TIMEOUTS * limits.poll_timeout_seconds
    return now - (snapshot.polled_at if snapshot.polled_at is not None else snapshot.taken_at) > bound


def _timestamps(families: _Families, snapshot: Snapshot) -> None:
    labels, state = of_backend(snapshot.backend.name), snapshot.state
    page = state.last_page
    families.gauge("stallwatch_backend_last_observation_timestamp_seconds", labels, page.wall if page else None)
    progress = [rank.progress_wall for rank in state.ranks.values() if rank.progress_wall is not None]
    families.gauge("stallwatch_backend_last_progress_timestamp_seconds", labels, max(progress, default=None))


def _backend(families: _Families, snapshot: Snapshot, gauges: Shown) -> None:
    labels, state, limits = of_backend(snapshot.backend.name), snapshot.state, snapshot.backend.limits
    families.gauge("engine_progress_rate", labels, gauges.progress_rate)
    families.gauge("stalled_seconds", labels, gauges.stalled_seconds)
    families.gauge("restart_detected", labels, gauges.restart_detected)
    families.gauge("stallwatch_backend_up", labels, float(snapshot.up))
    families.gauge("stallwatch_backend_stuck_after_seconds", labels, gauges.stuck_after_seconds)
    families.gauge("stallwatch_backend_suspect_after_seconds", labels, limits.suspect_after_seconds)
    families.gauge("stallwatch_backend_asks_unanswered", labels, gauges.misses)
    families.gauge("stallwatch_backend_asks_required", labels, gauges.misses_required)
    families.gauge("stallwatch_backend_poll_duration_seconds", labels, snapshot.poll_duration_seconds)
    if state.incarnation is not None:
        families.gauge("stallwatch_backend_start_time_seconds", labels, state.incarnation.start_time)
    if gauges.stalled_seconds is not None:
        ranks = state.ranks.values()
        families.gauge("stallwatch_backend_requests_running", labels, sum(r.latest.running for r in ranks))
        families.gauge("stallwatch_backend_requests_waiting", labels, sum(r.latest.waiting for r in ranks))
        only_kv = [r.latest_at - r.kv_only_since for r in ranks if r.kv_only_since is not None]
        families.gauge("stallwatch_backend_prefill_only_seconds", labels, max(only_kv, default=0.0))
    families.counter("stallwatch_backend_work", labels, state.work_total)
    families.counter("stallwatch_backend_tokens", labels, state.tokens_total)
    families.counter("stallwatch_backend_restarts", labels, state.restarts)
    families.counter("stallwatch_backend_polls", labels, snapshot.polls)
