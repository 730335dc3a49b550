"""Reading batches on a standby: the primary opens and finishes them."""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import suppress
from functools import partial
from tempfile import SpooledTemporaryFile
from time import monotonic
from typing import Any, TypeVar

from psycopg import sql

from pgqpy._runtime.acompat import AsyncWaker
from pgqpy._runtime.session import Session
from pgqpy.connection_async import AsyncConnection
from pgqpy.consumer._batch import BatchFields
from pgqpy.consumer._readers import Reader
from pgqpy.consumer._readers_async import AsyncReader
from pgqpy.consumer._settings import ConsumerSettings
from pgqpy.consumer._statements import DATABASE, HAS_REPLAYED, IF_REPLAYED
from pgqpy.errors import PERMANENT, NotReplayed, PgqError, SchemaMissing
from pgqpy.log import logger

T = TypeVar("T")

#: Seconds until the first looks at the standby, which are twice as long each, up to the last.
_FIRST, _LONGEST = 0.001, 0.1
#: Seconds to wait if batches are never read on the primary; then the batch is retried.
_PATIENCE = 10.0
#: Seconds for which the primary is read, when the patience with the standby has ended.
_AGAIN = 30.0
#: The maximum bytes of a batch in memory; more is in a temporary file.
_IN_MEMORY = 16 * 1024 * 1024


class Standby:
    """Reads batches on a standby, as soon as it has replayed them."""

    def __init__(
        self, consumer: ConsumerSettings, waker: AsyncWaker, primary: Session, dsn: str
    ) -> None:
        self._consumer = consumer
        self._io = consumer._io
        self._waker = waker
        self._primary = primary
        self._dsn = dsn
        self._conn: AsyncConnection | None = None
        #: Whether the patience has ended, and the time to look at the standby again.
        self._away = False
        self._look_at = 0.0

    def read(self, batch: BatchFields) -> Any:
        """Return the events of a batch, in blocks; None: read them on the primary. For asyncio this
        is to be awaited. Raises like `use`."""
        return self._io.run(self._use(batch, partial(self._spool, batch)))

    def use(self, batch: BatchFields, work: Callable[[Any, str], Any]) -> Any:
        """Return what is done with the standby and the query of a batch; None: use the primary.

        The query fails where the batch is not replayed. The work may be repeated. For asyncio the
        work is awaited, and what is returned is to be.

        Raises the last reason, such as NotReplayed, if the primary is not wanted; and errors that
        waiting does not cure.
        """
        return self._io.run(self._use(batch, partial(self._io.call, work)))

    async def close(self) -> None:
        """Close the connection; the next use opens it again."""
        if self._conn is not None:
            await self._io.call(self._conn.close)

    async def _use(
        self, batch: BatchFields, work: Callable[[AsyncConnection, str], Awaitable[T]]
    ) -> T | None:
        patience = self._consumer.read_patience
        if patience is not None and self._away and monotonic() < self._look_at:
            return None
        until = monotonic() + (0 if self._away else _PATIENCE if patience is None else patience)
        pause = _FIRST
        while True:
            try:
                done = await self._try(batch, work)
                self._note(None)
                return done
            except PERMANENT:
                raise
            except PgqError as failed:
                error = failed
            left = until - monotonic()
            if left <= 0 or self._consumer.stopping:
                break
            await self._io.call(self._waker.wait, min(pause, left))
            pause = min(2 * pause, _LONGEST)
        if patience is None:
            raise error
        self._note(error)
        return None

    async def _try(
        self, batch: BatchFields, work: Callable[[AsyncConnection, str], Awaitable[T]]
    ) -> T:
        if self._conn is None or self._conn.closed:
            self._conn = await self._primary.connect_to_read(self._dsn)
            await self._check_copy(self._conn)
        place = self._consumer.queue, batch.tick, batch.tick_time
        ((replayed,),) = await self._io.fetch(self._conn, HAS_REPLAYED, place)
        if not replayed:
            raise NotReplayed(
                f"the standby has not replayed tick {batch.tick} of queue {batch.queue}",
                hint="Is read_dsn a standby of the queue's server, and does it follow?",
            )
        # A pooler may give the second statement to another server than the first.
        query = sql.SQL(IF_REPLAYED).format(sql.SQL(batch.sql), *map(sql.Literal, place))
        try:
            return await work(self._conn, query.as_string(None))
        except SchemaMissing as error:
            # A group's key may be a function that was created after the tick.
            raise NotReplayed(f"the standby lacks what the query needs: {error.message}") from error

    async def _spool(
        self, batch: BatchFields, conn: AsyncConnection, query: str
    ) -> Generator[Iterable[bytes]]:
        """Receive all events before the first is processed.

        While a query runs, replay cannot remove what it sees. The server cancels it after a while,
        but not if it waits for the client to take what it has sent: then replay would wait, too.
        """
        reader = self._io.either(AsyncReader, Reader)(conn)
        file = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 (closed by `_unspool`)
        try:
            await self._io.call(reader.start, query, batch.event_types)
            while rows := await self._io.call(reader.rows):
                pickle.dump(rows, file)
        except BaseException:
            file.close()
            await self._io.call(reader.close)
            raise
        return _unspool(file)

    async def _check_copy(self, conn: AsyncConnection) -> None:
        """Raise NotReplayed unless it is a copy of the database. Nodes of a cascaded queue have the
        same ticks, and other transactions."""
        primary = await self._primary.reading()
        if await self._io.fetch(conn, DATABASE) == await self._io.fetch(primary, DATABASE):
            return
        await self._io.call(conn.close)
        raise NotReplayed(
            "read_dsn is no copy of the queue's database",
            hint="Give a physical standby of the queue's server, and the same database.",
        )

    def _note(self, error: PgqError | None) -> None:
        """Log where batches are read, if that changes."""
        self._look_at = monotonic() + _AGAIN
        if self._away == (error is not None):
            return
        self._away, fields = error is not None, self._consumer.log_fields()
        if error is None:
            logger.info("batches are read on the standby again", extra=fields)
        else:
            reason = error.message.partition("\n")[0]
            logger.warning("batches are read on the primary: %s", reason, extra=fields)


def _unspool(file: SpooledTemporaryFile[bytes]) -> Generator[Iterable[bytes]]:
    with file:
        file.seek(0)
        with suppress(EOFError):
            while True:
                yield pickle.load(file)
