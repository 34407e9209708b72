"""One bounded GET of a backend: its page, its health, its models, and whether it says that it is paused."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from exporter.model import FailureReason
from stallwatch.http import Client, HttpFailed, Response

SMALL_BYTES = 1024 * 1024
NOT_THERE = (404, 405)
PAUSE_PATHS = (("/is_sleeping", "is_sleeping"), ("/is_paused", "is_paused"))
"""Development endpoints of vLLM; a pause shows nowhere else, and sleep not on every page."""

_REASONS: Mapping[str, FailureReason] = {
    "refused": FailureReason.REFUSED,
    "timeout": FailureReason.TIMEOUT,
    "reset": FailureReason.RESET,
    "too_large": FailureReason.TOO_LARGE,
    "redirect": FailureReason.HTTP_ERROR,
    "invalid": FailureReason.HTTP_ERROR,
}


class FetchFailed(Exception):
    """The page could not be read; `status` is the HTTP status if there was one."""

    def __init__(self, reason: FailureReason, detail: str, status: int | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail, self.status = reason, detail, status


class Fetcher:
    """Reads one backend. `paused` may run beside the others: a frozen engine can hold its answer for long."""

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, metrics_paths: Sequence[str] = ("/metrics",)
    ) -> None:
        self._url = url
        self._paths, self._path = list(metrics_paths), 0
        self._untried = len(self._paths) - 1
        self._client, self._pause_client = Client(headers), Client(headers)
        self._pause_paths: tuple[tuple[str, str], ...] = PAUSE_PATHS

    def page(self, timeout_seconds: float, max_bytes: int) -> bytes:
        """The body of the metrics page. Raises `FetchFailed`.

        Where the runtime names several paths, each is tried once in place of one that has no text page, and the
        last of them stays: some servers keep JSON at /metrics, which a second reading would drain.
        """
        deadline = time.monotonic() + timeout_seconds
        response = self._page(deadline, max_bytes)
        while self._untried and (response.status == 404 or response.body.lstrip()[:1] in (b"[", b"{")):
            self._untried, self._path = self._untried - 1, self._path + 1
            response = self._page(deadline, max_bytes)
        if response.status == 200:
            return response.body
        if response.status == 503 and b"loading" in response.body[:4096].lower():
            raise FetchFailed(FailureReason.LOADING, "the server says that it is loading", 503)
        raise FetchFailed(FailureReason.HTTP_ERROR, f"HTTP status {response.status}", response.status)

    def _page(self, deadline: float, max_bytes: int) -> Response:
        url, left = self._url + self._paths[self._path], deadline - time.monotonic()
        try:
            return self._client.request("GET", url, timeout_seconds=left, max_bytes=max_bytes)
        except HttpFailed as failed:
            raise FetchFailed(_REASONS[failed.reason], failed.detail, failed.status) from failed

    def look(self, path: str, timeout_seconds: float) -> Mapping[str, Any]:
        """The JSON object at a path that may be read without waking anything; empty if there is none."""
        response = self._get(path, timeout_seconds)
        return _object(response.body) if response is not None and response.status == 200 else {}

    def use_paths(self, metrics_paths: Sequence[str]) -> None:
        """Read the metrics at other paths from now on: the kind of server is known better."""
        if list(metrics_paths) != self._paths:
            self._paths, self._path, self._untried = list(metrics_paths), 0, len(metrics_paths) - 1

    def alive(self, timeout_seconds: float) -> bool:
        """Whether /health is answered with 200, or /v1/models where there is no /health."""
        status = self._status("/health", timeout_seconds)
        return status == 200 or (status is not None and status < 500 and self.models(timeout_seconds))

    def models(self, timeout_seconds: float) -> bool:
        """Whether /v1/models is answered; 401 and 403 are answers of a living server too."""
        return self._status("/v1/models", timeout_seconds) in (200, 401, 403)

    def paused(self, timeout_seconds: float) -> bool:
        """Whether the server says that it sleeps or is paused. A path it does not have is not asked for again.

        Any other failure may pass, such as 503 while it starts: a pause that is no longer asked for looks stuck.
        """
        for path, key in self._pause_paths:
            response = self._get(path, timeout_seconds, self._pause_client)
            if response is None:
                continue
            if response.status in NOT_THERE:
                self._pause_paths = tuple(pair for pair in self._pause_paths if pair[0] != path)
            elif response.status == 200 and _object(response.body).get(key) is True:
                return True
        return False

    def forget_pause(self) -> None:
        """Ask for every path again: another process may have other endpoints."""
        self._pause_paths = PAUSE_PATHS

    def close(self) -> None:
        """Close kept connections."""
        self._client.close()
        self._pause_client.close()

    def _status(self, path: str, timeout_seconds: float) -> int | None:
        response = self._get(path, timeout_seconds)
        return response.status if response else None

    def _get(self, path: str, timeout_seconds: float, client: Client | None = None) -> Response | None:
        try:
            return (client or self._client).request(
                "GET", self._url + path, timeout_seconds=timeout_seconds, max_bytes=SMALL_BYTES
            )
        except HttpFailed:
            return None


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
