# WARNING: generated from pgqpy/consumer/batch_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""A batch: the events between two ticks, as consumers read them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from pgqpy._runtime.fetch import fetch
from pgqpy._wire.copy_format import copied
from pgqpy._wire.statements import call
from pgqpy.connection import Connection
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._batch import BatchFields
from pgqpy.consumer._readers import Reader, RowsReader
from pgqpy.consumer._standby import Standby
from pgqpy.errors import BatchNotFound, PgqError
from pgqpy.event import Event


@dataclass(eq=False, kw_only=True)
class Batch(BatchFields):
    """An open batch of a consumer; iterate over it to get its events, ordered by id.

    The events are streamed, so a batch may be larger than memory. It can be iterated again, from
    the start, and need not be read to its end; not twice at the same time.
    """

    _reader: Reader | RowsReader | None = field(default=None, init=False, repr=False)

    #: The connection that reads the events, or the rows of a small batch.
    source: Connection | Sequence[bytes] = field(repr=False)
    #: Reads the events instead, if it can.
    elsewhere: Standby | None = field(default=None, repr=False)

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
            return RowsReader(_block(self.source))
        if self.elsewhere is not None:
            blocks = self.elsewhere.read(self)
            if blocks is not None:
                return RowsReader(blocks)
        reader = Reader(self.source)
        reader.start(self.sql, self.event_types)
        return reader

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
        return self.finish_statement or (call("finish_batch", 1), (self.id,))

    def close(self) -> None:
        """Stop reading, if there is more to read."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def _block(rows: Sequence[bytes]) -> Generator[Iterable[bytes]]:
    yield copied(rows)
