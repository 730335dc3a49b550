"""Files of events: JSON lines, CSV, or plain lines, one event each, read as a stream.

Events come one at a time, and a bad line raises `CliError` with its number. A caller that inserts
in one transaction therefore inserts the whole file or nothing.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.output import console
from pgqpy.event import Event, NewEvent
from pgqpy_consumers.apply import Number, json_text

FIELDS = NewEvent._fields

#: Fields that `pgqpy event peek --json` adds. They are allowed, so that its output can be inserted
#: again, and ignored: an event gets its own id, time and transaction.
ASSIGNED = ("id", "time", "txid", "retry")

#: The formats, with what a line of each must be.
FORMATS = {
    "jsonl": 'a line looks like {"type": "order", "data": {"id": 1}}; '
    "with TYPE and --whole-row any object is the data of an event",
    "csv": "the first line names the columns: type, data, extra1 to extra4; "
    "with TYPE and --whole-row any columns are the data of an event",
    "lines": "every line is the data of one event; TYPE, after the queue, is their type",
}


def event_keys(event: Event) -> dict[str, Any]:
    retry = {"retry": "retry_count"}
    return {name: getattr(event, retry.get(name, name)) for name in (*ASSIGNED, *FIELDS)}


@contextmanager
def open_events(
    path: str, file_format: str | None, *, event_type: str | None, whole_row: bool
) -> Iterator[Iterator[NewEvent]]:
    """Open a file, or standard input for ``-``, and return its events; see `read_events`.

    A bar shows how much of it was read.
    """
    file_format = file_format or format_of(path)
    name = "standard input" if path == "-" else path
    size = None if path == "-" else Path(path).stat().st_size or None
    with click.open_file(path, "rb") as stream, _progress("inserting", size) as advance:
        lines = _lines(stream, name, advance)
        yield read_events(lines, name, file_format, event_type=event_type, whole_row=whole_row)


def format_of(path: str) -> str:
    """Return the format by a file's name; standard input is JSON lines."""
    suffix = Path(path).suffix.lower()
    if suffix == ".csv":
        return "csv"
    if suffix in (".jsonl", ".ndjson", ".json") or path == "-":
        return "jsonl"
    raise CliError(
        f"{path}: its name does not tell its format",
        "say --format csv, --format jsonl (one JSON object a line), or --format lines",
    )


@contextmanager
def _progress(description: str, total_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error, if that is a terminal."""
    from rich import progress as rich

    screen = console(stderr=True)
    bar = rich.Progress(
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
        console=screen,
        disable=not screen.is_terminal,
        transient=True,
    )
    with bar:
        task = bar.add_task(description, total=total_bytes)
        yield lambda count: bar.advance(task, count)


def _lines(stream: IO[bytes], name: str, advance: Callable[[int], None]) -> Iterator[str]:
    for number, line in enumerate(stream, 1):
        advance(len(line))
        try:
            # Windows programs start UTF-8 files with a byte order mark.
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise CliError(
                f"{name}, line {number}: it is not UTF-8: {error.reason} at byte {error.start + 1}",
                f"convert it first: iconv -f latin1 -t utf-8 {name}",
            ) from None


def read_events(
    lines: Iterable[str], name: str, file_format: str, *, event_type: str | None, whole_row: bool
) -> Iterator[NewEvent]:
    """Yield the events of a file.

    ``event_type`` is the type of events that do not name one. With ``whole_row`` a row is not a set
    of event fields but the payload: it becomes the data, as a JSON object.
    """
    rows = {"jsonl": _json_rows, "csv": _csv_rows, "lines": _plain_rows}[file_format]
    for number, row in rows(lines, name):
        try:
            if whole_row or file_format == "lines":
                yield _payload(row, event_type)
            else:
                yield _fields(row, event_type)
        except ValueError as error:
            raise CliError(f"{name}, line {number}: {error}", FORMATS[file_format]) from None


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
                FORMATS["jsonl"],
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
                    FORMATS["csv"],
                )
            # CSV cannot tell an empty text from NULL; an unquoted empty cell mostly means NULL.
            yield reader.line_num, {key: cell or None for key, cell in row.items()}
    except csv.Error as error:
        raise CliError(f"{name}, line {reader.reader.line_num}: {error}", FORMATS["csv"]) from None


def _plain_rows(lines: Iterable[str], name: str) -> Rows:
    for number, line in enumerate(lines, 1):
        yield number, line.rstrip("\r\n")


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
