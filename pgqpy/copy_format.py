"""Events out of PostgreSQL's binary COPY format.

Hand-written because it is the hot path: psycopg's general reader makes a tuple first. (Its writer
is as fast as can be, so writing needs nothing here.) The format is in the manual, COPY, "Binary
Format": a header, then for each row the number of fields and for each field a length (-1: NULL)
and its bytes, then a row of -1 fields.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from pgqpy.event import Event
from pgqpy.retries import Retries

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
HEADER = SIGNATURE + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)

#: What a COPY that is read here selects, in this order. The numbers come first and are never
#: NULL, so that all of them have fixed places.
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
#: What a COPY that is written here sends. The table's defaults give the rest.
NEW_EVENT_COLUMNS = EVENT_COLUMNS[4:]

#: A larger row can be stored, field by field, but never read: a message is at most 1 GB.
MAX_EVENT_BYTES = 2**30 - 2**16

_length = struct.Struct(">i")
_NULL = _length.pack(-1)
#: So many NULLs in a row.
_NULLS = [_NULL * count for count in range(len(NEW_EVENT_COLUMNS) + 1)]
#: The bytes that four fields take beside the text itself when only the first is one.
_ONE_TEXT = 4 * _length.size
_numbers = struct.Struct(">h iq iq iq ii i")

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_FIRST_TIME = datetime.min.replace(tzinfo=UTC)
_LAST_TIME = datetime.max.replace(tzinfo=UTC)

# The frozen dataclass's own __init__ takes twice as long as these.
_new = object.__new__
(
    _set_id,
    _set_time,
    _set_txid,
    _set_retry_count,
    _set_type,
    _set_data,
    _set_extra1,
    _set_extra2,
    _set_extra3,
    _set_extra4,
    _set_retries,
) = (vars(Event)[field.name].__set__ for field in dataclasses.fields(Event))


def decode_events(rows: Iterable[bytes], retries: Retries | None) -> list[Event]:
    """The events of a COPY of `EVENT_COLUMNS`, one message a row, without header and trailer."""
    events = []
    last_time: int | None = None
    time = _EPOCH
    numbers, length = _numbers.unpack_from, _length.unpack_from
    for row in rows:
        _, _, event_id, _, microseconds, _, txid, _, retry_count, size = numbers(row)
        # Events of one transaction have the same time.
        if microseconds != last_time:
            time, last_time = _time(microseconds), microseconds
        position = _numbers.size
        if size < 0:
            event_type = None
        else:
            end = position + size
            event_type = row[position:end].decode()
            position = end
        (size,) = length(row, position)
        position += _length.size
        if size < 0:
            data = None
        else:
            end = position + size
            data = row[position:end].decode()
            position = end
        # Most events have no extras, or the first only: the table that a trigger names.
        extras = row[position:]
        if extras == _NULLS[4]:
            extra1 = extra2 = extra3 = extra4 = None
        else:
            extra1, extra2, extra3, extra4 = _texts(extras)
        event = _new(Event)
        _set_id(event, event_id)
        _set_time(event, time)
        _set_txid(event, txid)
        _set_retry_count(event, retry_count)
        _set_type(event, event_type)
        _set_data(event, data)
        _set_extra1(event, extra1)
        _set_extra2(event, extra2)
        _set_extra3(event, extra3)
        _set_extra4(event, extra4)
        _set_retries(event, retries)
        events.append(event)
    return events


def _texts(fields: bytes) -> list[str | None]:
    """The four extras."""
    (size,) = _length.unpack_from(fields)
    if size == len(fields) - _ONE_TEXT and fields.endswith(_NULLS[3]):
        return [fields[_length.size : _length.size + size].decode(), None, None, None]
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
    """A timestamp; beyond Python's calendar, and for infinity, its first or last moment."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return _LAST_TIME if microseconds > 0 else _FIRST_TIME
