"""The statements that this library sends, as values; nothing here talks to a server."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import sql
from psycopg.abc import DumperKey
from psycopg.adapt import PyFormat
from psycopg.types.array import BaseListDumper, ListBinaryDumper

from pgqpy._wire.cloud_event import is_cloud_event, row_of_cloud_event
from pgqpy._wire.copy_format import MAX_EVENT_BYTES, NEW_EVENT_COLUMNS
from pgqpy._wire.event_data import data_text
from pgqpy.errors import InvalidParameter, InvalidPayload, PayloadTooLarge
from pgqpy.telemetry._spans import Marker, marker

#: A subquery formally loses the batch's order, so ``order by`` repeats it; the planner knows that
#: the rows are sorted already.
_COPY_OUT = """
copy (select {columns}
        from ({batch_sql}) batch
       where {condition}
       order by ev_id)
  to stdout (format binary)
"""

_COPY_IN = "copy {table} ({columns}) from stdin (format binary)"


def start_text(start: object) -> str:
    """Return a place to start at as pgq.find_tick() takes it."""
    if not isinstance(start, datetime):
        return str(start)
    if start.utcoffset() is None:
        raise InvalidParameter(
            f"the time {start} to start at has no time zone",
            hint="Give one, for example datetime(2026, 11, 21, tzinfo=UTC).",
        )
    return start.isoformat()


#: The missing NULLs, by the number of fields given.
_PADDING = [
    (None,) * (len(NEW_EVENT_COLUMNS) - given) for given in range(len(NEW_EVENT_COLUMNS) + 1)
]


@lru_cache
def call(function: str, arguments: int = 0) -> bytes:
    """Return ``select * from pgq.function(%s, ...)`` with ``arguments`` placeholders."""
    return (
        sql.SQL("select * from {}({})")
        .format(
            sql.Identifier("pgq", function), sql.SQL(", ").join([sql.Placeholder()] * arguments)
        )
        .as_bytes(None)
    )


def from_text(statement: str) -> str:
    """Return a statement whose JSON parameters are texts: programs may let a driver encode JSON."""
    return re.sub(r"(?<=%s)::jsonb((?:\[\])?)", r"::text\1::jsonb\1", statement)


def checked(arguments: Iterable[Any]) -> list[Any]:
    """Return the arguments if PostgreSQL can take them; lists as arrays that any session reads.

    Raises InvalidPayload for a NUL character or a lone surrogate, PayloadTooLarge for a gigabyte.
    """
    values = list(arguments)
    for number, value in enumerate(values):
        if isinstance(value, str):
            _check_text(value)
        elif isinstance(value, list):
            values[number] = Array(checked(value))
    return values


def require_utf8(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Raise InvalidParameter if a user's connection has another client_encoding.

    psycopg reads JSON as UTF-8 in every session, and sends texts so if it is SQL_ASCII: they would
    become other texts.
    """
    encoding = conn.pgconn.parameter_status(b"client_encoding") or b"UTF8"
    if encoding != b"UTF8":
        raise InvalidParameter(
            f"texts could change on this connection: its client_encoding is {encoding.decode()}",
            hint=_TO_UTF8,
        )


def unencodable(error: UnicodeEncodeError) -> InvalidPayload:
    """Return our error for a text that a connection cannot send."""
    if error.encoding == "utf-8":
        return InvalidPayload(f"an event's text is not valid Unicode: {error.reason}")
    return InvalidPayload(
        f"the connection's client_encoding lacks characters of a text: {error}", hint=_TO_UTF8
    )


_TO_UTF8 = "Connect by pgqpy.connect(), or execute: SET client_encoding TO 'UTF8'."


def _check_text(text: str) -> None:
    if "\0" in text:
        raise InvalidPayload("a text holds a NUL character")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidPayload(f"a text is not valid Unicode: {error.reason}") from None
    if size > MAX_EVENT_BYTES:
        raise PayloadTooLarge(f"a text of {size:,} bytes is too large")


def copy_out(
    batch_sql: str, event_types: Collection[str] | None, columns: Iterable[str] | None = None
) -> sql.Composed:
    """Return the COPY that reads a batch's events, or those of some types.

    Without ``columns`` it is for `decode_events`.
    """
    condition: sql.Composable = sql.SQL("true")
    if event_types is not None:
        condition = sql.SQL("ev_type = any({}::text[])").format(sql.Literal(list(event_types)))
    return sql.SQL(_COPY_OUT).format(
        columns=_whole_event() if columns is None else _columns(columns),
        batch_sql=sql.SQL(batch_sql),
        condition=condition,
    )


