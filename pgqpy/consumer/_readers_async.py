"""How the events of a batch are read: by COPY, or as rows that came with it."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable

import psycopg

from pgqpy._runtime.acompat import AsyncLock
from pgqpy._wire import copy_protocol
from pgqpy._wire.copy_format import HEADER, TRAILER, decode_events
from pgqpy._wire.statements import copy_out
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import translate_errors
from pgqpy.event import Event, Retries

#: The seconds that a cancel request may take before the connection is given up.
_CANCEL_TIMEOUT = 5.0


class AsyncCopyReader:
    """One COPY TO STDOUT, streamed.

    The server sends as fast as the messages are taken: memory holds a block of them (256 kB, or
    one row if that is larger).
    """

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn
        self._active = False
        self._closing = AsyncLock()

    async def begin(self, query: bytes) -> None:
        """Begin to read. Raises PgqError."""
        with translate_errors():
            await self._conn.wait(copy_protocol.start(self._conn.pgconn, query))
        self._active = True

    async def messages(self) -> list[bytes]:
        """Return the next messages, at least one; an empty list is the end. Raises PgqError."""
        if not self._active:
            return []
        with translate_errors():
            messages = await self._conn.wait(copy_protocol.read(self._conn.pgconn))
        self._active = bool(messages)
        return messages

    async def close(self) -> None:
        """Stop reading. The server is told to cancel, so it does not send the rest."""
        # The event loop closes generators without references at any time.
        async with self._closing:
            if not self._active:
                return
            self._active = False
            try:
                await self._conn.cancel_safe(timeout=_CANCEL_TIMEOUT)
                while await self._conn.wait(copy_protocol.read(self._conn.pgconn)):
                    pass
            except psycopg.errors.QueryCanceled:
                pass
            except psycopg.Error:
                await self._conn.close()


class AsyncReader(AsyncCopyReader):
    """One COPY of one batch.

    The batch is the same set of rows on any connection, so the connection of its transaction stays
    free for processing.
    """

    def __init__(self, conn: AsyncConnection) -> None:
        super().__init__(conn)
        self._header = HEADER

    async def start(self, batch_sql: str, event_types: Collection[str] | None) -> None:
        await self.begin(copy_out(batch_sql, event_types).as_bytes(None))

    async def read(self, retries: Retries | None) -> list[Event]:
        """Return the next events, at least one; an empty list is the end. Raises PgqError."""
        return decode_events(await self.rows(), retries)

    async def rows(self) -> list[bytes]:
        """Return the next events as `decode_events` takes them."""
        rows: list[bytes] = []
        while self._active and not rows:
            rows = await self.messages()
            if rows and self._header:
                # The header comes in one message with the first row.
                rows[0] = rows[0].removeprefix(self._header)
                self._header = b""
            if rows and rows[-1] == TRAILER:
                rows.pop()
        return rows


class AsyncRowsReader:
    """Reader of events that have been received already, in blocks."""

    def __init__(self, blocks: Generator[Iterable[bytes]]) -> None:
        self._blocks = blocks

    async def read(self, retries: Retries | None) -> list[Event]:
        return decode_events(next(self._blocks, ()), retries)

    async def close(self) -> None:
        self._blocks.close()
