"""The sample names that both programs can export, read from their own collectors."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from prometheus_client.metrics_core import Metric

from exporter.metrics import SnapshotCollector
from remediator.config import load
from remediator.journal import Journal
from remediator.metrics import JournalCollector, Metrics

ROOT = Path(__file__).resolve().parent.parent


@cache
def exported() -> frozenset[str]:
    """Every sample name that the exporter or the remediator can export, whether there is a sample or not."""
    config = load(ROOT / "config" / "remediator.yml")
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal.db")
        try:
            families = [
                *SnapshotCollector(list, lambda: 0.0, lambda: True).collect(),
                *Metrics(config).registry.collect(),
                *JournalCollector(config, journal, lambda: 0.0).collect(),
            ]
        finally:
            journal.close()
    return frozenset(_names(families))


def _names(families: Iterable[Metric]) -> Iterable[str]:
    for family in families:
        if family.type == "counter":
            yield f"{family.name}_total"
        elif family.type == "histogram":
            yield from (f"{family.name}_{ending}" for ending in ("bucket", "sum", "count"))
        else:
            yield family.name
