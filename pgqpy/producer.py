# WARNING: this file is generated from pgqpy/producer_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Producing: events go into a queue in the transaction of whoever calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from psycopg.abc import Buffer
from psycopg.copy import LibpqWriter
from psycopg.rows import tuple_row

from pgqpy.acompat import each
from pgqpy.calls import call, checked, copy_in, event_arrays, padded
from pgqpy.connection import Connection
from pgqpy.copy_format import MAX_EVENT_BYTES, NEW_EVENT_COLUMNS
from pgqpy.errors import InvalidPayload, PayloadTooLarge, translate_errors

#: Type, data, extra1..4, of which the last ones may be left out; `pgqpy.NewEvent` is one.
EventFields: TypeAlias = Sequence[str | None]


class Producer:
    """Writes events into one queue.

    It has no connection of its own: each call names one, and the events are in its transaction.
    They are delivered once that commits, and never if it rolls back.

    All methods raise QueueNotFound, InsertDisabled, PermissionDenied and, for the events
    themselves, InvalidPayload (NUL characters) and PayloadTooLarge (a gigabyte).
    """

    def __init__(self, queue_name: str) -> None:
        self.queue_name = queue_name

    def insert_event(
        self,
        conn: Connection,
        type: str | None,  # noqa: A002
        data: str | None = None,
        *,
        extra1: str | None = None,
        extra2: str | None = None,
        extra3: str | None = None,
        extra4: str | None = None,
    ) -> int:
        """Write one event (pgq.insert_event); returns its id."""
        arguments = (self.queue_name, type, data, extra1, extra2, extra3, extra4)
        with translate_errors(), conn.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(_INSERT_EVENT, checked(arguments))
            return int((cursor.fetchall())[0][0])

    def insert_events(
        self,
        conn: Connection,
        events: Iterable[EventFields],
    ) -> int:
        """Write any number of events by COPY; returns how many.

        The fastest way for more than a few. The events are streamed: memory does not grow with
        their number. All are written or, after an error, none. While it runs, whatever yields
        the events must not use the same connection.
        """
        with translate_errors(), conn.transaction():
            return self._copy(conn, events)

    def insert_events_returning(self, conn: Connection, events: Iterable[EventFields]) -> list[int]:
        """Write some events in one statement (pgq.insert_events); returns their ids, in order.

        They are held in memory; for very many use `insert_events`.
        """
        arguments = [self.queue_name, *event_arrays(events)]
        with translate_errors(), conn.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(_INSERT_EVENTS, checked(arguments))
            return [int(event_id) for (event_id,) in cursor.fetchall()]

    def _copy(
        self,
        conn: Connection,
        events: Iterable[EventFields],
    ) -> int:
        count = 0
        with conn.cursor(row_factory=tuple_row) as cursor:
            # Asked for in the transaction that writes: so a rotation between the two is noticed,
            # and the events are looked for in this table.
            cursor.execute(_CURRENT_TABLE, checked([self.queue_name]))
            table = str((cursor.fetchall())[0][0])
            with cursor.copy(copy_in(table), writer=_Writer(cursor)) as copy:
                copy.set_types(["text"] * len(NEW_EVENT_COLUMNS))
                for event in each(events):
                    row = padded(event)
                    try:
                        copy.write_row(row)
                    except UnicodeEncodeError as error:
                        raise InvalidPayload(
                            f"an event's text is not valid Unicode: {error.reason}"
                        ) from error
                    except TypeError as error:
                        raise TypeError(
                            f"an event's fields are str or None: {row!r:.80}"
                        ) from error
                    count += 1
        return count


class _Writer(LibpqWriter):
    """Refuses what could be stored, field by field, but never be read again as a row."""

    def write(self, data: Buffer) -> None:
        if len(data) > MAX_EVENT_BYTES:
            raise PayloadTooLarge(f"an event of about {len(data):,} bytes is too large")
        super().write(data)


_INSERT_EVENT = call("insert_event", 7)
_INSERT_EVENTS = call("insert_events", 7)
_CURRENT_TABLE = call("current_event_table", 1)
