"""Common parts of consumers with effects in another database, the target."""

from __future__ import annotations

from contextlib import suppress
from typing import Unpack

import psycopg
from psycopg import IsolationLevel

from pgqpy import dsn as dsns
from pgqpy._runtime.batch_connection_async import AsyncBatchConnection
from pgqpy._runtime.session_async import AsyncSession
from pgqpy.connection_async import async_connect
from pgqpy.consumer._loop_async import AsyncBatches
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

    _target: AsyncTargetBatches

    async def target(self) -> AsyncBatchConnection:
        """Return the connection to the target, for a consumer that runs; connects if needed."""
        return await self._target.connection()

    async def unregister(self) -> bool:
        """Delete the position, the pending retries, and the target's records.

        False if there was no position.
        """
        done = await super().unregister()
        async with await async_connect(self.target_dsn) as target:
            with translate_errors():
                await target.execute(_FORGET, (self.consumer, self.queue))
        return done

    def _batches(self) -> AsyncBatches:
        self._target = AsyncTargetBatches(self)
        return self._target


class AsyncTargetBatches(AsyncBatches):
    """Batches whose effects are in the target."""

    _consumer: AsyncTargetConsumer

    def __init__(self, consumer: AsyncTargetConsumer) -> None:
        super().__init__(consumer)
        self._session = AsyncSession(
            consumer.target_dsn,
            None,
            application_name=f"pgqpy {consumer.consumer}"[:63],
            prepare_threshold=consumer.prepare_threshold,
            isolation_level=consumer.target_isolation_level,
        )
        self._unreachable = False

    async def connection(self) -> AsyncBatchConnection:
        """Return the connection to the target; connects if needed."""
        self._unreachable = True
        with comes_from(self._consumer.target_dsn):
            target = await self._session.working()
        self._unreachable = False
        return target

    @property
    def target_lost(self) -> bool:
        """Whether the target could not be reached, or its connection broke."""
        return self._unreachable or self._session.lost

    async def done(self, batch: AsyncBatch) -> None:
        await super().done(batch)
        if self._consumer.target_isolation_level != IsolationLevel.READ_COMMITTED:
            # The batch is finished; if this fails, the next one notices.
            with suppress(psycopg.Error, PgqError):
                await self._rotate(await self.connection())

    async def _rotate(self, target: AsyncBatchConnection) -> None:
        """Remove old records in the target; transactions with old snapshots cannot."""
        await target.set_isolation_level(IsolationLevel.READ_COMMITTED)
        try:
            async with target.transaction():
                await target.execute(_ROTATE)
        finally:
            await target.set_isolation_level(self._consumer.target_isolation_level)

    async def failed(self, batch: AsyncBatch, error: Exception) -> None:
        """Raise errors about the target's position: waiting does not cure them."""
        if isinstance(error, LostPosition):
            raise error

    async def disconnect(self) -> None:
        self._unreachable = False
        await self._session.close()

    async def close(self, session: AsyncSession) -> None:
        await self._session.close()


_ROTATE = b"select pgq_ext.rotate()"
_FORGET = b"select pgq_ext.forget_consumer(%s, %s)"
