"""Strict settings from YAML: a valid, frozen object, or one error line that names the path."""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 40
MAX_LINE = 1000
_HOST = re.compile(r"[\w.-]+|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(%[\w.-]+)?")

Model = TypeVar("Model", bound=BaseModel)


class SettingsError(Exception):
    """What a user can cause and mend. Its text is one printable line, whatever a key or a file name holds."""

    def __init__(self, message: str) -> None:
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
        super().__init__(line if len(line) <= MAX_LINE else line[:MAX_LINE] + "…")


class Strict(BaseModel):
    """Base of all settings: unknown keys are errors, values are not converted, objects do not change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, populate_by_name=True, hide_input_in_errors=True
    )


def check_url(text: str) -> str:
    """An http or https address without credentials, query or fragment; its trailing slash is dropped."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # the length of its labels, which the resolver would refuse
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    if "@" in parts.netloc:
        raise SettingsError("must hold no credentials; use api_key_file")
    plain = not any(c.isspace() or not c.isprintable() for c in text) and not parts.netloc.endswith(":")
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or port == 0 or not plain:
        raise SettingsError("must be an http:// or https:// address")
    if "?" in text or "#" in text:
        raise SettingsError("must hold neither a query nor a fragment")
    return text.rstrip("/")


def _url(text: str) -> str:
    try:
        return check_url(text)
    except SettingsError as error:
        raise ValueError(str(error)) from error


def _name(text: str) -> str:
    if text in (".", ".."):
        raise ValueError("must be a name: . and .. are steps in a path")
    return text


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A duration above zero, in seconds."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$"), AfterValidator(_name)]
"""A name that is safe as a label value, in a path and on a page."""
Url = Annotated[str, AfterValidator(_url)]
"""An http or https address; see `check_url`."""


_KEY_TAGS = {"tag:yaml.org,2002:str", "tag:yaml.org,2002:merge", "tag:yaml.org,2002:value"}


class _Loader(yaml.SafeLoader):
    """YAML in which a key stands once, nothing nests without end, and no alias can blow up a document."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise _refused("aliases are not allowed", mark)
        if self.depth >= MAX_DEPTH:
            raise _refused(f"is nested deeper than {MAX_DEPTH} levels", mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            # A date, number or tag that YAML allows and Python does not. The value may be a secret: not shown.
            raise _refused("the value cannot be read as what it is written as", node.start_mark) from error

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode):
                raise _refused("a key must be a word", key.start_mark)
            if key.tag not in _KEY_TAGS:  # such as the word on, which YAML takes for a truth value
                raise _refused(f"the key {key.value!r} must be text; put it in quotes", key.start_mark)
            if key.value in seen:
                raise _refused(f"the key {key.value!r} stands twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _refused(problem: str, mark: yaml.Mark) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)


def load_yaml(path: Path, model: type[Model]) -> Model:
    """Read a file into its model. Raises `SettingsError`, whatever the file holds."""
    content = _parse(path, _read(path))
    if not isinstance(content, dict):
        what = "is empty" if content is None else "must be a mapping of keys at the top"
        raise SettingsError(f"{path}: {what}")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise SettingsError(f"{path}: {_first_line(error, model)}") from error


def read_secret(path: str | Path) -> str:
    """The content of a secret's file without the white space around it. Raises `SettingsError`."""
    text = _read(Path(path)).strip()
    if not text:
        raise SettingsError(f"{path}: holds no secret")
    if not text.isascii() or not text.isprintable():
        raise SettingsError(f"{path}: holds characters that no HTTP header can carry")
    return text


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise SettingsError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not UTF-8 text") from error
    except ValueError as error:
        raise SettingsError(f"{str(path)!r}: is no file name") from error


def _parse(path: Path, text: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # a safe loader, made stricter
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        problem = error.problem or "is not YAML"
        if problem.startswith("but ") and error.context:
            problem = f"{error.context}, {problem}"
        raise SettingsError(f"{path}{where}: {problem}") from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        where = f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
        raise SettingsError(f"{path}:{where}: a character that YAML does not allow") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: is not YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise SettingsError(f"{path}: is nested too deeply") from error
    except (ValueError, TypeError, AttributeError) as error:  # a mapping's or a list's tag on something else
        raise SettingsError(f"{path}: holds a value that cannot be read as what it is written as") from error


def _first_line(error: ValidationError, model: type[BaseModel]) -> str:
    first, *others = error.errors(include_url=False, include_context=True, include_input=False)
    place = _without_tags(first["loc"], model)
    if first["type"].startswith("union_tag"):
        place.append(first["ctx"]["discriminator"].strip("'"))
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    message = _message(dict(first), model)
    more = f" (and {len(others)} more)" if others else ""
    return f"{where}: {message}{more}" if where else f"{message}{more}"


def _message(detail: dict[str, Any], model: type[BaseModel]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    match kind:
        case "extra_forbidden":
            close = difflib.get_close_matches(str(detail["loc"][-1]), _keys_at(model, detail["loc"][:-1]), n=1)
            return "unknown key" + (f"; did you mean {close[0]}?" if close else "")
        case "missing":
            return "is missing"
        case "greater_than":
            return f"must be above {context['gt']:g}"
        case "finite_number":
            return "must be a finite number"
        case "string_pattern_mismatch":
            return "may only hold letters, digits, dot, dash and underscore (1 to 100 of them)"
        case "value_error" | "assertion_error":
            return str(context.get("error", detail["msg"]))
        case "union_tag_not_found":
            return "is missing"
        case "union_tag_invalid":
            return f"must be one of {context['expected_tags']}"
        case "enum" | "literal_error":
            return f"must be one of {context['expected']}"
        case "too_short":
            return f"must hold at least {context['min_length']}"
        case "float_type" | "int_type" | "int_from_float":
            return "must be a number"
        case "string_type":
            return "must be text"
        case "model_type" | "dict_type" | "model_attributes_type":
            return "must be a mapping of keys"
        case "list_type":
            return "must be a list"
    return str(detail["msg"]).replace("Input should be", "must be").replace("Input", "value")


def _keys_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The keys known at a place in the settings, to guess what a misspelt one meant."""
    models = [model]
    for part in loc:
        fields = [info for m in models for name, info in m.model_fields.items() if part in (name, info.alias)]
        # Indices, and the tag of a union, stand in the place too: they name no field and lead no deeper.
        models = [found for info in fields for found in _models_in(info.annotation)] or models
    return [info.alias or name for m in models for name, info in m.model_fields.items()]


def _without_tags(loc: tuple[int | str, ...], model: type[BaseModel]) -> list[int | str]:
    """The place as the file has it: the library also names which `kind` of settings it took."""
    models: list[type[BaseModel]] = [model]
    place: list[int | str] = []
    for part in loc:
        tagged = [m for m in models if "kind" in m.model_fields and part in _kinds(m)]
        if place and tagged:
            models = tagged
            continue
        place.append(part)
        fields = [info for m in models for name, info in m.model_fields.items() if part in (name, info.alias)]
        models = [found for info in fields for found in _models_in(info.annotation)] or models
    return place


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    annotation: Any = model.model_fields["kind"].annotation
    return get_args(annotation)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]
