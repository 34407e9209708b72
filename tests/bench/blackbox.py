"""One poll of the whole exporter beside one probe of blackbox_exporter, of the same page, in one run."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import yaml

from demo.parts import Part, Parts, find_program, free_port, get
from tests.bench.scale import cpu_seconds

POLLS_PER_SECOND, SECONDS = 20.0, 15.0


def beside_blackbox(page: bytes) -> dict[str, float]:
    """CPU seconds per poll and per probe; each of both in a process of its own, from a server of its own."""
    with Parts() as parts, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "page").write_bytes(page)
        port = free_port()
        argv = [sys.executable, "-m", "tests.bench.backends", str(port), str(folder / "page"), str(folder / "log")]
        parts.start("backends", argv, f"http://127.0.0.1:{port}/1/metrics")
        ours = _exporter(parts, folder, port)
        theirs, probe = _blackbox(parts, folder, port)
        return {"one poll, whole exporter": _per_poll(ours), "one probe, blackbox_exporter": _per_probe(theirs, probe)}


def _exporter(parts: Parts, folder: Path, port: int) -> Part:
    config = folder / "exporter.yml"
    backend = {"name": "a", "url": f"http://127.0.0.1:{port}/1", "runtime": "vllm"}
    config.write_text(yaml.safe_dump({"poll_interval_seconds": 1 / POLLS_PER_SECOND, "backends": [backend]}))
    address = f"127.0.0.1:{free_port()}"
    argv = [sys.executable, "-m", "exporter", "--config.file", str(config), "--web.listen-address", address]
    return parts.start("exporter", argv, f"http://{address}/-/ready")


def _blackbox(parts: Parts, folder: Path, port: int) -> tuple[Part, str]:
    # The nearest that it can do: fetch the page and look for one series with a regular expression.
    wanted = {"fail_if_body_not_matches_regexp": ["vllm:num_requests_running"]}
    config = folder / "blackbox.yml"
    config.write_text(yaml.safe_dump({"modules": {"page": {"prober": "http", "http": wanted}}}))
    address = f"127.0.0.1:{free_port()}"
    argv = [find_program("blackbox_exporter"), f"--config.file={config}", f"--web.listen-address={address}"]
    part = parts.start("blackbox", argv, f"http://{address}/-/healthy")
    return part, f"http://{address}/probe?module=page&target=http://127.0.0.1:{port}/1/metrics"


def _per_poll(part: Part) -> float:
    assert part.process is not None
    time.sleep(2)
    before = cpu_seconds(part.process.pid)
    time.sleep(SECONDS)
    return (cpu_seconds(part.process.pid) - before) / (SECONDS * POLLS_PER_SECOND)


def _per_probe(part: Part, probe: str) -> float:
    assert part.process is not None
    count = int(SECONDS * POLLS_PER_SECOND)
    assert "probe_success 1" in get(probe).text
    before = cpu_seconds(part.process.pid)
    for _ in range(count):
        get(probe)
    return (cpu_seconds(part.process.pid) - before) / count