@lru_cache
def copy_in(table: str, columns: tuple[str, ...] = NEW_EVENT_COLUMNS) -> bytes:
    """Return the COPY for rows of `encode_event`; the table is current_event_table's."""
    return (
        sql.SQL(_COPY_IN)
        .format(table=sql.Identifier(*table.split(".")), columns=_columns(columns))
        .as_bytes(None)
    )


@lru_cache
def insert_into_relation(queue: object, *, many: bool = False) -> bytes | None:
    """Return the INSERT of an event into a queue's relation, or of `event_arrays`; None if its name
    is too long for one, or may be written in another way in another encoding."""
    if not isinstance(queue, str) or not 0 < len(queue) < 60 or not queue.isascii():
        return None
    values = sql.SQL(", ").join([sql.SQL("%s::text[]" if many else "%s")] * len(NEW_EVENT_COLUMNS))
    rows = sql.SQL("select * from unnest({})" if many else "values ({})").format(values)
    return (
        sql.SQL("insert into {} ({}) {} returning ev_id")
        .format(
            sql.SQL(sql.Identifier("pgq_queue", queue).as_string(None).replace("%", "%%")),
            _columns(NEW_EVENT_COLUMNS),
            rows,
        )
        .as_bytes(None)
    )


def padded(event: Any, mark: Marker | None = None) -> Sequence[str | None]:
    """Return an event, or a CloudEvent, as a whole row: omitted fields are NULL, data is a text,
    and a trace is added.

    Raises TypeError for more than six fields, or none, InvalidPayload.
    """
    if is_cloud_event(event):
        event = (event,)
    if isinstance(event, str | dict) or not 0 < len(event) < len(_PADDING):
        raise TypeError(
            f"an event has one to six fields (type, data, extra1..4), not {event!r:.80}"
        )
    cloud = is_cloud_event(event[0])
    padding = _PADDING if mark is None or cloud else mark.padding
    row: Sequence[Any] = (*event, *padding[len(event)])
    if cloud:
        row = row_of_cloud_event(row)
    if mark is not None and (cloud or len(event) == len(row)):
        row = (*row[:5], mark(row[5]))
    if row[1] is None or isinstance(row[1], str):
        return row
    return (row[0], data_text(row[1]), *row[2:])


def texts(fields: Sequence[str | None]) -> Sequence[str | None]:
    """Return the fields of an event if they are texts; raises TypeError."""
    # The server would see another type for a number, and would find no such function.
    if not all(field is None or isinstance(field, str) for field in fields):
        raise TypeError(f"an event's fields are str or None: {fields!r:.80}")
    return fields


def event_arrays(events: Iterable[Any]) -> list[list[str | None] | None]:
    """Return events as the arguments of pgq.insert_events: one array a field.

    They get the current trace. Extra fields that no event has are None as a whole.
    """
    mark = marker()
    rows = [texts(padded(event, mark)) for event in events]
    if not rows:
        return [[], [], None, None, None, None]
    types, data, *extras = (list(column) for column in zip(*rows, strict=True))
    return [types, data, *(None if all(v is None for v in extra) else extra for extra in extras)]


def _columns(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _whole_event() -> sql.Composed:
    return sql.SQL("ev_id, ev_time, ev_txid, coalesce(ev_retry, 0), {}").format(
        _columns(NEW_EVENT_COLUMNS)
    )


_TEXTS = psycopg.adapters.types["text"].array_oid


class Array(list[Any]):
    """A list that is sent as an array of one dimension, in binary.

    That means the same in every session, and is eight times as fast. In text format, NULL is a
    string if array_nulls is off.
    """


class ArrayDumper(ListBinaryDumper):
    """Sends an `Array` in binary; one that holds only NULLs as an array of texts."""

    def get_key(self, obj: list[Any], format: PyFormat) -> DumperKey:  # noqa: A002 (psycopg's)
        return super().get_key(obj, format) if obj else (self.cls, self.cls)

    def upgrade(self, obj: list[Any], format: PyFormat) -> BaseListDumper:  # noqa: A002
        if not obj or self._find_list_element(obj, format) is not None:
            return super().upgrade(obj, format)
        dumper = type(self)(self.cls, self._tx)
        dumper.oid = _TEXTS
        return dumper


psycopg.adapters.register_dumper(Array, ArrayDumper)
