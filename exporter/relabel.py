"""Relabelling as Prometheus does it: a list of rules over a set of labels. Pure.

Expressions are anchored at both ends. They are Python's where Prometheus has RE2: what RE2 does not have is refused,
and so is a repeat inside a repeat, which RE2 can bear and Python's matcher cannot: a label's value could hold the
whole program for ever.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from stallwatch.settings import Strict

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_TARGET = re.compile(r"(?:(?:[a-zA-Z_]|\$(?:\{\w+\}|\w+))+\w*)+", re.ASCII)
_REFERENCE = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)\})", re.ASCII)
_NOT_IN_RE2 = frozenset(
    {"ASSERT", "ASSERT_NOT", "GROUPREF", "GROUPREF_EXISTS", "GROUPREF_IGNORE", "ATOMIC_GROUP", "POSSESSIVE_REPEAT"}
)
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT"})
MANY = 20
"""A repeat of at least so many counts as one without end."""
DEFAULT_REGEX, DEFAULT_REPLACEMENT, DEFAULT_SEPARATOR = "(.*)", "$1", ";"


class Action(StrEnum):
    """What a rule does."""

    REPLACE = "replace"
    KEEP = "keep"
    DROP = "drop"
    KEEPEQUAL = "keepequal"
    DROPEQUAL = "dropequal"
    HASHMOD = "hashmod"
    LABELMAP = "labelmap"
    LABELDROP = "labeldrop"
    LABELKEEP = "labelkeep"
    LOWERCASE = "lowercase"
    UPPERCASE = "uppercase"


_WRITES = {Action.REPLACE, Action.HASHMOD, Action.LOWERCASE, Action.UPPERCASE}
_COMPARES = {Action.KEEPEQUAL, Action.DROPEQUAL}
_BY_NAME = {Action.LABELDROP, Action.LABELKEEP}


def _action(text: Any) -> Any:
    return text.lower() if isinstance(text, str) else text


def _label_name(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise ValueError(f"{text!r} is no name of a label")
    return text


def _expression(text: str) -> str:
    compiled(text)
    return text


LabelName = Annotated[str, AfterValidator(_label_name)]


class RelabelSettings(Strict):
    """One rule, in Prometheus's words and with its defaults."""

    source_labels: list[LabelName] = []
    separator: str = DEFAULT_SEPARATOR
    target_label: str = ""
    regex: Annotated[str, AfterValidator(_expression)] = DEFAULT_REGEX
    modulus: Annotated[int, Field(ge=0, lt=2**64)] = 0
    replacement: str = DEFAULT_REPLACEMENT
    action: Annotated[Action, Field(strict=False)] = Action.REPLACE

    @model_validator(mode="before")
    @classmethod
    def _any_case(cls, given: Any) -> Any:
        return {**given, "action": _action(given["action"])} if isinstance(given, dict) and "action" in given else given

    @model_validator(mode="after")
    def _belongs_together(self) -> RelabelSettings:
        action = self.action
        if action is Action.HASHMOD and not self.modulus:
            raise ValueError("hashmod needs a modulus above zero")
        if action in _WRITES | _COMPARES and not self.target_label:
            raise ValueError(f"{action} needs a target_label")
        if action is Action.REPLACE and not _TARGET.fullmatch(self.target_label):
            raise ValueError(f"{self.target_label!r} is no target_label")
        if action in (_WRITES | _COMPARES) - {Action.REPLACE} and not _LABEL.fullmatch(self.target_label):
            raise ValueError(f"{self.target_label!r} is no target_label for {action}")
        if action is Action.LABELMAP and not _TARGET.fullmatch(self.replacement):
            raise ValueError(f"{self.replacement!r} is no replacement for labelmap")
        foreign = _foreign_keys(self)
        if foreign:
            raise ValueError(f"{action} takes no {' and no '.join(foreign)}")
        return self


def _foreign_keys(rule: RelabelSettings) -> list[str]:
    """The keys that mean nothing to this action, where Prometheus says so too."""
    changed = {
        "source_labels": rule.source_labels != [],
        "target_label": rule.target_label != "",
        "modulus": rule.modulus != 0,
        "separator": rule.separator != DEFAULT_SEPARATOR,
        "replacement": rule.replacement != DEFAULT_REPLACEMENT,
        "regex": rule.regex != DEFAULT_REGEX,
    }
    if rule.action in _BY_NAME:
        keys = ["source_labels", "target_label", "modulus", "separator", "replacement"]
    elif rule.action in _COMPARES:
        keys = ["regex", "modulus", "separator", "replacement"]
    elif rule.action in (Action.LOWERCASE, Action.UPPERCASE):
        keys = ["replacement"]
    else:
        keys = []
    return [key for key in keys if changed[key]]


