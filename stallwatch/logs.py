"""Logs of both programs: one event a line on standard error, logfmt or JSON, the same keys everywhere."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO, cast

import structlog

FORMATS = ("logfmt", "json")
LEVELS = ("debug", "info", "warning", "error")
_FIRST_KEYS = ["ts", "level", "component", "event"]


class _Stderr(io.TextIOBase):
    """Whatever standard error is when a line is written, not when logging was set up.

    A line that cannot be written is lost: a closed pipe must not end the loop that wanted to tell something.
    """

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()


_STDERR = _Stderr()


def configure(level: str = "info", fmt: str = "logfmt") -> None:
    """Set up logging once per process; libraries that use the standard module are heard from warnings on."""
    render: Any
    if fmt == "json":
        render = structlog.processors.JSONRenderer()
    else:
        render = _Logfmt(key_order=_FIRST_KEYS, drop_missing=True, bool_as_flag=False)
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        _stamp,
        structlog.processors.format_exc_info,
    ]
    number = getattr(logging, level.upper())
    structlog.configure(
        processors=[*shared, _ordered, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _STDERR)),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(_STDERR)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _named_component],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _ordered, render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING))


def get_logger(component: str) -> Any:
    """A logger whose lines name the component."""
    return structlog.get_logger(component=component)


class _Logfmt(structlog.processors.LogfmtRenderer):
    """Logfmt whose lines a value cannot break or overwrite: what a backend answers may end up in one."""

    def __call__(self, logger: Any, name: str, event: structlog.typing.EventDict) -> str:
        plain = {key: _plain(value) if isinstance(value, str) else value for key, value in event.items()}
        return super().__call__(logger, name, plain)


def _plain(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def _stamp(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    event["ts"] = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return event


def _named_component(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    event.setdefault("component", event["_record"].name)  # a library's own record comes without its logger
    return event


def _ordered(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    first = {key: event[key] for key in _FIRST_KEYS if key in event}
    return {**first, **{key: value for key, value in event.items() if key not in first}}
