"""Common parts of consumers with effects in another database, the target."""

from __future__ import annotations

from contextlib import suppress
from typing import Unpack

import psycopg
from psycopg import IsolationLevel

from pgqpy import dsn as dsns
from pgqpy._runtime.acompat import AsyncWaker
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.batch_connection_async import AsyncBatchConnection
from pgqpy._runtime.session_async import AsyncSession
from pgqpy.connection_async import async_connect
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._loop_async import AsyncLoop
from pgqpy.consumer.base_async import AsyncConsumer, ConsumerOptions
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.errors import InvalidConsumer, LostPosition, PgqError, comes_from, translate_errors


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


class AsyncTargetLoop(AsyncLoop):
    """The run of a consumer whose effects are in the target."""

    _consumer: AsyncTargetConsumer

    def __init__(self, consumer: AsyncTargetConsumer, waker: AsyncWaker, *, strict: bool) -> None:
        super().__init__(consumer, waker, strict=strict)
        self._target = AsyncSession(
            consumer.target_dsn,
            None,
            application_name=f"pgqpy {consumer.consumer}"[:63],
            prepare_threshold=consumer.prepare_threshold,
            isolation_level=consumer.target_isolation_level,
        )
        self._unreachable = False
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
