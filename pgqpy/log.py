"""The library's logger, and lines with fields: readable on a terminal, logfmt or JSON for programs.

Messages carry their values as fields (``extra``).
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import IO

from pgqpy._runtime.words import printable, printable_json

logger = logging.getLogger("pgqpy")

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("auto", "text", "logfmt", "json")

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def setup(name: str, level: str, form: str, stream: IO[str] | None = None) -> logging.Handler:
    """Send the lines of the logger ``name`` to ``stream``, by default stderr.

    ``form`` is auto, text, logfmt or json. Returns the handler.
    """
    target = sys.stderr if stream is None else stream
    if form == "auto":
        form = "text" if target.isatty() else "logfmt"
    handler = logging.StreamHandler(target)
    handler.setFormatter(_FORMATTERS[form]())
    named = logging.getLogger(name)
    named.handlers[:] = [handler]
    named.setLevel(level.upper())
    named.propagate = False
    return handler


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of a line, without its message."""
    return {k: v for k, v in record.__dict__.items() if k not in _STANDARD and v is not None}


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


class _Fields(logging.Formatter):
    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        line: dict[str, object] = {
            "time": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return line


class _Json(_Fields):
    def format(self, record: logging.LogRecord) -> str:
        return printable_json(json.dumps(self.fields(record), default=str, ensure_ascii=False))


class _Logfmt(_Fields):
    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={logfmt(value)}" for key, value in self.fields(record).items())


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = _time(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        fields = fields_of(record)
        where = fields.pop("database", None)
        tail = "".join(f"  {key}={logfmt(value)}" for key, value in fields.items())
        head = f"{clock} {record.levelname:<7} {f'{where}: ' if where else ''}"
        body = f"{head}{printable(record.getMessage())}{tail}"
        return f"{body}\n{self.formatException(record.exc_info)}" if record.exc_info else body


_FORMATTERS: dict[str, type[logging.Formatter]]
_FORMATTERS = {"text": _Text, "logfmt": _Logfmt, "json": _Json}


def logfmt(value: object) -> str:
    """Format a value as logfmt: bare if that is unambiguous, else quoted like JSON."""
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    bare = text.isprintable() and not any(sign in text for sign in ' ="') and text
    return text if bare else printable_json(json.dumps(text, ensure_ascii=False))
