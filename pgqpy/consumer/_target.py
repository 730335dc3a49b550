"""The run of a consumer with effects in another database, the target."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import IsolationLevel
from psycopg.rows import dict_row

from pgqpy._runtime.acompat import AsyncWaker
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.batch_connection_async import AsyncBatchConnection
from pgqpy._runtime.session import Session
from pgqpy.connection_async import AsyncConnection
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._loop import Loop
from pgqpy.consumer._settings import ConsumerSettings
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.errors import LostPosition, PgqError, comes_from, translate_errors
from pgqpy.log import logger


class TargetSettings(ConsumerSettings):
    """The settings of a consumer with a target, which describes them."""

    target_dsn: str
    target_isolation_level: IsolationLevel
    prepare_target: Callable[[Any], Any]


class TargetLoop(Loop):
    """The run of a consumer whose effects are in the target."""

    _consumer: TargetSettings
    _unreachable = False

    def __init__(self, consumer: TargetSettings, waker: AsyncWaker, *, strict: bool) -> None:
        super().__init__(consumer, waker, strict=strict)
        self._target = Session(
            self._io,
            consumer.target_dsn,
            application_name=f"pgqpy {consumer.consumer}"[:63],
            prepare_threshold=consumer.prepare_threshold,
            isolation_level=consumer.target_isolation_level,
        )
        self._target_losses = Backoff(0.1, consumer.reconnect_cap)

    async def target(self) -> Any:
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
        await self._io.call(target.set_isolation_level, IsolationLevel.READ_COMMITTED)
        try:
            async with self._io.block(target.transaction()):
                await self._io.call(target.execute, sql.ROTATE)
        finally:
            usual = self._consumer.target_isolation_level
            await self._io.call(target.set_isolation_level, usual)

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


class RemoteLoop(TargetLoop):
    """The run of a consumer whose batches follow the target's position."""

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
            ((self.source_is_ours,),) = await self._io.fetch(conn, sql.IS_OURS)
        statement = sql.POSITION if self.source_is_ours else sql.POSITION_OF_PGQ
        positions = await self._io.fetch(conn, statement, self._names)
        if not positions:
            # Not registered; opening a batch will raise that.
            return
        target = await self.target()
        with comes_from(self._consumer.target_dsn), translate_errors():
            if not self._prepared:
                await self._io.call(self._consumer.prepare_target, target)
                self._prepared = True
            known = self._consumer.consumer, self._consumer.queue, *positions[0]
            (batch,) = await self._io.fetch(target, sql.START_BATCHES, known, dict_row)
        if batch["batch_id"] is not None:
            await self._reopen(conn, batch)
        self._started = True

    async def _reopen(self, conn: AsyncConnection, batch: dict[str, Any]) -> None:
        """Open a batch again whose retries the target has and the queue has not."""
        known = *self._names, *batch.values()
        ((reopened,),) = await self._io.fetch(conn, sql.REOPEN_BATCH, known)
        if reopened:
            logger.warning(
                "consumer %s was moved before it could finish batch %s, whose retries are noted in"
                " the target; it is opened again",
                self._consumer.consumer,
                batch["batch_id"],
                extra=self._consumer.log_fields() | {"batch_id": batch["batch_id"]},
            )