@lru_cache(maxsize=4096)
def compiled(text: str) -> re.Pattern[str]:
    """The expression, to be used with `fullmatch`. Raises `ValueError` with a reason in words."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what Python reads in another way than RE2, such as [[:alpha:]]
            pattern = re.compile(text, re.ASCII)
            tree = importlib.import_module("re._parser").parse(text, re.ASCII)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise ValueError(f"is no regular expression that can be used here: {error}") from error
    _check(tree, repeated=False)
    return pattern


def _check(tree: Any, *, repeated: bool) -> None:
    """Walk the parsed expression for what must not be in it."""
    for operation, arguments in tree:
        name = str(operation)
        if name in _NOT_IN_RE2:
            raise ValueError("looks around, refers back or does not give back, which Prometheus's expressions cannot")
        endless = name in _REPEATS and arguments[1] >= MANY
        if endless and repeated:
            raise ValueError("a repeat stands inside a repeat, which can take for ever; write it without")
        for inner in _inside(arguments):
            _check(inner, repeated=repeated or endless)


def _inside(arguments: Any) -> Iterable[Any]:
    """The parsed expressions among the arguments of an operation, at whatever depth."""
    if type(arguments).__name__ == "SubPattern":
        yield arguments
    elif isinstance(arguments, tuple | list):
        for part in arguments:
            yield from _inside(part)


@dataclass(frozen=True)
class Rule:
    """A rule that is ready to be applied."""

    settings: RelabelSettings

    def apply(self, labels: dict[str, str]) -> bool:
        """Change the labels; return whether the target is kept."""
        rule, pattern = self.settings, compiled(self.settings.regex)
        value = rule.separator.join(labels.get(name, "") for name in rule.source_labels)
        match rule.action:
            case Action.KEEP:
                return pattern.fullmatch(value) is not None
            case Action.DROP:
                return pattern.fullmatch(value) is None
            case Action.KEEPEQUAL:
                return labels.get(rule.target_label, "") == value
            case Action.DROPEQUAL:
                return labels.get(rule.target_label, "") != value
            case Action.REPLACE:
                _replace(rule, pattern.fullmatch(value), labels)
            case Action.LOWERCASE:
                _set(labels, rule.target_label, value.lower())
            case Action.UPPERCASE:
                _set(labels, rule.target_label, value.upper())
            case Action.HASHMOD:
                digest = hashlib.md5(value.encode(), usedforsecurity=False).digest()
                labels[rule.target_label] = str(int.from_bytes(digest[8:], "big") % rule.modulus)
            case Action.LABELMAP:
                for name, kept in list(labels.items()):
                    if found := pattern.fullmatch(name):
                        _set(labels, expand(rule.replacement, found), kept)
            case Action.LABELDROP:
                _only(labels, [name for name in labels if not pattern.fullmatch(name)])
            case Action.LABELKEEP:
                _only(labels, [name for name in labels if pattern.fullmatch(name)])
        return True


def relabel(labels: Mapping[str, str], rules: Sequence[Rule]) -> dict[str, str] | None:
    """The labels after all rules, or None when one of them dropped the target. Empty labels are no labels."""
    changed = {name: value for name, value in labels.items() if value}
    for rule in rules:
        if not rule.apply(changed):
            return None
    return changed


def expand(template: str, found: re.Match[str]) -> str:
    """`$1`, `${1}`, `$name` and `${name}` of a match; `$$` is a dollar; what the expression has not is empty."""

    def group(reference: re.Match[str]) -> str:
        dollar, bare, braced = reference.groups()
        if dollar:
            return "$"
        name = bare or braced
        numbered = name.isdigit() and (name == "0" or name[0] != "0")
        try:
            return found.group(int(name) if numbered else name) or ""
        except (IndexError, OverflowError):
            return ""

    return _REFERENCE.sub(group, template)


def _replace(rule: RelabelSettings, found: re.Match[str] | None, labels: dict[str, str]) -> None:
    if found is None:
        return
    target = expand(rule.target_label, found)
    if _LABEL.fullmatch(target):
        _set(labels, target, expand(rule.replacement, found))


def _set(labels: dict[str, str], name: str, value: str) -> None:
    if value:
        labels[name] = value
    else:
        labels.pop(name, None)


def _only(labels: dict[str, str], names: Iterable[str]) -> None:
    kept = {name: labels[name] for name in names}
    labels.clear()
    labels.update(kept)
