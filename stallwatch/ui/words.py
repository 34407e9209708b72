"""Times and numbers as a person reads them. Pure; instants are Unix seconds, durations are seconds."""

from __future__ import annotations

import math
from datetime import UTC, datetime

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400


def duration(seconds: float | None) -> str:
    """`0.4 s`, `12 s`, `3 min`, `2 h 5 min`, `30 h`, `3 d 4 h`: no finer than it needs; an empty text for None."""
    if seconds is None:
        return ""
    if not math.isfinite(seconds) or seconds > 100 * _YEAR:
        return "longer than a century"
    if 0 < seconds < 1:
        return f"{seconds:.1f} s"
    whole = max(0, int(seconds))
    if whole < 2 * _MINUTE:
        return f"{whole} s"
    if whole < 2 * _HOUR:
        return f"{whole // _MINUTE} min"
    if whole < 2 * _DAY:
        return _two(whole // _HOUR, "h", whole % _HOUR // _MINUTE, "min")
    return _two(whole // _DAY, "d", whole % _DAY // _HOUR, "h")


def _two(large: int, unit: str, small: int, lesser: str) -> str:
    return f"{large:,} {unit} {small} {lesser}" if small and large < 10 else f"{large:,} {unit}"


def ago(seconds: float | None) -> str:
    """`3 min ago`; what is less than a second away in the past, or ahead by a clock that differs, is `now`."""
    if seconds is None:
        return ""
    return "now" if seconds < 1 else f"{duration(seconds)} ago"


def iso(wall: float | None) -> str:
    """`2026-12-01T04:23:11Z`, for a machine; an empty text where there is no such time."""
    moment = _moment(wall)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment else ""


def utc(wall: float | None) -> str:
    """`2026-12-01 04:23:11`, for a person; the page says once that it is UTC."""
    moment = _moment(wall)
    return moment.strftime("%Y-%m-%d %H:%M:%S") if moment else "unknown"


def _moment(wall: float | None) -> datetime | None:
    """A server may publish any number as a time of its own; one that no calendar has is none."""
    if wall is None:
        return None
    try:
        return datetime.fromtimestamp(wall, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def figure(value: float | None, digits: int = 1) -> str:
    """A number with thousands set apart and at most so many decimals; a counter keeps every digit it has."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1e15:
        return f"{value:.6g}"
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
