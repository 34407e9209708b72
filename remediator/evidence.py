"""Reads the exporters' JSON into a typed view of the fleet. What cannot be read is unavailable, never a guess."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from remediator.access import OPEN, Access
from remediator.model import View
from stallwatch.http import Client, HttpFailed

MAX_BYTES = 16 * 1024 * 1024


class Unavailable(Exception):
    """No exporter gives usable evidence; the text says why, in one line."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One look at all exporters: the views they gave (without ranks), and what was wrong."""

    views: Mapping[str, View]
    troubles: tuple[str, ...] = ()


class Exporters:
    """One or several exporters, each the owner of its backends."""

    def __init__(self, urls: Sequence[str], timeout_seconds: float = 5.0, access: Access = OPEN) -> None:
        self._urls, self._timeout, self._access = tuple(urls), timeout_seconds, access
        self._owners: Mapping[str, frozenset[str]] = {}

    def fleet(self) -> Sight:
        """The list of every exporter. A backend that two exporters claim has no view: one of them is wrong."""
        views: dict[str, View] = {}
        owners: dict[str, set[str]] = {}
        troubles: list[str] = []
        for url in self._urls:
            try:
                listed = self._get(f"{url}/api/v1/backends").get("backends")
                if not isinstance(listed, list):
                    raise Unavailable(f"{url}: the answer has no list of backends")
            except Unavailable as error:
                troubles.append(str(error))
                continue
            for entry in listed:
                view = parse_view(entry)
                if view is not None:
                    owners.setdefault(view.name, set()).add(url)
                    views[view.name] = view
        for name, claimed in owners.items():
            if len(claimed) > 1:
                troubles.append(f"{name} is claimed by {' and '.join(sorted(claimed))}")
                del views[name]
        self._owners = {name: frozenset(claimed) for name, claimed in owners.items()}
        return Sight(views, tuple(troubles))

    def read(self, name: str) -> View:
        """One backend with its ranks, read now. Raises `Unavailable`."""
        known = self._owners.get(name, frozenset())
        found: list[View] = []
        troubles: list[str] = []
        for url in self._urls:
            if len(known) == 1 and url not in known:
                continue
            try:
                document = self._get(f"{url}/api/v1/backends/{quote(name, safe='')}")
            except Unavailable as error:
                troubles.append(str(error))
                continue
            view = parse_view(document)
            if view is None or view.name != name:
                raise Unavailable(f"{url}: the answer is no evidence about {name}")
            found.append(view)
        if len(found) > 1:
            raise Unavailable(f"{name} is claimed by {len(found)} exporters")
        if not found:
            raise Unavailable("; ".join(troubles) or "no exporter is configured")
        return found[0]

    def _get(self, url: str) -> Mapping[str, object]:
        client = Client(
            self._access.headers, ca_file=self._access.ca_file
        )  # one for each read: several threads read, seldom
        try:
            response = client.request("GET", url, timeout_seconds=self._timeout, max_bytes=MAX_BYTES)
        except HttpFailed as error:
            raise Unavailable(f"{url}: {error.detail}") from error
        finally:
            client.close()
        if response.status == 404:
            raise Unavailable(f"{url}: not watched there")
        if response.status != 200:
            raise Unavailable(f"{url}: status {response.status}")
        try:
            document = json.loads(response.body)
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"{url}: the answer is not JSON") from error
        if not isinstance(document, dict):
            raise Unavailable(f"{url}: the answer is no JSON object")
        return document


def parse_view(entry: object) -> View | None:
    """One backend as the exporter's API tells it; None if it does not even have a name and a verdict."""
    if not isinstance(entry, dict):
        return None
    name, verdict = entry.get("name"), entry.get("verdict")
    if not isinstance(name, str) or not isinstance(verdict, str):
        return None
    limits, life = _mapping(entry.get("limits")), _mapping(entry.get("incarnation"))
    age = _number(entry.get("age_seconds"))
    return View(
        name=name,
        group=_text(entry.get("group")),
        verdict=verdict,
        reason=_text(entry.get("reason")),
        sentence=_text(entry.get("sentence")),
        # A loop that finishes no poll any more has nothing fresh to say.
        age_seconds=None if entry.get("loop_alive") is False else age,
        last_progress_age_seconds=_number(entry.get("last_progress_age_seconds")),
        last_answer_age_seconds=_number(entry.get("last_answer_age_seconds")),
        ask_when=_text(entry.get("ask_when")),
        poll_interval_seconds=_number(limits.get("poll_interval_seconds")),
        startup_grace_seconds=_number(limits.get("startup_grace_seconds")),
        start_time=_number(life.get("start_time")),
        wholly_stuck=_wholly_stuck(entry.get("ranks")),
        document=entry,
    )


def _wholly_stuck(ranks: object) -> bool:
    """Every rank is stuck. Without any rank to be seen, a part that still works must be assumed."""
    if not isinstance(ranks, list) or not ranks:
        return False
    return all(isinstance(rank, dict) and rank.get("verdict") == "stuck" for rank in ranks)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    """A finite number that is not negative, or None: doubt must not look like a fresh observation."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)
