# WARNING: generated from pgqpy/consumer/batch_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""A batch: the events between two ticks, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, Protocol, TypeVar

import psycopg

from pgqpy._runtime.acompat import Lock
from pgqpy._runtime.fetch import fetch
from pgqpy._wire import copy_protocol
from pgqpy._wire.contract import Validators
from pgqpy._wire.copy_format import HEADER, TRAILER, copied, decode_events
from pgqpy._wire.statements import call, copy_out
from pgqpy.connection import Connection
from pgqpy.consumer import _statements as sql
from pgqpy.errors import BatchNotFound, PgqError, translate_errors
from pgqpy.event import Event, Retries

T = TypeVar("T")

#: The seconds that a cancel request may take before the connection is given up.
_CANCEL_TIMEOUT = 5.0


class Elsewhere(Protocol):
    """Where events may be read instead: a standby."""

    def read(self, batch: Batch) -> Reader | None: ...
    def use(self, batch: Batch, work: Callable[[Connection, str], T]) -> T | None: ...


# Long: a field each for what the server tells of a batch.
@dataclass(eq=False, kw_only=True)
class Batch:
    """An open batch of a consumer; iterate over it to get its events, ordered by id.

    The events are streamed, so a batch may be larger than memory. It can be iterated again, from
    the start, and need not be read to its end; not twice at the same time.

    ``prev_tick`` and ``tick`` are the ids of the ticks around it, ``prev_tick_time`` and
    ``tick_time`` their times, ``seq_start`` and ``seq_end`` the event sequence at them: their
    difference estimates the number of events. ``lag`` is the age of ``tick`` when the batch was
    opened. ``sql`` is a self-contained query for the events that gives the same rows on any
    connection (pgq.batch_event_sql). ``tick_snapshot`` is the snapshot of ``tick``, or None if it
    is not needed. ``events_read`` counts the events that iteration has fetched so far.
    """

    id: int
    queue: str
    consumer: str
    prev_tick: int
    tick: int
    prev_tick_time: datetime
    tick_time: datetime
    seq_start: int
    seq_end: int
    lag: timedelta
    sql: str
    event_types: Collection[str] | None = None
    tick_snapshot: str | None = field(default=None, repr=False)
    events_read: int = field(default=0, init=False)
    retries: Retries = field(default_factory=Retries, init=False, repr=False)
    #: What checks its events, if the consumer has ``check_contracts``.
    validators: Validators | None = field(default=None, repr=False)
    #: Processed so that the writes of one event can be undone: event by event.
    in_pieces: bool = field(default=False, init=False, repr=False)
    #: Called with the events as they are read, if telemetry is on.
    watch: Callable[[list[Event]], None] | None = field(default=None, init=False, repr=False)
    _reader: Reader | RowsReader | None = field(default=None, init=False, repr=False)

    #: Whether the queue has the batch, so that a failure can be recorded there.
    is_of_queue: ClassVar[bool] = True

    #: The connection that reads the events, or the rows of a small batch.
    source: Connection | Sequence[bytes] = field(repr=False)
    #: Reads the events instead, if it can.
    elsewhere: Elsewhere | None = field(default=None, repr=False)

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the events. Raises PgqError if the connection fails on the way."""
        self.close()
        reader = self._reader = self._begin_to_read()
        self.events_read = 0
        try:
            while True:
                if self._reader is not reader:
                    raise PgqError(
                        "the batch was finished, or iterated anew, inside a loop over it",
                        hint="End one loop over a batch before the next, or keep a list.",
                    )
                events = reader.read(self.retries)
                if not events:
                    break
                self.events_read += len(events)
                if self.watch is not None:
                    self.watch(events)
                yield from events
        finally:
            reader.close()

    def _begin_to_read(self) -> Reader | RowsReader:
        if not isinstance(self.source, psycopg.Connection):
            return RowsReader(self.source)
        if self.elsewhere is not None and (read := self.elsewhere.read(self)) is not None:
            return read
        reader = Reader(self.source)
        reader.start(self.sql, self.event_types)
        return reader

    @property
    def retried(self) -> int:
        """The number of events that are retried."""
        return len(self.retries)

    def finish(self, conn: Connection) -> None:
        """Finish the batch, with its retries and dead letters, in ``conn``'s transaction.

        Raises BatchNotFound if it is not open any more, for instance because another process
        with the same consumer name has finished it: then roll back this one's effects.
        """
        self.close()
        if len(self.retries):
            fetch(conn, sql.EVENT_RETRY_MANY, [self.id, *self.retries.columns()])
        encoding = conn.info.parameter_status("server_encoding") or ""
        for letters in self.retries.letters(encoding):
            fetch(conn, sql.EVENT_DEAD_LETTER_MANY, [self.id, *letters])
        ((finished,),) = fetch(conn, *self._finish_batch(encoding))
        if not finished:
            raise BatchNotFound(
                f"batch {self.id} of consumer {self.consumer} on queue {self.queue} is not open",
                hint="Does the consumer run twice? Each consumer name is for one process.",
            )

    def start_over(self, *, in_pieces: bool) -> None:
        """Forget the retries and dead letters: processing starts again from the first event."""
        self.close()
        self.retries.clear()
        self.in_pieces = in_pieces

    def _finish_batch(self, encoding: str) -> tuple[bytes, Sequence[Any]]:
        return call("finish_batch", 1), (self.id,)

    def close(self) -> None:
        """Stop reading, if there is more to read."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


