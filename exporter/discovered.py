"""A discovered target's labels, after relabelling, become the settings of a backend. Pure.

Labels without underscores are what the backend is called; labels of the form `__…__` set something. Nothing secret,
and no file name, is ever taken from them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from exporter.config import AskSettings, BackendSettings, LimitSettings
from exporter.model import LIMIT_KEYS

METRICS = "/metrics"
LIMIT_PREFIX = "__limit_"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_SAYS = {"true": True, "false": False}


class Unusable(Exception):
    """The labels make no backend; the text is one line."""


def settings_of(labels: Mapping[str, str], ask: AskSettings, limits: LimitSettings) -> BackendSettings:
    """The backend that the labels describe; `ask` and `limits` are the defaults of its list. Raises `Unusable`."""
    address = labels.get("__address__", "")
    if not address:
        raise Unusable("__address__ is empty")
    given: dict[str, Any] = {
        "name": labels.get("backend") or _UNSAFE.sub("_", address),
        "url": f"{labels.get('__scheme__') or 'http'}://{address}{_prefix(labels.get('__metrics_path__') or METRICS)}",
        "ask": ask.model_copy(update=_asked(labels)),
        "limits": limits.model_copy(update=_limits(labels)),
        "proxy": _truth(labels, "__proxy__"),
        "maintenance": _truth(labels, "__maintenance__"),
    }
    for key in ("runtime", "group"):
        if labels.get(key):
            given[key] = labels[key]
    if labels.get("__sleep_idle_seconds__"):
        given["sleep_idle_seconds"] = _seconds("__sleep_idle_seconds__", labels["__sleep_idle_seconds__"])
    try:
        return BackendSettings.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        label = {"name": "backend", "url": "__address__"}.get(str(first["loc"][0]), str(first["loc"][0]))
        raise Unusable(f"{label}: {_why(label, str(first['msg']))}") from error


def _why(label: str, message: str) -> str:
    if label in ("backend", "group"):
        return "may only hold letters, digits, dot, dash and underscore (1 to 100 of them)"
    return message.removeprefix("Value error, ")


def _prefix(path: str) -> str:
    """What stands in front of /metrics; the address of the backend ends with it."""
    if not path.startswith("/") or not path.endswith(METRICS):
        raise Unusable("__metrics_path__: must begin with / and end with /metrics")
    return path.removesuffix(METRICS)


def _asked(labels: Mapping[str, str]) -> dict[str, Any]:
    given = {key: labels[f"__ask_{key}__"] for key in ("when", "model", "path") if labels.get(f"__ask_{key}__")}
    try:
        return dict(AskSettings.model_validate(given).model_dump(exclude_unset=True))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise Unusable(f"__ask_{first['loc'][0]}__: {first['msg'].replace('Input should', 'must')}") from error


def _limits(labels: Mapping[str, str]) -> dict[str, float]:
    found = {}
    for label, text in labels.items():
        if label.startswith(LIMIT_PREFIX):
            key = label.removeprefix(LIMIT_PREFIX).removesuffix("__")
            if key not in LimitSettings.model_fields or key not in LIMIT_KEYS or not label.endswith("__"):
                raise Unusable(f"{label[:80]} names no limit")
            found[key] = _seconds(label, text)
    return found


def _seconds(label: str, text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", text) or float(text) <= 0:
        raise Unusable(f"{label}: must be a number of seconds above zero")
    return float(text)


def _truth(labels: Mapping[str, str], label: str) -> bool:
    text = labels.get(label) or "false"
    if text not in _SAYS:
        raise Unusable(f"{label}: must be true or false")
    return _SAYS[text]
