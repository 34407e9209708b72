"""One short request to a backend's engine, closed at its deadline."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from exporter.model import AskResult, RankKey
from exporter.runtimes import HowToAsk
from stallwatch.http import Client, HttpFailed

MAX_ANSWER_BYTES = 1024 * 1024


class Asker:
    """Asks one backend; each question uses a connection of its own."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._headers = dict(headers or {})

    def ask(
        self, how: HowToAsk, rank: RankKey, deadline_seconds: float, named: bool, model: str | None
    ) -> tuple[AskResult, str]:
        """Send one request for one token; return what came of it and a few words.

        `named` puts the rank's label into the runtime's header. Unanswered means: connected, written in full,
        and not one byte back by the deadline. A status decides as soon as it is there; the body is still awaited
        until the deadline, because hanging up earlier could make a gateway abort what was asked.
        """
        headers = {**self._headers, "Connection": "close"}
        if named and how.rank_header:
            headers[how.rank_header] = rank[1]
        client = Client(headers)
        try:
            response = client.request(
                "POST",
                self._url + how.path,
                timeout_seconds=deadline_seconds,
                max_bytes=MAX_ANSWER_BYTES,
                json=_body(how.path, model),
            )
        except HttpFailed as failed:
            return _without_whole_answer(failed, how.path)
        finally:
            client.close()
        return _by_status(response.status, how.path)


def _by_status(status: int, path: str) -> tuple[AskResult, str]:
    if status >= 500:
        return AskResult.SERVER_ERROR, f"HTTP status {status}"
    if status >= 300:
        return AskResult.REJECTED, f"HTTP status {status} from {path}"
    return AskResult.ANSWERED, f"HTTP status {status}"


def _without_whole_answer(failed: HttpFailed, path: str) -> tuple[AskResult, str]:
    if failed.status is not None:  # the status is the answer, however its body ended
        result, detail = _by_status(failed.status, path)
        return result, f"{detail}, then: {failed.detail}"
    if failed.reason == "timeout" and failed.connected and failed.written and not failed.received:
        return AskResult.UNANSWERED, "not one byte by the deadline"
    if failed.received:  # no silence; whether the engine did it, the page will tell
        return AskResult.ANSWERED, f"the answer began, then: {failed.detail}"
    return AskResult.FAILED, failed.detail


def _body(path: str, model: str | None) -> dict[str, Any]:
    # A nonce, so that no cache in front of the engine can answer for it.
    prompt = f"{secrets.token_hex(4)} ping"
    body: dict[str, Any] = {"model": model} if model else {}
    if path == "/v1/embeddings":
        return {**body, "input": prompt}
    body |= {"max_tokens": 1, "temperature": 0, "stream": False}
    if path == "/v1/chat/completions":
        return {**body, "messages": [{"role": "user", "content": prompt}]}
    return {**body, "prompt": prompt}
