"""Writes docs/configuration.md: every key of both configuration files, from the settings' own types.

`python tools/config_reference.py`; with `--check` it only says whether the file is what would be written.
Exit codes: 0 as it should be; 1 the file differs.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Sequence
from enum import EnumType
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

from exporter.config import ExporterSettings
from remediator.config import RemediatorSettings
from stallwatch.settings import Name, Url

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docs" / "configuration.md"
TOPS: dict[str, type[BaseModel]] = {"Exporter": ExporterSettings, "Remediator": RemediatorSettings}  # whole files
HEAD = """\
<!-- Made by tools/config_reference.py from the settings' types: change those. -->

# Configuration reference

Every key of the two configuration files. An unknown key is an error, and no value is converted: `"5"` is no number.
Some rules join several keys, or look closer at a value; the error line of the program tells them. "Not set" means
that the key may be left out. `[]` behind a key stands for each entry of its list.
"""
SIMPLE: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}
BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
LENGTHS = {"min_length": "at least", "max_length": "at most"}
UNITS = {list: ("entry", "entries"), str: ("character", "characters")}  # what a length counts
KNOWN = [(get_args(Url)[-1], "http or https address"), (get_args(Name)[-1], "name")]  # a text's check, and its word
Places = dict[type[BaseModel], list[str]]


def nested(kind: Any) -> list[type[BaseModel]]:
    """The settings classes inside a type, in the order they are written."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [found for part in get_args(kind) for found in nested(part)]


def keys(cls: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys as a file has them."""
    return {field.alias or name: field for name, field in cls.model_fields.items()}


def reachable(cls: type[BaseModel], place: str = "", found: Places | None = None) -> Places:
    """A class, every class under it, and the places where each stands."""
    found = {} if found is None else found
    found.setdefault(cls, []).append(place)
    for key, field in keys(cls).items():
        listed = "[]" if get_origin(field.annotation) is list else ""
        for inner in nested(field.annotation):
            reachable(inner, f"{place}.{key}{listed}".lstrip("."), found)
    return found


def descriptions(cls: type[BaseModel]) -> dict[str, str]:
    """What is said of each key: the field's own description, or the docstring under it."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    body = next(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    said: dict[str, str] = {}
    for pair in pairwise(body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                said[key] = text
    said |= {name: field.description for name, field in cls.model_fields.items() if field.description}
    return {cls.model_fields[name].alias or name: _prose(text) for name, text in said.items()}


def title(program: str, cls: type[BaseModel]) -> str:
    """A section's heading."""
    if cls in TOPS.values():
        return f"{program}: the whole file"
    words = re.findall(r"[A-Z][a-z]*", cls.__name__.removesuffix("Settings"))
    return f"{program}: {' '.join(words).lower()}"


def words(program: str, key: str, kind: Any, checks: Sequence[Any] = ()) -> str:
    """A type in words. Raises TypeError for one that has none yet."""
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        heading = title(program, kind)
        anchor = heading.lower().replace(":", "").replace(" ", "-")  # as GitHub makes it
        return f"[{heading.partition(': ')[2]}](#{anchor})"
    if isinstance(kind, EnumType) or origin is Literal:
        choices = [_code(str(choice)) for choice in (kind if isinstance(kind, EnumType) else parts)]
        return ("one of " if len(choices) > 1 else "") + ", ".join(choices)
    if kind in SIMPLE:
        known = next((word for check, word in KNOWN if check in checks), SIMPLE[kind])
        return known + (" of seconds" if key.endswith("_seconds") and kind in (int, float) else "")
    if origin is Annotated:
        return words(program, key, parts[0], _flat(parts[1:]))
    if origin is list:
        return f"list of: {words(program, key, parts[0])}"
    if origin in (Union, UnionType):
        return " or ".join(words(program, key, part, checks) for part in parts if part is not NoneType)
    raise TypeError(f"{key}: no words for the type {kind}")


def constraints(kind: Any, checks: Sequence[Any]) -> list[str]:
    """What a value must keep to besides its type, a list's own before its items'."""
    found = []
    origin, parts = get_origin(kind), get_args(kind)
    for check in checks:
        for name, word in (BOUNDS | LENGTHS).items():
            if (bound := getattr(check, name, None)) is not None:
                unit = f" {UNITS[origin or kind][bound != 1]}" if name in LENGTHS else ""
                found.append(f"{word} {str(bound).removesuffix('.0')}{unit}")
        if getattr(check, "pattern", None):
            found.append(f"pattern {_code(check.pattern)}")
        if isinstance(check, AfterValidator) and all(check != known for known, _ in KNOWN):
            found.append("looked at more closely")
    if origin is Annotated:
        return found + constraints(parts[0], _flat(parts[1:]))
    each = "each " if origin is list else ""
    return found + [each + text for part in parts for text in constraints(part, ())]


def default(field: FieldInfo) -> str:
    """What holds when the key is left out."""
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "not set"
    if isinstance(value, BaseModel):
        given = value.model_dump(mode="json", exclude_defaults=True)
        return _code(json.dumps(given)) if given else "its defaults"
    if isinstance(value, str):
        return _code(str(value) or '""')
    return _code(json.dumps(value).removesuffix(".0"))


def section(program: str, cls: type[BaseModel], places: Sequence[str]) -> str:
    """The heading, text and table of one class."""
    said = descriptions(cls)
    rows = [["Key", "Type", "Default", "Constraints", *(["Meaning"] if said else [])]]
    rows.append(["---"] * len(rows[0]))
    for key, field in keys(cls).items():
        kind = words(program, key, field.annotation, field.metadata)
        limits = ", ".join(constraints(field.annotation, field.metadata))
        rows.append([_code(key), kind, default(field), limits, *([said.get(key, "")] if said else [])])
    table = "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)
    where = ", ".join(_code(place) for place in places if place)
    stands = f"Stands at {where}.\n\n" if where else ""
    return f"\n## {title(program, cls)}\n\n{_prose(cls.__doc__ or '')}\n\n{stands}{table}"


def build() -> str:
    """The page's text."""
    return HEAD + "".join(section(name, *found) for name, top in TOPS.items() for found in reachable(top).items())


def _flat(checks: Sequence[Any]) -> list[Any]:
    return [one for check in checks for one in (check.metadata if isinstance(check, FieldInfo) else [check])]


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _prose(text: str) -> str:
    """One line in which `<` opens no tag; between backticks it is itself."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(prog="tools/config_reference.py", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether the file is in step with the settings")
    made = build()
    if not parser.parse_args(argv).check:
        FILE.write_text(made, encoding="utf-8")
        return 0
    if FILE.is_file() and FILE.read_text(encoding="utf-8") == made:
        return 0
    sys.stderr.write(f"{FILE.relative_to(ROOT)} is not in step with the settings: run tools/config_reference.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
