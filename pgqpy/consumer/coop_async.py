"""Consumers that share their work: several workers, one position, each a batch at a time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Unpack

from pgqpy._runtime.acompat import AsyncWaker
from pgqpy._runtime.checks import POSITIVE_INTERVAL, check_settings
from pgqpy._runtime.fetch_async import async_fetch
from pgqpy.connection import Connection
from pgqpy.connection_async import AsyncConnection
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._heartbeat import start_heartbeat
from pgqpy.consumer._loop_async import AsyncLoop
from pgqpy.consumer._settings import WorkerSettings
from pgqpy.consumer.base_async import AsyncConsumer, ConsumerOptions
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.errors import PgqError


class AsyncCoopConsumer(WorkerSettings, AsyncConsumer):
    """A worker: one of several processes that share a consumer's events, whole batches each.

    Works like `AsyncConsumer`; start as many as the work needs, on as many machines. Each event
    goes to one of them, exactly once for its writes in this database. Batches are processed
    concurrently, so events are in order within a batch only. Any worker may get a retried event.

    A worker registers when `run` begins, and unregisters when `run` ends without an error. While it
    processes a batch it sends a heartbeat every quarter of ``dead_after``, on a connection of its
    own. If it is killed, another worker takes its batch over after ``dead_after``. If it was only
    slow (its machine slept, or the network was down), its own finish fails with BatchLost, and
    all its writes are rolled back. It also sends no heartbeat while it pauses after a failed batch:
    a long pause hands the batch on.

    `unregister` unregisters the consumer, with all workers.
    """

    batch_size: int | None = 1_000
    """See `AsyncConsumer`. The ticks that one worker takes at once are not shared with the
    others."""
    dead_after: timedelta = timedelta(minutes=1)
    """The silence after which a worker's batch is taken over. Equal for all workers."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        worker_name: str | None = None,
        dead_after: timedelta | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """See `AsyncConsumer`; the names and ``dead_after`` here win over the class's.

        If a worker restarts under a fixed name, it gets its open batch back at once, without
        waiting for ``dead_after``. Two workers with one name stop each other.
        """
        super().__init__(dsn, **options)
        self._name(worker_name)
        self.dead_after = self.dead_after if dead_after is None else dead_after
        check_settings(self, {"dead_after": POSITIVE_INTERVAL})

    def _kind_of_loop(self) -> type[AsyncLoop]:
        return _AsyncCoopLoop


class _AsyncCoopLoop(AsyncLoop):
    """The run of a worker, with a heartbeat while it has a batch.

    Not while it pauses after a failure: another one may take the batch over.
    """

    _consumer: AsyncCoopConsumer

    def __init__(self, consumer: AsyncCoopConsumer, waker: AsyncWaker, *, strict: bool) -> None:
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
        ((new,),) = await async_fetch(conn, sql.REGISTER_WORKER, self._member)
        return bool(new)

    async def _leave(self) -> None:
        try:
            await async_fetch(await self._session.working(), sql.UNREGISTER_WORKER, self._member)
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
