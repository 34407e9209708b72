"""Many backends, a fifth of them bad: what the exporter costs, how late its polls are, what a scrape of it costs."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import requests
import yaml

from demo.parts import Part, Parts, free_port
from tests.bench.backends import kind

INTERVAL_SECONDS = 5.0
SETTLE_SECONDS, MEASURE_SECONDS = 12.0, 30.0
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fleet(count: int, page: bytes, shards: int = 1) -> dict[str, float]:
    """Watch `count` backends every 5 s, in so many exporters; CPU as cores, lateness and a scrape in seconds."""
    with Parts() as parts, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "page").write_bytes(page)
        port, closed, log = free_port(), free_port(), Path(folder) / "arrivals"
        server = parts.start(
            "backends", [sys.executable, "-m", "tests.bench.backends", str(port), f"{folder}/page", str(log)]
        )
        config = Path(folder) / "exporter.yml"
        config.write_text(yaml.safe_dump(_config(count, port, closed)))
        exporters = [_start(parts, config, n + 1, shards) for n in range(shards)]
        time.sleep(SETTLE_SECONDS)
        pids = [part.process.pid for part, _ in exporters if part.process]
        before, began = sum(map(cpu_seconds, pids)), time.monotonic()
        time.sleep(MEASURE_SECONDS)
        cores = (sum(map(cpu_seconds, pids)) - before) / (time.monotonic() - began)
        memory = sum(map(memory_bytes, pids))
        before = sum(map(cpu_seconds, pids))
        scrapes = [_scrape(address) for _, address in exporters]
        scrape_cpu = sum(map(cpu_seconds, pids)) - before - cores * sum(seconds for seconds, _ in scrapes)
        stopping = time.monotonic()
        for part, _ in exporters:
            part.stop()
        stopped = time.monotonic() - stopping
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(10)
        late = sorted(_lateness(json.loads(log.read_text())))
    return {
        "cores": cores,
        "memory MB": memory / 1e6,
        "lateness p50 s": statistics.median(late),
        "lateness p99 s": late[int(len(late) * 0.99)],
        "scrape s": max(seconds for seconds, _ in scrapes),
        "scrape MB": sum(size for _, size in scrapes) / 1e6,
        "scrape cores at 15 s": max(0.0, scrape_cpu) / 15,
        "stopping s": stopped / shards,
    }


def _config(count: int, port: int, closed: int) -> dict[str, object]:
    backends = []
    for number in range(count):
        chosen = closed if kind(number) == "refuses" else port
        backends.append({"name": f"b{number}", "url": f"http://127.0.0.1:{chosen}/{number}", "runtime": "vllm"})
    return {"poll_interval_seconds": INTERVAL_SECONDS, "poll_timeout_seconds": 5.0, "backends": backends}


def _start(parts: Parts, config: Path, shard: int, shards: int) -> tuple[Part, str]:
    address = f"127.0.0.1:{free_port()}"
    argv = [sys.executable, "-m", "exporter", "--config.file", str(config), "--web.listen-address", address]
    argv += ["--log.level", "error", "--shard", f"{shard}/{shards}"]
    return parts.start(f"exporter-{shard}", argv, f"http://{address}/-/ready", 60), f"http://{address}/metrics"


def _scrape(address: str) -> tuple[float, int]:
    with requests.Session() as session:
        session.trust_env = False
        began = time.monotonic()
        answer = session.get(address, timeout=30)
        return time.monotonic() - began, len(answer.content)


def _lateness(arrivals: dict[str, list[float]]) -> list[float]:
    """How much later than its schedule each poll of a healthy backend arrived, from its earliest one on."""
    late = []
    for number, times in arrivals.items():
        if kind(int(number)) != "works" or len(times) < 3:
            continue
        offsets = [at - n * INTERVAL_SECONDS for n, at in enumerate(times)]
        late += [offset - min(offsets) for offset in offsets[1:]]
    return late
