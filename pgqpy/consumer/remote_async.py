"""Consumers with effects in another database, the target, which get each batch exactly once."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Unpack

import psycopg
from psycopg import IsolationLevel
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from pgqpy import dsn as dsns
from pgqpy._runtime.acompat import AsyncWaker
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.batch_connection_async import AsyncBatchConnection
from pgqpy._runtime.fetch_async import async_fetch
from pgqpy._runtime.session_async import AsyncSession
from pgqpy.connection_async import AsyncConnection, async_connect
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._loop_async import AsyncLoop
from pgqpy.consumer.base_async import AsyncConsumer, ConsumerOptions
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.errors import InvalidConsumer, LostPosition, PgqError, comes_from, translate_errors
from pgqpy.event import Event
from pgqpy.log import logger


class AsyncTargetConsumer(AsyncConsumer):
    """A consumer with a connection to a target; see its subclasses."""

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

    _loop: AsyncTargetLoop

    async def target(self) -> AsyncBatchConnection:
        """Return the connection to the target, for a consumer that runs; connects if needed."""
        return await self._loop.target()

    async def unregister(self) -> bool:
        """Delete the position, the pending retries, and the target's records.

        False if there was no position.
        """
        done = await super().unregister()
        async with await async_connect(self.target_dsn) as target:
            with translate_errors():
                await target.execute(sql.FORGET, (self.consumer, self.queue))
        return done

    def _kind_of_loop(self) -> type[AsyncLoop]:
        return AsyncTargetLoop


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

    _loop: AsyncRemoteLoop
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

    def _kind_of_loop(self) -> type[AsyncLoop]:
        return AsyncRemoteLoop

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


class AsyncTargetLoop(AsyncLoop):
    """The run of a consumer whose effects are in the target."""

    _consumer: AsyncTargetConsumer
    _unreachable = False

    def __init__(self, consumer: AsyncTargetConsumer, waker: AsyncWaker, *, strict: bool) -> None:
        super().__init__(consumer, waker, strict=strict)
        self._target = AsyncSession(
            consumer.target_dsn,
            application_name=f"pgqpy {consumer.consumer}"[:63],
            prepare_threshold=consumer.prepare_threshold,
            isolation_level=consumer.target_isolation_level,
        )
        self._target_losses = Backoff(0.1, consumer.reconnect_cap)

    async def target(self) -> AsyncBatchConnection:
        """Return the connection to the target; connects if needed."""
        self._unreachable = True
        with comes_from(self._consumer.target_dsn):
            target = await self._target.working()
        self._unreachable = False
        return target

    async def close(self) -> None:
        await self._target.close()
        await super().close()

    async def _done(self, batch: AsyncBatch) -> None:
        await super()._done(batch)
        self._target_losses.reset()
        if self._consumer.target_isolation_level != IsolationLevel.READ_COMMITTED:
            # The batch is finished; if this fails, the next one notices.
            with suppress(psycopg.Error, PgqError):
                await self._rotate(await self.target())

    async def _rotate(self, target: AsyncBatchConnection) -> None:
        """Remove old records in the target; transactions with old snapshots cannot."""
        await target.set_isolation_level(IsolationLevel.READ_COMMITTED)
        try:
            async with target.transaction():
                await target.execute(sql.ROTATE)
        finally:
            await target.set_isolation_level(self._consumer.target_isolation_level)

    async def _failed(self, batch: AsyncBatch, error: Exception) -> None:
        if isinstance(error, LostPosition):
            raise error
        await super()._failed(batch, error)

    @property
    def _lost(self) -> bool:
        return self._target_lost or super()._lost

    @property
    def _target_lost(self) -> bool:
        """Whether the target could not be reached, or its connection broke."""
        return self._unreachable or self._target.lost

    async def _reconnect(self, error: Exception, batch: AsyncBatch | None = None) -> None:
        target_alone = self._target_lost and not self._session.lost
        self._unreachable = False
        await self._target.close()
        if target_alone:
            await self._rest("lost the target database", self._target_losses, error, batch)
        else:
            await super()._reconnect(error, batch)


class AsyncRemoteLoop(AsyncTargetLoop):
    """The run of a consumer whose batches follow the target's position."""

    _consumer: AsyncRemoteConsumer
    # The target would not be told of heartbeats that are skipped.
    _with_tick = True

    _prepared = False
    #: Whether source and target are known to agree on the position.
    _started = False
    #: Whether the queue is pgqpy's, not of PgQ itself.
    source_is_ours = True

    async def _join(self, conn: AsyncConnection) -> bool:
        new = await super()._join(conn)
        await self._start(conn)
        return new

    async def _open(self) -> AsyncBatch | None:
        """Open the next batch; the target knows the position before it."""
        if not self._started:
            await self._start(await self._session.working())
        return await super()._open()

    async def _failed(self, batch: AsyncBatch, error: Exception) -> None:
        # The target may have committed.
        self._started = False
        await super()._failed(batch, error)

    async def _start(self, conn: AsyncConnection) -> None:
        """Tell the target the consumer's position, if it knows none and that is no error.

        Also reopens a batch that only the target records as done.
        """
        if self._consumer.batch_size is None:
            ((self.source_is_ours,),) = await async_fetch(conn, sql.IS_OURS)
        statement = sql.POSITION if self.source_is_ours else sql.POSITION_OF_PGQ
        positions = await async_fetch(conn, statement, self._names)
        if not positions:
            # Not registered; opening a batch will raise that.
            return
        target = await self.target()
        with comes_from(self._consumer.target_dsn), translate_errors():
            if not self._prepared:
                await self._consumer.prepare_target(target)
                self._prepared = True
            known = self._consumer.consumer, self._consumer.queue, *positions[0]
            (batch,) = await async_fetch(target, sql.START_BATCHES, known, dict_row)
        if batch["batch_id"] is not None:
            await self._reopen(conn, batch)
        self._started = True

    async def _reopen(self, conn: AsyncConnection, batch: dict[str, Any]) -> None:
        """Open a batch again whose retries the target has and the queue has not."""
        ((reopened,),) = await async_fetch(conn, sql.REOPEN_BATCH, (*self._names, *batch.values()))
        if reopened:
            logger.warning(
                "consumer %s was moved before it could finish batch %s, whose retries are noted in"
                " the target; it is opened again",
                self._consumer.consumer,
                batch["batch_id"],
                extra=self._consumer.log_fields() | {"batch_id": batch["batch_id"]},
            )
