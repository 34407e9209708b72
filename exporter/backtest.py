"""`backtest`: the stall clocks over history that Prometheus holds, before anybody arms the remediator.

History holds no asks, so the result is an upper bound: what would have been suspected, not what would have been stuck.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

from exporter.backtest_report import LookedAt, to_json, to_markdown
from exporter.config import backend
from exporter.page import PageParser
from exporter.promhistory import DEFAULT_TIMEOUT_SECONDS, History, NoSeriesError, quoted
from exporter.runtimes import Runtime
from exporter.stands import Tally, Tracker
from stallwatch.settings import SettingsError, check_url, read_secret
from stallwatch.ui.words import utc

DEFAULT_LIMITS = (60.0, 120.0, 180.0, 330.0, 600.0)
BAR_WIDTH = 30
LATEST = 253_402_300_800.0
"""The end of the year 9999, where calendars end."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}
_PART = re.compile(r"([0-9]{1,12})([smhdwy])")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to look at: servers by `backend` (a name) or `selector` (matchers), from `start` to `end` (Unix seconds)."""

    prometheus: str
    runtime: Runtime
    start: float
    end: float
    backend: str | None = None
    selector: str | None = None
    limits: Sequence[float] = DEFAULT_LIMITS
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    token_file: str | None = None


def run(wanted: Wanted, *, as_json: bool = False, progress: TextIO | None = None) -> str:
    """The report: a table, or JSON. `progress` gets a bar. Raises `SettingsError`: one line."""
    looked_at, tally = collect(wanted, _Bar(progress, wanted.start, wanted.end) if progress else lambda _: None)
    if as_json:
        return json.dumps(to_json(looked_at, tally), allow_nan=False)
    return "\n".join(to_markdown(looked_at, tally))


def collect(wanted: Wanted, told: Callable[[float], None] = lambda _: None) -> tuple[LookedAt, Tally]:
    """Run the clocks over the range; `told` hears how far it came (Unix seconds). Raises `SettingsError`."""
    runtime = wanted.runtime
    if not runtime.measured:
        raise SettingsError(f"--runtime {runtime.name}: a server without metrics leaves no history")
    if not 0 <= wanted.start < wanted.end:
        raise SettingsError("--until must be later than the start of the range, and both after 1970")
    try:
        url = check_url(wanted.prometheus)
    except SettingsError as error:
        raise SettingsError(f"--prometheus {str(error).replace('api_key_file', '--bearer-token-file')}") from error
    token = read_secret(wanted.token_file) if wanted.token_file else None
    limits = backend("backtest", url, runtime, {}).limits
    tally, parser = Tally(sorted(set(wanted.limits))), PageParser(runtime)
    trackers: dict[str, Tracker] = {}
    history = History(url, runtime, timeout_seconds=wanted.timeout_seconds, token=token)
    try:
        _find(history, wanted)
        for chunk in history.chunks(wanted.start, wanted.end):
            for target, scrapes in chunk.scrapes.items():
                if target not in trackers:
                    trackers[target] = Tracker(target, parser, limits, tally)
                trackers[target].take((scrape.wall, scrape.body) for scrape in scrapes)
            told(chunk.end)
    finally:
        history.close()
    for tracker in trackers.values():
        tracker.finish()
    default = limits.stuck_after_seconds
    return LookedAt(runtime.name, default, history.selector, wanted.start, wanted.end, history.warnings), tally


def _find(history: History, wanted: Wanted) -> None:
    """Find the series: a name is a label `backend`, or else an `instance`."""
    if wanted.selector is not None:
        given = wanted.selector.strip()
        history.find(given[1:-1] if given.startswith("{") and given.endswith("}") else given, wanted.start, wanted.end)
        return
    name = quoted(wanted.backend or "")
    try:
        history.find(f"backend={name}", wanted.start, wanted.end)
    except NoSeriesError:
        try:
            history.find(f"instance={name}", wanted.start, wanted.end)
        except NoSeriesError as error:
            raise NoSeriesError(f"{error} nor {{backend={name}}}; see --selector") from error


def seconds_of(text: str) -> float:
    """`90`, `30d`, `1h30m` as seconds. Raises `ValueError`."""
    if _DURATION.fullmatch(text):
        value = float(sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(text)))
    else:
        value = _number(text)
    if not 0 < value < LATEST:
        raise ValueError(f"{text!r} cannot be understood")
    return value


def instant_of(text: str) -> float:
    """Unix seconds, or a time as in 2026-12-01T04:00:00Z (UTC unless it says otherwise). Raises `ValueError`."""
    try:
        moment = datetime.fromisoformat(text)
        value = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        value = _number(text)
    if not 0 <= value < LATEST:
        raise ValueError(f"{text!r} cannot be understood")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _limits_of(text: str) -> list[float]:
    return [seconds_of(part) for part in text.split(",")]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the sub-command."""
    parser.add_argument("--prometheus", required=True, metavar="URL", help="a Prometheus, or what speaks its API")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--backend", metavar="NAME", help="servers with this label `backend`, or else this `instance`")
    which.add_argument("--selector", metavar="MATCHERS", help="""any others: 'job="vllm",instance="10.0.0.5:8000"'""")
    parser.add_argument("--since", type=_checked(seconds_of), default="30d", metavar="DURATION", help="30d, 12h, 1h30m")
    parser.add_argument("--until", type=_checked(instant_of), metavar="TIME", help="2026-12-01T04:00:00Z (now)")
    parser.add_argument(
        "--stuck-after",
        type=_checked(_limits_of),
        default=list(DEFAULT_LIMITS),
        metavar="SECONDS,...",
        help="limits to compare",
    )
    parser.add_argument("--timeout", type=_checked(seconds_of), default=DEFAULT_TIMEOUT_SECONDS, help="of one query")
    parser.add_argument("--bearer-token-file", metavar="FILE", help="file with the token that Prometheus wants")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the table")


def from_arguments(arguments: argparse.Namespace, runtime: Runtime) -> str:
    """The report that the flags ask for. Raises `SettingsError`."""
    end = time.time() if arguments.until is None else arguments.until
    wanted = Wanted(
        arguments.prometheus,
        runtime,
        end - arguments.since,
        end,
        backend=arguments.backend,
        selector=arguments.selector,
        limits=arguments.stuck_after,
        timeout_seconds=arguments.timeout,
        token_file=arguments.bearer_token_file,
    )
    return run(wanted, as_json=arguments.json, progress=sys.stderr if sys.stderr.isatty() else None)


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def checked(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


class _Bar:
    """How far it came, on one line that is written again."""

    def __init__(self, out: TextIO, start: float, end: float) -> None:
        self._out, self._start, self._end = out, start, end

    def __call__(self, instant: float) -> None:
        part = (instant - self._start) / (self._end - self._start)
        done = int(part * BAR_WIDTH)
        ending = "\r\033[K" if instant >= self._end else ""
        self._out.write(f"\r[{'#' * done}{'.' * (BAR_WIDTH - done)}] {part:4.0%} {utc(instant)}{ending}")
        self._out.flush()
