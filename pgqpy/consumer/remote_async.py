"""Consumers with effects in another database, the target, which get each batch exactly once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Unpack

from psycopg import IsolationLevel
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from pgqpy import dsn as dsns
from pgqpy._runtime.batch_connection_async import AsyncBatchConnection
from pgqpy._runtime.fetch_async import async_fetch
from pgqpy.connection_async import AsyncConnection, async_connect
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._loop import Loop
from pgqpy.consumer._target import RemoteLoop, TargetLoop, TargetSettings
from pgqpy.consumer.base_async import AsyncConsumer, ConsumerOptions
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.errors import InvalidConsumer, translate_errors
from pgqpy.event import Event
from pgqpy.log import logger


class AsyncTargetConsumer(TargetSettings, AsyncConsumer):
    """A consumer with a connection to a target; see its subclasses."""

    _loop_kind: ClassVar[Callable[..., Loop]] = TargetLoop
    _loop: TargetLoop

    target_isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    """The isolation level of the transactions in the target."""

    def __init__(
        self, dsn: str | None = None, *, target_dsn: str, **options: Unpack[ConsumerOptions]
    ) -> None:
        """``dsn`` is the queue's database, ``target_dsn`` the other; for the rest see
        AsyncConsumer.

        ``prepare_threshold`` is for both.
        """
        super().__init__(dsn, **options)
        # Empty means libpq's environment, which is the target's only if it is the queue's as well.
        if not target_dsn and self.dsn:
            raise InvalidConsumer(f"{type(self).__name__} needs a target_dsn")
        self.target_dsn = dsns.resolve(target_dsn)

    async def target(self) -> AsyncBatchConnection:
        """Return the connection to the target, for a consumer that runs; connects if needed."""
        conn: AsyncBatchConnection = await self._io.run(self._loop.target())
        return conn

    async def unregister(self) -> bool:
        """Delete the position, the pending retries, and the target's records.

        False if there was no position.
        """
        done = await super().unregister()
        async with await async_connect(self.target_dsn) as target:
            with translate_errors():
                await target.execute(sql.FORGET, (self.consumer, self.queue))
        return done


class AsyncRemoteConsumer(AsyncTargetConsumer):
    """Applies a queue's batches in another database, the target, each exactly once.

    Subclass it, and write on ``target``::

        class Copy(AsyncRemoteConsumer):
            queue = "flights"
            consumer = "copy"

            async def process_remote_batch(self, conn, batch, target):
                ...

    Each batch is one transaction of the target, in which the target also records the batch (schema
    ``pgq_ext``, installed by ``pgqpy migrate``). Then the batch is finished in the queue's
    database. If anything is killed in between, the batch is opened again, and skipped.

    Writes on ``conn``, in the queue's database, are lost if the process dies between the two
    commits: read there, and write on ``target``.

    A batch that does not follow the target's position raises TargetBehind or TargetAhead, out of
    `run`: one of the databases was restored from a backup, or the consumer was moved. Heartbeats of
    an idle queue are batches here, without events.
    """

    _loop_kind = RemoteLoop
    _loop: RemoteLoop
    _ways = "process_remote_batch", "process_remote_event"

    # --- to be overridden

    async def prepare_target(self, target: AsyncConnection) -> None:
        """Check the target's objects, or create them: called once, before any batch.

        ``target`` is in autocommit.
        """

    async def process_remote_batch(
        self, conn: AsyncConnection, batch: AsyncBatch, target: AsyncConnection
    ) -> None:
        """Apply a batch inside a transaction of ``target``, which must be left open.

        ``conn`` is the queue's database, for reading. The default calls `process_remote_event` for
        each event, and applies ``retry_policy``.
        """
        process = self._traced(batch, partial(self.process_remote_event, target))
        await self._process_each(target, batch, process)

    async def process_remote_event(self, target: AsyncConnection, event: Event) -> None:
        """Apply an event inside the batch's transaction of ``target``; see `process_event`."""
        await self._handle(target, event)

    # --- the life of a consumer

    async def process_batch(self, conn: AsyncConnection, batch: AsyncBatch) -> None:
        """Apply the batch in the target, unless it has it; do not override."""
        target = await self.target()
        async with target.batch():
            if not await self._begin(target, batch):
                await self.process_remote_batch(conn, batch, target)
                await batch.close()
                await self._end(target, batch)
        if batch.retries and self._loop.source_is_ours:
            await async_fetch(conn, sql.SETTLE_BATCH, (batch.id,))

    # --- helpers

    async def _begin(self, target: AsyncConnection, batch: AsyncBatch) -> bool:
        """Whether the target has the batch."""
        (row,) = await async_fetch(target, sql.BEGIN_BATCH, batch.identity, dict_row)
        if not row["done"]:
            return False
        logger.info(
            "batch %s is in the target database already", batch.id, extra=self.log_fields(batch)
        )
        batch.retries.load(row["retries"] or {})
        return True

    async def _end(self, target: AsyncConnection, batch: AsyncBatch) -> None:
        encoding = target.info.parameter_status("server_encoding") or ""
        retries = Jsonb(batch.retries.dump(encoding)) if batch.retries else None
        identity = batch.consumer, batch.queue, batch.id, batch.tick, batch.tick_time
        await async_fetch(
            target, sql.END_BATCH, [*identity, retries, batch.tick_snapshot, batch.seq_end]
        )


class AsyncSerialConsumer(AsyncRemoteConsumer):
    """An AsyncRemoteConsumer for effects whose order matters: no event is left for later.

    An event that is retried, or given up, fails the batch, which is retried as a whole.
    """

    async def _end(self, target: AsyncConnection, batch: AsyncBatch) -> None:
        batch.refuse_retries()
        await super()._end(target, batch)
