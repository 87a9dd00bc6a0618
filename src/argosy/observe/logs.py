"""Structured logs: one event per line, as text for people or as JSON for machines.

An event is a short message and fields. Nothing here logs prompts or secrets; callers pass what they want recorded.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
from collections.abc import Mapping
from typing import Any, Literal, TextIO

from argosy.errors import ConfigError

LogFormat = Literal["text", "json"]
LEVELS = ("debug", "info", "warning", "error")
ROOT_LOGGER = "argosy"


def configure_logging(level: str = "info", log_format: str = "text", stream: TextIO | None = None) -> logging.Logger:
    """Send the loggers below `argosy` and those of the HTTP server to `stream` (stderr); returns the `argosy` logger.

    Replaces handlers set by an earlier call. Per-request lines come from our own middleware, so the HTTP server's access
    log stays off and its lifecycle messages are lowered to warnings.

    Raises:
        ConfigError: unknown level or format.
    """
    if level not in LEVELS:
        raise ConfigError(f"log level must be one of {', '.join(LEVELS)}, got {level!r}")
    if log_format not in ("text", "json"):
        raise ConfigError(f"log format must be text or json, got {log_format!r}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    for name, threshold in ((ROOT_LOGGER, level.upper()), ("uvicorn", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(threshold)
        logger.propagate = False
    return logging.getLogger(ROOT_LOGGER)


def log_event(logger: logging.Logger, level: int, message: str, /, *, exc_info: Any = None, **fields: Any) -> None:
    """Log `message` with `fields`; those that are None are left out."""
    if logger.isEnabledFor(level):
        present = {name: value for name, value in fields.items() if value is not None}
        logger.log(level, message, extra={"fields": present}, exc_info=exc_info)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, then the fields, and `traceback` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        event = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in _fields_of(record).items() if name not in _RESERVED},
        }
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """`time LEVEL logger message key=value …`; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        fields = "".join(f" {name}={_text_value(value)}" for name, value in _fields_of(record).items())
        message = _one_line(record.getMessage())
        line = f"{_time_of(record)} {record.levelname:<7} {record.name} {message}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


_RESERVED = frozenset({"time", "level", "logger", "message"})


def _fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def _time_of(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, tz=datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _one_line(text: str) -> str:
    """Escape what could start a line or move the cursor, so that a caller's string cannot forge an event."""
    return text if text.isprintable() else json.dumps(text)[1:-1]


def _text_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    plain = text.isprintable() and text != "" and not any(c in text for c in ' "=')
    return text if plain or not isinstance(value, str) else json.dumps(text)
