"""`record URL FILE`: what a server's pages say over time, in the format that `replay` reads."""

from __future__ import annotations

import gzip
import json
import threading
import time
from pathlib import Path

from stallwatch.http import Client, HttpFailed
from stallwatch.settings import SettingsError, check_url

TIMEOUT_SECONDS = 3.0
MAX_PAGE_BYTES = 8 * 1024 * 1024
_WORDS = {"refused": "refused", "timeout": "timeout", "reset": "reset"}


def run(url: str, path: Path, every_seconds: float, duration_seconds: float) -> int:
    """Poll /metrics and /health, one line a poll; no request is ever sent to the engine."""
    base = check_url(url)
    client = Client()
    opener = gzip.open if path.suffix == ".gz" else open
    start, pause, number = time.monotonic(), threading.Event(), 0
    try:
        with opener(path, "wt", encoding="utf-8") as file:
            while (due := number * every_seconds) < duration_seconds:
                pause.wait(max(0.0, start + due - time.monotonic()))
                file.write(json.dumps(_line(client, base, start)) + "\n")
                file.flush()
                number = max(number + 1, int((time.monotonic() - start) / every_seconds))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written: {error.strerror}") from error
    except KeyboardInterrupt:
        pass  # what was recorded is kept
    finally:
        client.close()
    print(f"{path}: {number} polls")
    return 0


def _line(client: Client, base: str, start: float) -> dict[str, object]:
    began = time.monotonic()
    line: dict[str, object] = {"t": round(began - start, 3), "wall": round(time.time(), 3), "ask": None}
    status, error, body = _get(client, base + "/metrics")
    line.update(status=status, error=error, seconds=round(time.monotonic() - began, 4), body=body)
    line["health"] = _get(client, base + "/health")[0]
    return line


def _get(client: Client, url: str) -> tuple[int | None, str | None, str]:
    try:
        response = client.request("GET", url, timeout_seconds=TIMEOUT_SECONDS, max_bytes=MAX_PAGE_BYTES)
    except HttpFailed as failed:
        return None, _WORDS.get(failed.reason, "other"), ""
    return response.status, None, response.body.decode("utf-8", "replace")
