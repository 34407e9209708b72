"""Pages and polls for tests, the same for a recording of a real server and for the simulated one."""

import gzip
import http.client
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from demo.traffic import Traffic

RECORDINGS = Path(__file__).parent.parent / "recordings"
DEADLINE_SECONDS = 15.0
_EDGE_SECONDS = 2.1  # the edges of recorded phases are good to 1 to 3 s

Page = dict[str, float]


@dataclass(frozen=True)
class Poll:
    """One read of `/metrics` and `/health`; the page is empty if there was none."""

    t: float
    error: str | None
    health: int | None
    page: Page


def parse(body: str) -> Page:
    """Samples of a page: series as written, and value."""
    samples = (line.rpartition(" ") for line in body.splitlines() if line and not line.startswith("#"))
    return {series: float(value) for series, _, value in samples}


def value(page: Page, name: str, **labels: str) -> float:
    """Sum of the samples of `name` that have all of `labels`."""
    wanted = [f'{label}="{text}"' for label, text in labels.items()]
    found = [v for s, v in page.items() if s.partition("{")[0] == name and all(pair in s for pair in wanted)]
    assert found, f"{name} {labels} is not on the page"
    return sum(found)


def has(page: Page, name: str) -> bool:
    """Whether the page has any series of that name."""
    return any(series.partition("{")[0] == name for series in page)


def running(page: Page, **labels: str) -> float:
    """The gauge of running requests, 0 where it does not exist yet."""
    return value(page, "vllm:num_requests_running", **labels) if has(page, "vllm:num_requests_running") else 0.0


def waiting(page: Page, **labels: str) -> float:
    """The gauge of waiting requests, likewise."""
    return value(page, "vllm:num_requests_waiting", **labels) if has(page, "vllm:num_requests_waiting") else 0.0


def work(page: Page) -> tuple[float, float, float]:
    """Steps, output tokens, prompt tokens."""
    names = ("iteration_tokens_total_count", "generation_tokens_total", "prompt_tokens_total")
    steps, generated, prompts = (value(page, f"vllm:{name}") for name in names)
    return steps, generated, prompts


def moved(before: Page, after: Page, prefix: str = "vllm:", **labels: str) -> set[str]:
    """Names of the series whose value changed, or that came or went."""
    wanted = [f'{label}="{text}"' for label, text in labels.items()]
    series = [s for s in before.keys() | after.keys() if s.startswith(prefix) and all(pair in s for pair in wanted)]
    return {s.partition("{")[0] for s in series if before.get(s) != after.get(s)}


def shapes(page: Page) -> set[str]:
    """All series without values; of the two whose labels tell versions and sizes only the names of the labels."""
    named_only = ("python_info", "vllm:cache_config_info")
    return {re.sub(r'="[^"]*"', "", series) if series.startswith(named_only) else series for series in page}


def steps(polls: list[Poll]) -> Iterator[tuple[Page, Page]]:
    """Pairs of successive pages."""
    return pairwise(poll.page for poll in polls if poll.page)


@cache
def _lines(name: str) -> list[Poll]:
    with gzip.open(RECORDINGS / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return [Poll(at["t"], at["error"], at["health"], parse(at["body"] or "")) for at in lines]


def recorded(name: str, phase: str | None = None, *, whole: bool = False) -> list[Poll]:
    """Polls of a recording, or of one of its phases from where it is sure to have begun (`whole`: from its begin)."""
    if phase is None:
        return _lines(name)
    phases = json.loads((RECORDINGS / f"{name}.json").read_text(encoding="utf-8"))["phases"]
    (found,) = [one for one in phases if one["name"] == phase]
    begin = found["from_t"] + (0.0 if whole else _EDGE_SECONDS)
    return [poll for poll in _lines(name) if begin <= poll.t <= found["to_t"]]


class Live:
    """A server under test, over real HTTP, one connection a call."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(
        self, method: str, path: str, body: Any = None, *, timeout: float = 10.0, **headers: str
    ) -> tuple[int, str]:
        """Status and text; OSError if there was none, TimeoutError if it took too long."""
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {name.replace("_", "-"): text for name, text in headers.items()})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def post(self, path: str) -> None:
        """Order something; it must be granted."""
        status, text = self.call("POST", path)
        assert status == 200, text

    def ask(self, *, timeout: float = 10.0, prompt: str = "a b c", max_tokens: int = 1, **headers: str) -> int | None:
        """Status of one completion; None if no byte of an answer came in time."""
        try:
            body = {"prompt": prompt, "max_tokens": max_tokens}
            return self.call("POST", "/v1/completions", body, timeout=timeout, **headers)[0]
        except TimeoutError:
            return None

    def page(self) -> Page:
        """The page now."""
        status, text = self.call("GET", "/metrics")
        assert status == 200
        return parse(text)

    def poll(self) -> Poll:
        """One poll now."""
        now = time.monotonic()
        try:
            page = self.page()
        except ConnectionRefusedError:
            return Poll(now, "refused", None, {})
        except (OSError, http.client.HTTPException):
            return Poll(now, "reset", None, {})
        try:
            return Poll(now, None, self.call("GET", "/health")[0], page)
        except (OSError, http.client.HTTPException):
            return Poll(now, None, None, page)

    def polls(self, count: int, every: float = 0.05) -> list[Poll]:
        """`count` polls in a row."""
        found = [self.poll()]
        while len(found) < count:
            time.sleep(every)
            found.append(self.poll())
        return found

    def polls_until(self, condition: Callable[[Page], bool], every: float = 0.02) -> list[Poll]:
        """Polls until a page fulfils the condition; fails after a while."""
        deadline, found = time.monotonic() + DEADLINE_SECONDS, [self.poll()]
        while not (found[-1].page and condition(found[-1].page)):
            assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS} s; last {found[-1].error}"
            time.sleep(every)
            found.append(self.poll())
        return found

    def until(self, condition: Callable[[Page], bool]) -> Page:
        """The first page that fulfils the condition."""
        return self.polls_until(condition)[-1].page


def busy_page(live: Live) -> Page:
    """The first page on which 4 requests run and 2 wait, under `six` clients."""
    return live.until(lambda page: (running(page), waiting(page)) == (4, 2) and work(page)[1] > 0)


def six(live: Live, max_tokens: int = 10_000) -> Traffic:
    """Six clients on the four places of the batch."""
    return Traffic(live.url, clients=6, max_tokens=max_tokens)
