"""The run of one of several workers that share a consumer's batches."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pgqpy._runtime.acompat import AsyncWaker
from pgqpy.connection import Connection
from pgqpy.connection_async import AsyncConnection
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._heartbeat import start_heartbeat
from pgqpy.consumer._loop import Loop
from pgqpy.consumer._settings import WorkerSettings
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.errors import PgqError


class CoopSettings(WorkerSettings):
    """The settings of a `CoopConsumer`, which describes them."""

    dead_after: timedelta


class CoopLoop(Loop):
    """The run of a worker, with a heartbeat while it has a batch.

    Not while it pauses after a failure: another one may take the batch over.
    """

    _consumer: CoopSettings

    def __init__(self, consumer: CoopSettings, waker: AsyncWaker, *, strict: bool) -> None:
        super().__init__(consumer, waker, strict=strict)
        self._member = *self._names, consumer.worker_name
        # No notification is sent when a worker dies.
        self._longest_wait = quarter = consumer.dead_after.total_seconds() / 4
        self._heartbeat = start_heartbeat(
            consumer,
            consumer.worker_name,
            self._beat,
            quarter,
            needed=lambda: self._at_work_on is not None,
        )

    async def close(self) -> None:
        self._heartbeat.close(timeout=1)
        await super().close()

    async def _join(self, conn: AsyncConnection) -> bool:
        # The worker would register the consumer, too, at the newest tick.
        await super()._join(conn)
        ((new,),) = await self._io.fetch(conn, sql.REGISTER_WORKER, self._member)
        return bool(new)

    async def _leave(self) -> None:
        try:
            conn = await self._session.working()
            await self._io.fetch(conn, sql.UNREGISTER_WORKER, self._member)
        except PgqError as error:
            # A failed batch must not be skipped; other workers take over, and clean up.
            self._warn("worker %s stays registered: %s", self._member[2], error.message)

    def _statement(self) -> tuple[bytes, list[Any]]:
        consumer = self._consumer
        bounds = consumer.batch_size, self._most_inline
        options = [consumer.dead_after, consumer.min_lag, *bounds]
        return sql.NEXT_SHARED_BATCH, [*self._member, *options]

    async def _made(self, row: dict[str, Any], **more: Any) -> AsyncBatch:
        # Only its worker may finish it.
        finish = sql.FINISH_SHARED_BATCH, (*self._member, row["batch_id"])
        return await super()._made(row, finish_statement=finish)

    def _beat(self, conn: Connection) -> None:
        """Tell the others, in the heartbeat's thread."""
        batch = self._at_work_on
        if batch is None:
            return
        ((kept,),) = conn.execute(sql.KEEP_SHARED_BATCH, (*self._member, batch.id)).fetchall()
        if not kept and self._at_work_on is batch:
            self._warn("worker %s has lost batch %s to another one", self._member[2], batch.id)
