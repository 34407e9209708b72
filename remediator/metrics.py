"""Every metric name and HELP text of the remediator. What the journal knows is read from it at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from remediator.budget import budget_remaining
from remediator.config import Config
from remediator.database import JournalFailed
from remediator.drivers import FailureReason
from remediator.journal import Journal
from remediator.model import WAITS, Decision, Reason, Verb
from remediator.retention import PRUNED
from stallwatch import __version__

BUCKETS = (5, 10, 20, 30, 60, 120, 300, 600, 900, 1200, 1800)
"""Seconds: loading a model's weights takes from seconds to half an hour."""
CODES = ("202", "400", "401", "403", "413", "429", "503")
STATUSES = ("firing", "resolved", "other")
FAILURES = (*get_args(FailureReason), "identity_unchanged", "identity_unavailable", "not_recovered", "not_configured")
"""Why an attempt that called the driver did not end in a recovery."""


class Metrics:
    """Counters of this process, initialised for everything that can happen, in a registry of their own."""

    def __init__(self, config: Config) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        backend_driver = ("backend", "driver")
        self.decisions = self._counter(
            "remediation_decisions",
            "Decisions of the policy with the first rung that said no; one that a waiting request repeats is counted "
            "once. Alerts for backends that are not configured count under an empty backend.",
            ("backend", "decision", "reason"),
        )
        self.attempts = self._counter("remediation_attempts", "Attempts that called their driver.", backend_driver)
        self.failures = self._counter(
            "remediation_attempts_failed",
            "Attempts that called their driver and did not end in a recovery.",
            (*backend_driver, "reason"),
        )
        self.leases_lost = self._counter(
            "remediation_leases_lost",
            "Attempts that another replica took up while this one was paused or could not reach the journal.",
            (),
        )
        self.rows_removed = self._counter(
            "remediation_journal_rows_removed", "Rows that were older than the journal's retention.", ("table",)
        )
        self.restarts_seen = self._counter(
            "remediation_restarts_seen",
            "Changes of a backend's identity, by who caused them: us, or others: a second watchdog, a person, a crash.",
            ("backend", "by"),
        )
        self.action_seconds = self._histogram("remediation_action_duration_seconds", "How long the driver call took.")
        self.recovery_seconds = self._histogram(
            "remediation_recovery_duration_seconds",
            "From the end of the driver call to the first answer or progress of the new process.",
        )
        self.webhook_requests = self._counter(
            "webhook_requests", "Deliveries of alerts, by the status they were answered with.", ("code",)
        )
        self.webhook_alerts = self._counter(
            "webhook_alerts", "Alerts in deliveries that were journalled, by their own status.", ("status",)
        )
        self.webhook_truncated = self._counter(
            "webhook_truncated_alerts", "Alerts that Alertmanager left out of its deliveries; set max_alerts: 0.", ()
        )
        self.round_failures = self._counter(
            "remediation_round_failures", "Rounds of decisions that an error cut short.", ()
        )
        self.group_mismatch = Gauge(
            "stallwatch_remediation_group_mismatch",
            "1 if the exporter names another group for this backend than the remediator's file, which decides.",
            ("backend",),
            registry=self.registry,
        )
        self._initialise(config)

    def decided(self, backend: str, decision: Decision) -> None:
        """Count a decision; `backend` is empty for names that are not configured."""
        self.decisions.labels(backend, decision.verb.value, decision.reason.value).inc()

    def _counter(self, name: str, text: str, labels: Iterable[str]) -> Counter:
        return Counter(f"stallwatch_{name}", text, tuple(labels), registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"stallwatch_{name}", text, ("driver",), buckets=BUCKETS, registry=self.registry)

    def _initialise(self, config: Config) -> None:
        # A counter that first appears at 1 gives an increase of 0.
        self.decisions.labels("", Verb.REFUSE.value, Reason.UNKNOWN_BACKEND.value)
        for name, backend in config.backends.items():
            kind = backend.driver.kind
            self.decisions.labels(name, Verb.ACT.value, Reason.ACT.value)
            for reason in set(Reason) - {Reason.ACT, Reason.UNKNOWN_BACKEND}:
                self.decisions.labels(name, Verb.REFUSE.value, reason.value)
                if reason in WAITS:
                    self.decisions.labels(name, Verb.WAIT.value, reason.value)
            self.attempts.labels(name, kind)
            for who in ("us", "others"):
                self.restarts_seen.labels(name, who)
            for failure in FAILURES:
                self.failures.labels(name, kind, failure)
            self.action_seconds.labels(kind)
            self.recovery_seconds.labels(kind)
            self.group_mismatch.labels(name).set(0)
        for table in PRUNED:
            self.rows_removed.labels(table)
        for code in CODES:
            self.webhook_requests.labels(code)
        for status in STATUSES:
            self.webhook_alerts.labels(status)


class JournalCollector(Collector):
    """Renders what the journal knows. A journal that cannot be read is one gauge at 0, never an old value."""

    def __init__(self, config: Config, journal: Journal, now: Callable[[], float]) -> None:
        self._config, self._journal, self._now = config, journal, now

    def collect(self) -> Iterable[Metric]:
        """Yield every family; called once per scrape."""
        yield from self._settings()
        readable = GaugeMetricFamily("stallwatch_remediation_journal_readable", "Whether the journal could be read.")
        try:
            families = list(self._from_journal())
        except JournalFailed:
            families = []
        readable.add_metric([], float(bool(families)))
        yield readable
        yield from families

    def _settings(self) -> Iterable[Metric]:
        mode = GaugeMetricFamily(
            "stallwatch_remediation_mode", "1 for the mode of the configuration, 0 for the other.", labels=["mode"]
        )
        for name in ("advise", "restart"):
            mode.add_metric([name], float(name == self._config.mode))
        yield mode
        build = GaugeMetricFamily("stallwatch_build_info", "The version that runs; always 1.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build

    def _from_journal(self) -> Iterable[Metric]:
        now = self._now()
        history = self._journal.reader.history(now)
        waiting = {r.backend for r in self._journal.inbox.waiting()}
        busy = {a.backend for a in history.attempts if a.ended_at is None}
        names = self._config.backends
        limits = self._config.limits
        remaining = {name: float(budget_remaining(history, name, limits, now)) for name in names}
        calls = self._journal.reader.last_calls()
        yield _gauge("in_progress", "Whether an attempt is under way.", _flags(names, busy))
        yield _gauge("waiting", "Whether a request waits for a decision.", _flags(names, waiting))
        yield _gauge("held", "Whether the backend is held for maintenance.", _flags(names, history.holds))
        yield _gauge("budget_remaining", "How many restarts the budget allows now; 0 while it is latched.", remaining)
        yield _gauge(
            "last_action_timestamp_seconds",
            "When the driver was called last; absent if never.",
            {name: at for name, at in calls.items() if name in names},
        )
        yield GaugeMetricFamily(
            "stallwatch_remediation_storm",
            "1 while so many groups are in trouble that nothing is restarted.",
            value=float(history.storm is not None and not history.storm.overridden),
        )


def _flags(names: Iterable[str], which: Iterable[str]) -> dict[str, float]:
    found = set(which)
    return {name: float(name in found) for name in names}


def _gauge(name: str, text: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"stallwatch_remediation_{name}", text, labels=["backend"])
    for backend, value in values.items():
        family.add_metric([backend], value)
    return family
