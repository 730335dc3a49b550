"""Readers of event files: JSON lines, CSV, or plain lines, one event each, streamed.

Each reader yields one event at a time and raises `CliError` with the number of a bad line. A caller
that inserts in one transaction therefore inserts the whole file or nothing.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from pgqpy.cli._base.errors import CliError
from pgqpy.event import NewEvent
from pgqpy_consumers.apply import Number, json_text


class Format(StrEnum):
    """The format of an event file."""

    JSONL = "jsonl"
    CSV = "csv"
    LINES = "lines"

    @classmethod
    def of(cls, path: str) -> Format:
        """Return the format by a file's name; standard input is JSON lines."""
        suffix = Path(path).suffix.lower()
        if suffix == ".csv":
            return cls.CSV
        if suffix in (".jsonl", ".ndjson", ".json") or path == "-":
            return cls.JSONL
        raise CliError(
            f"{path}: its name does not tell its format",
            "say --format csv, --format jsonl (one JSON object a line), or --format lines",
        )


FIELDS = NewEvent._fields

#: Fields that `pgqpy event peek --json` adds. They are allowed, so that its output can be inserted
#: again, and ignored: an event gets its own id, time and transaction.
ASSIGNED = ("id", "time", "txid", "retry")


def read_events(
    lines: Iterable[str], name: str, file_format: Format, *, event_type: str | None, whole_row: bool
) -> Iterator[NewEvent]:
    """Yield the events of a file.

    `event_type` is the type of events that do not name one. With `whole_row` a row is not a set
    of event fields but the payload: it becomes the data, as a JSON object.
    """
    reader = _READERS[file_format]
    for number, row in reader(lines, name):
        try:
            yield (
                _payload(row, event_type)
                if whole_row or file_format is Format.LINES
                else _fields(row, event_type)
            )
        except ValueError as error:
            raise CliError(f"{name}, line {number}: {error}", _HINTS[file_format]) from None


Rows = Iterator[tuple[int, Any]]


def _json_rows(lines: Iterable[str], name: str) -> Rows:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, parse_int=Number, parse_float=Number)
        except json.JSONDecodeError as error:
            raise CliError(
                f"{name}, line {number}: this is not JSON: {error.msg} at column {error.colno}",
                _HINTS[Format.JSONL],
            ) from None
        yield number, row


def _csv_rows(lines: Iterable[str], name: str) -> Rows:
    reader = csv.DictReader(lines, strict=True)
    try:
        for row in reader:
            # DictReader puts surplus cells under None and fills missing ones with None.
            if None in row or None in row.values():
                raise CliError(
                    f"{name}, line {reader.line_num}: "
                    f"the row does not have as many cells as the heading has columns",
                    _HINTS[Format.CSV],
                )
            # CSV cannot tell an empty text from NULL; an unquoted empty cell mostly means NULL.
            yield reader.line_num, {key: cell or None for key, cell in row.items()}
    except csv.Error as error:
        raise CliError(
            f"{name}, line {reader.reader.line_num}: {error}", _HINTS[Format.CSV]
        ) from None


def _plain_rows(lines: Iterable[str], name: str) -> Rows:
    for number, line in enumerate(lines, 1):
        yield number, line.rstrip("\r\n")


_READERS: Mapping[Format, Callable[[Iterable[str], str], Rows]] = {
    Format.JSONL: _json_rows,
    Format.CSV: _csv_rows,
    Format.LINES: _plain_rows,
}

_HINTS = {
    Format.JSONL: 'a line looks like {"type": "order", "data": {"id": 1}}; '
    "with TYPE and --whole-row any object is the data of an event",
    Format.CSV: "the first line names the columns: type, data, extra1 to extra4; "
    "with TYPE and --whole-row any columns are the data of an event",
    Format.LINES: "every line is the data of one event; TYPE, after the queue, is their type",
}


def _payload(row: Any, event_type: str | None) -> NewEvent:
    if event_type is None:
        raise ValueError("the event has no type; give TYPE after the queue")
    return NewEvent(event_type, _text(row, "data"))


def _fields(row: Any, event_type: str | None) -> NewEvent:
    if not isinstance(row, dict):
        raise ValueError(f"an event is a JSON object, this is {_kind(row)}")
    unknown = row.keys() - {*FIELDS, *ASSIGNED}
    if unknown:
        raise ValueError(f"an event has no field {', '.join(sorted(map(repr, unknown)))}")
    if event_type is None and "type" not in row:
        raise ValueError("the event has no type; name it in the file or give TYPE after the queue")
    if "data" not in row:
        raise ValueError("the event has no data")
    return NewEvent(**{"type": event_type} | {f: _text(row[f], f) for f in FIELDS if f in row})


def _text(value: Any, field: str) -> str | None:
    """Return the text that is stored for a field's value: texts unchanged, the rest as JSON."""
    text: str | None = value if type(value) is str else json_text(value)
    if text is not None and "\0" in text:
        raise ValueError(f"{field} holds a NUL character, which PostgreSQL cannot store")
    return text


def _kind(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )
