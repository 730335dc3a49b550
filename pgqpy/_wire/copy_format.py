"""Decoding of events from PostgreSQL's binary COPY format.

Hand-written because it is the hot path: psycopg's general reader makes a tuple first. (Its writer
is as fast as possible, so writing needs nothing here.) The format is in the manual, COPY, "Binary
Format": a header, then for each row the number of fields and for each field a length (-1: NULL)
and its bytes, then a row of -1 fields.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pgqpy.event import Event, Retries, UnreadableEvent

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
HEADER = SIGNATURE + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)

#: The columns of a COPY that is decoded here, in this order. The numbers come first and are never
#: NULL, so that they have fixed places.
EVENT_COLUMNS = (
    "ev_id",
    "ev_time",
    "ev_txid",
    "ev_retry",
    "ev_type",
    "ev_data",
    "ev_extra1",
    "ev_extra2",
    "ev_extra3",
    "ev_extra4",
)
#: The columns of a COPY that inserts events. The table's defaults give the rest.
NEW_EVENT_COLUMNS = EVENT_COLUMNS[4:]

#: A larger row can be stored, field by field, but never read: a message is at most 1 GB.
MAX_EVENT_BYTES = 2**30 - 2**16

_COUNT = struct.pack(">h", len(EVENT_COLUMNS))
_OID_SIZE = 4
_length = struct.Struct(">i")
#: Id, time, txid and retry count (of known lengths), and the length of the type.
_numbers = struct.Struct(">6x q 4x q 4x q 4x i i")

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_FIRST_TIME = datetime.min.replace(tzinfo=UTC)
_LAST_TIME = datetime.max.replace(tzinfo=UTC)


class _Draft:
    """An event that can still be changed.

    The __init__ of a frozen dataclass calls object.__setattr__ for each field, which takes longer
    than reading the row. So a row becomes a draft, and then the draft an `Event`: Python allows
    that because both have the same slots. It has no __init__: the call would be a sixth of the
    decoding time.
    """

    __slots__ = tuple(field.name for field in dataclasses.fields(Event))


def decode_events(rows: Iterable[bytes], retries: Retries | None) -> list[Event]:
    """Decode a COPY of `EVENT_COLUMNS`, one message a row, without header and trailer."""
    events: list[Event] = []
    last_time: int | None = None
    time = _EPOCH
    last_extras = b""
    extra1 = extra2 = extra3 = extra4 = None
    numbers, length = _numbers.unpack_from, _length.unpack_from
    for row in rows:
        event: Any = _Draft()
        event.id, microseconds, event.txid, event.retry_count, size = numbers(row)
        # Events of one transaction have the same time.
        if microseconds != last_time:
            time, last_time = _time(microseconds), microseconds
        event.time = time
        try:
            position = _numbers.size
            if size < 0:
                event.type = None
            else:
                end = position + size
                event.type = row[position:end].decode()
                position = end
            (size,) = length(row, position)
            position += _length.size
            if size < 0:
                event.data = None
            else:
                end = position + size
                event.data = row[position:end].decode()
                position = end
            # Often none, or the table that a trigger names: equal to the event before.
            extras = row[position:]
            if extras != last_extras:
                extra1, extra2, extra3, extra4 = _texts(extras)
                last_extras = extras
            event.extra1 = extra1
            event.extra2 = extra2
            event.extra3 = extra3
            event.extra4 = extra4
        except UnicodeDecodeError:
            _keep_bytes(event, row)
            event._retries = retries
            event.__class__ = UnreadableEvent
            events.append(event)
            continue
        event._retries = retries
        event.__class__ = Event
        events.append(event)
    return events


def copied(records: Iterable[bytes]) -> Iterator[bytes]:
    """Turn rows of record_send() into rows of a COPY: without the type of each field."""
    for record in records:
        fields = [_COUNT]
        position = _length.size
        while position < len(record):
            position += _OID_SIZE
            (size,) = _length.unpack_from(record, position)
            end = position + _length.size + max(size, 0)
            fields.append(record[position:end])
            position = end
        yield b"".join(fields)


def _keep_bytes(event: Any, row: bytes) -> None:
    """Keep the raw texts of a row of which one cannot be decoded."""
    position = _numbers.size - _length.size
    for name in NEW_EVENT_COLUMNS:
        (size,) = _length.unpack_from(row, position)
        position += _length.size
        end = position + max(size, 0)
        setattr(event, name.removeprefix("ev_"), None if size < 0 else row[position:end])
        position = end


def _texts(fields: bytes) -> list[str | None]:
    texts: list[str | None] = []
    position = 0
    while position < len(fields):
        (size,) = _length.unpack_from(fields, position)
        position += _length.size
        if size < 0:
            texts.append(None)
        else:
            texts.append(fields[position : position + size].decode())
            position += size
    return texts


def _time(microseconds: int) -> datetime:
    """Decode a timestamp; beyond Python's calendar, and for infinity, its first or last moment."""
    try:
        return _EPOCH + timedelta(0, 0, microseconds)
    except OverflowError:
        return _LAST_TIME if microseconds > 0 else _FIRST_TIME