class CopyReader:
    """One COPY TO STDOUT, streamed.

    The server sends as fast as the messages are taken: memory holds a block of them (256 kB, or
    one row if that is larger).
    """

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._active = False
        self._closing = Lock()

    def begin(self, query: bytes) -> None:
        """Begin to read. Raises PgqError."""
        with translate_errors():
            self._conn.wait(copy_protocol.start(self._conn.pgconn, query))
        self._active = True

    def messages(self) -> list[bytes]:
        """Return the next messages, at least one; an empty list is the end. Raises PgqError."""
        if not self._active:
            return []
        with translate_errors():
            messages = self._conn.wait(copy_protocol.read(self._conn.pgconn))
        self._active = bool(messages)
        return messages

    def close(self) -> None:
        """Stop reading. The server is told to cancel, so it does not send the rest."""
        # The event loop closes generators without references at any time.
        with self._closing:
            if not self._active:
                return
            self._active = False
            try:
                self._conn.cancel_safe(timeout=_CANCEL_TIMEOUT)
                while self._conn.wait(copy_protocol.read(self._conn.pgconn)):
                    pass
            except psycopg.errors.QueryCanceled:
                pass
            except psycopg.Error:
                self._conn.close()


class Reader(CopyReader):
    """One COPY of one batch.

    The batch is the same set of rows on any connection, so the connection of its transaction stays
    free for processing.
    """

    def __init__(self, conn: Connection) -> None:
        super().__init__(conn)
        self._header = HEADER

    def start(self, batch_sql: str, event_types: Collection[str] | None) -> None:
        """Begin to read. Raises PgqError."""
        self.begin(copy_out(batch_sql, event_types).as_bytes(None))

    def read(self, retries: Retries | None) -> list[Event]:
        """Return the next events, at least one; an empty list is the end. Raises PgqError."""
        return decode_events(self.rows(), retries)

    def rows(self) -> list[bytes]:
        """Return the next events as `decode_events` takes them."""
        rows: list[bytes] = []
        while self._active and not rows:
            rows = self.messages()
            if rows and self._header:
                # The header comes in one message with the first row.
                rows[0] = rows[0].removeprefix(self._header)
                self._header = b""
            if rows and rows[-1] == TRAILER:
                rows.pop()
        return rows


class RowsReader:
    """Reader of a small batch, whose events came with it."""

    def __init__(self, rows: Sequence[bytes]) -> None:
        self._rows = rows

    def read(self, retries: Retries | None) -> list[Event]:
        """Return the events, then an empty list. Raises PgqError."""
        rows, self._rows = self._rows, ()
        return decode_events(copied(rows), retries)

    def close(self) -> None:
        """Do nothing: there is nothing to stop."""
