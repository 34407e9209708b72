"""The webhook of a real remediator: how long a delivery takes, small and large, alone and in a steady stream."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import requests

from demo.parts import Parts, free_port
from tests.bench.scale import cpu_seconds

DELIVERIES = 200
STREAM_PER_SECOND, STREAM_SECONDS = 50, 30
BACKENDS = 1000


def deliveries() -> dict[str, float]:
    """Seconds to the answer for 1, 100 and 1,000 alerts in a delivery, and in a stream of small ones."""
    with tempfile.TemporaryDirectory() as folder, _remediator(Path(folder)) as (url, pid, journal):
        found: dict[str, float] = {}
        with requests.Session() as session:
            session.trust_env = False
            for count in (1, 100, 1000):
                times = sorted(_post(session, url, count) for _ in range(DELIVERIES))
                found[f"p50 s, {count} alerts"] = statistics.median(times)
                found[f"p99 s, {count} alerts"] = times[int(len(times) * 0.99)]
        before, size = cpu_seconds(pid), _size(journal)
        times = sorted(_stream(url))
        found[f"p50 s, {STREAM_PER_SECOND} deliveries a second"] = statistics.median(times)
        found[f"p99 s, {STREAM_PER_SECOND} deliveries a second"] = times[int(len(times) * 0.99)]
        found["cores meanwhile"] = (cpu_seconds(pid) - before) / STREAM_SECONDS
        found["journal bytes per alert"] = (_size(journal) - size) / len(times)
    return found


@contextmanager
def _remediator(folder: Path) -> Iterator[tuple[str, int, Path]]:
    address = f"127.0.0.1:{free_port()}"
    journal, config = folder / "journal.db", folder / "remediator.yml"
    driver = {"kind": "command", "restart": ["true"], "identity": ["echo", "one"]}
    backends = [{"name": f"b{n}", "restart_on": ["stuck"], "driver": driver} for n in range(BACKENDS)]
    # Nobody listens there: every request waits for evidence, as when alerts come in while the exporter is down.
    exporter = f"http://127.0.0.1:{free_port()}"
    config.write_text(
        json.dumps(
            {"mode": "advise", "exporter_urls": [exporter], "journal_url": f"sqlite:///{journal}", "backends": backends}
        )
    )
    with Parts() as parts:
        argv = [sys.executable, "-m", "remediator", "--config.file", str(config), "--web.listen-address", address]
        part = parts.start("remediator", [*argv, "--log.level", "error"], f"http://{address}/-/ready", 60)
        assert part.process is not None
        yield f"http://{address}/api/v1/alerts", part.process.pid, journal


def _body(count: int) -> bytes:
    alerts = [
        {
            "status": "firing",
            "labels": {"alertname": "ModelServerStuck", "backend": f"b{n}", "remediation": "restart"},
            "annotations": {"description": "x" * 200},
            "startsAt": "2027-01-01T00:00:00Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "fingerprint": f"{n:016x}",
        }
        for n in range(count)
    ]
    return json.dumps({"version": "4", "groupKey": "{}", "status": "firing", "alerts": alerts}).encode()


def _post(session: requests.Session, url: str, count: int) -> float:
    body = _body(count)
    began = time.monotonic()
    answer = session.post(url, data=body, timeout=30)
    elapsed = time.monotonic() - began
    assert answer.status_code == 202, answer.text
    return elapsed


def _stream(url: str) -> list[float]:
    """Seconds from the time that a delivery was due to its answer: a slow one makes the ones behind it late, too."""
    begin = time.monotonic() + 0.5

    def one(number: int) -> float:
        due = begin + number / STREAM_PER_SECOND
        time.sleep(max(0.0, due - time.monotonic()))
        with requests.Session() as session:
            session.trust_env = False
            _post(session, url, 1)
        return time.monotonic() - due

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(one, range(STREAM_PER_SECOND * STREAM_SECONDS)))


def _size(journal: Path) -> int:
    return sum(path.stat().st_size for path in journal.parent.glob("journal.db*"))
