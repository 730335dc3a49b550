"""A batch: the events between two ticks, as consumers read them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from pgqpy._runtime.fetch_async import async_fetch
from pgqpy._wire.copy_format import copied
from pgqpy._wire.statements import call
from pgqpy.connection_async import AsyncConnection
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._batch import BatchFields
from pgqpy.consumer._readers_async import AsyncReader, AsyncRowsReader
from pgqpy.consumer._standby import Standby
from pgqpy.errors import BatchNotFound, PgqError
from pgqpy.event import Event


@dataclass(eq=False, kw_only=True)
class AsyncBatch(BatchFields):
    """An open batch of a consumer; iterate over it to get its events, ordered by id.

    The events are streamed, so a batch may be larger than memory. It can be iterated again, from
    the start, and need not be read to its end; not twice at the same time.
    """

    _reader: AsyncReader | AsyncRowsReader | None = field(default=None, init=False, repr=False)

    #: The connection that reads the events, or the rows of a small batch.
    source: AsyncConnection | Sequence[bytes] = field(repr=False)
    #: Reads the events instead, if it can.
    elsewhere: Standby | None = field(default=None, repr=False)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Iterate over the events. Raises PgqError if the connection fails on the way."""
        await self.close()
        reader = self._reader = await self._begin_to_read()
        self.events_read = 0
        try:
            while True:
                if self._reader is not reader:
                    raise PgqError(
                        "the batch was finished, or iterated anew, inside a loop over it",
                        hint="End one loop over a batch before the next, or keep a list.",
                    )
                events = await reader.read(self.retries)
                if not events:
                    break
                self.events_read += len(events)
                if self.watch is not None:
                    self.watch(events)
                for event in events:
                    yield event
        finally:
            await reader.close()

    async def _begin_to_read(self) -> AsyncReader | AsyncRowsReader:
        if not isinstance(self.source, psycopg.AsyncConnection):
            return AsyncRowsReader(_block(self.source))
        if self.elsewhere is not None:
            blocks = await self.elsewhere.read(self)
            if blocks is not None:
                return AsyncRowsReader(blocks)
        reader = AsyncReader(self.source)
        await reader.start(self.sql, self.event_types)
        return reader

    async def finish(self, conn: AsyncConnection) -> None:
        """Finish the batch, with its retries and dead letters, in ``conn``'s transaction.

        Raises BatchNotFound if it is not open any more, for instance because another process
        with the same consumer name has finished it: then roll back this one's effects.
        """
        await self.close()
        if len(self.retries):
            await async_fetch(conn, sql.EVENT_RETRY_MANY, [self.id, *self.retries.columns()])
        encoding = conn.info.parameter_status("server_encoding") or ""
        for letters in self.retries.letters(encoding):
            await async_fetch(conn, sql.EVENT_DEAD_LETTER_MANY, [self.id, *letters])
        ((finished,),) = await async_fetch(conn, *self._finish_batch(encoding))
        if not finished:
            raise BatchNotFound(
                f"batch {self.id} of consumer {self.consumer} on queue {self.queue} is not open",
                hint="Does the consumer run twice? Each consumer name is for one process.",
            )

    async def start_over(self, *, in_pieces: bool) -> None:
        """Forget the retries and dead letters: processing starts again from the first event."""
        await self.close()
        self.retries.clear()
        self.in_pieces = in_pieces

    def _finish_batch(self, encoding: str) -> tuple[bytes, Sequence[Any]]:
        return self.finish_statement or (call("finish_batch", 1), (self.id,))

    async def close(self) -> None:
        """Stop reading, if there is more to read."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()


def _block(rows: Sequence[bytes]) -> Generator[Iterable[bytes]]:
    yield copied(rows)
