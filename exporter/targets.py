"""Target lists of file_sd and http_sd: text to the labels of each target, or a typed failure. Pure.

The formats are Prometheus's own: a list of `{targets: [...], labels: {...}}` as JSON or YAML.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

MAX_BYTES = 8 * 1024 * 1024
MOST_TARGETS = 20_000
"""More in one list are no list of model servers."""
MAX_VALUE = 1024
"""Characters in the value of a label: what is longer is no name, address or word."""
MAX_DEPTH = 8
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class TargetsError(Exception):
    """The list cannot be used; the text is one line and holds nothing of the list but short names."""


def parse_json(data: bytes) -> list[dict[str, str]]:
    """The labels of each target. Raises `TargetsError`."""
    _check_size(data)
    try:
        document = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise TargetsError(f"is not JSON: {_line(error)}") from error
    return _targets(document)


def parse_yaml(data: bytes) -> list[dict[str, str]]:
    """The same of YAML; numbers and truth values are taken as they are written. Raises `TargetsError`."""
    _check_size(data)
    try:
        events = list(_events(data.decode("utf-8-sig")))
        document = _value(iter(events)) if events else []
    except UnicodeDecodeError as error:
        raise TargetsError("is not UTF-8 text") from error
    except (yaml.YAMLError, ValueError) as error:
        raise TargetsError(f"is not YAML: {_line(error)}") from error
    return _targets(document)


def _check_size(data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise TargetsError(f"is larger than {MAX_BYTES} bytes")


def _line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    text = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {text}" if mark else str(text)[:200]


def _events(text: str) -> Any:
    """The events of the one document, without its frame. A list of targets needs neither depth nor aliases."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise TargetsError("aliases are not allowed")
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise TargetsError("holds more than one document")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise TargetsError(f"is nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent | yaml.CollectionEndEvent):
            yield event


def _value(events: Any) -> Any:
    return _build(next(events), events)


def _build(event: Any, events: Any) -> Any:
    if isinstance(event, yaml.ScalarEvent):
        empty = event.style is None and event.value in ("", "~", "null", "Null", "NULL")
        return None if empty else event.value
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_build(event, events))
        return items
    mapping: dict[str, Any] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key = _build(event, events)
        if not isinstance(key, str):
            raise TargetsError("a key is not text")
        if key in mapping:
            raise TargetsError(f"the key {_short(key)} stands twice")
        mapping[key] = _value(events)
    return mapping


def _targets(document: Any) -> list[dict[str, str]]:
    if document is None:
        return []
    if not isinstance(document, list):
        raise TargetsError("is no list of target groups")
    found: list[dict[str, str]] = []
    for number, group in enumerate(document):
        if not isinstance(group, dict):
            raise TargetsError(f"[{number}]: is no mapping of targets and labels")
        for key in group:
            if key not in ("targets", "labels"):
                raise TargetsError(f"[{number}]: {_short(key)} is neither targets nor labels")
        labels = _labels(group.get("labels"), number)
        addresses = group.get("targets") or []
        if not isinstance(addresses, list):
            raise TargetsError(f"[{number}].targets: is no list")
        if len(found) + len(addresses) > MOST_TARGETS:
            raise TargetsError(f"holds more than {MOST_TARGETS} targets")
        found += [{**labels, "__address__": _text(address, f"[{number}].targets")} for address in addresses]
    return found


def _labels(given: Any, number: int) -> dict[str, str]:
    where = f"[{number}].labels"
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise TargetsError(f"{where}: is no mapping")
    for name in given:
        if not _LABEL.fullmatch(name):
            raise TargetsError(f"{where}: {_short(name)} is no name of a label")
    return {name: _text(value, f"{where}.{name[:40]}") for name, value in given.items()}


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TargetsError(f"{where}: a value is not text")
    if len(value) > MAX_VALUE:
        raise TargetsError(f"{where}: a value is longer than {MAX_VALUE} characters")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise TargetsError(f"{where}: a value is not Unicode text")
    return value


def _short(text: Any) -> str:
    return ascii(str(text)[:40])
