"""Consumers with effects that cannot be rolled back: a mail that was sent stays sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Unpack

from pgqpy import dsn as dsns
from pgqpy._runtime.checks import check_returned
from pgqpy._runtime.failure import blame
from pgqpy._runtime.fetch_async import async_fetch
from pgqpy.connection_async import AsyncConnection
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._batch import Stopped as Stopped  # noqa: PLC0414
from pgqpy.consumer.base_async import ConsumerOptions
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.consumer.remote_async import AsyncTargetConsumer
from pgqpy.event import Event

#: Batches of up to about this many events are read before the first is processed. A reader that
#: waits for slow effects would hold back the horizon of the queue's database.
_READ_AHEAD = 10_000


class AsyncTrackedConsumer(AsyncTargetConsumer):
    """Processes event by event, and records each finished one.

    For effects that no transaction can undo::

        class Mailer(AsyncTrackedConsumer):
            queue = "mails"
            consumer = "mailer"

            async def process_tracked_event(self, target, event):
                await send(event.data)

    Each event is one transaction of the target, which is the queue's own database unless
    ``target_dsn`` says otherwise: it locks the consumer's name there, checks whether the event is
    done (schema ``pgq_ext``), processes it, and records it. If the process dies the batch is opened
    again, without the finished events. So at most one event is processed twice: the one whose
    effect had happened and was not yet recorded.

    A batch that begins before the events that the target has recorded raises TargetAhead, out of
    `run`: the queue's database was restored from a backup, or the consumer was moved back.

    ``retry_policy`` applies to an event that fails; an event that is retried is not done. `stop`
    ends `run` after the current event.
    """

    batch_size: int | None = 1_000
    _ways = ("process_tracked_event",)

    def __init__(
        self,
        dsn: str | None = None,
        *,
        target_dsn: str | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """See AsyncRemoteConsumer; without ``target_dsn`` it is the queue's database."""
        target_dsn = dsns.resolve(dsn) if target_dsn is None else target_dsn
        super().__init__(dsn, target_dsn=target_dsn, **options)

    # --- to be overridden

    async def process_tracked_event(self, target: AsyncConnection, event: Event) -> None:
        """Process an event inside its own transaction of ``target``, which must be left open.

        Writes there commit together with the record that the event is done.
        """
        await self._handle(target, event)

    async def process_tracked_batch(self, target: AsyncConnection, batch: AsyncBatch) -> None:
        """Process the events that are not done yet, one after the other.

        Override it to process them in another way: each of `read_events` that `is_done` says is
        not done, with `set_done` after it. Raise `Stopped` if ``stopping`` leaves some undone.
        """
        async for event in self.read_events(batch):
            if self.stopping:
                raise Stopped
            await self._process_one(batch, event)

    async def read_events(self, batch: AsyncBatch) -> AsyncIterator[Event]:
        """Iterate over a batch's events, for `process_tracked_batch`; few are read ahead."""
        if batch.seq_end - batch.seq_start > _READ_AHEAD:
            async for event in batch:
                yield event
            return
        events = [event async for event in batch]
        for event in events:
            yield event

    # --- helpers

    async def process_batch(self, conn: AsyncConnection, batch: AsyncBatch) -> None:
        """Process the batch with the target; do not override."""
        await self.process_tracked_batch(await self.target(), batch)

    async def _process_one(self, batch: AsyncBatch, event: Event) -> None:
        target = await self.target()
        begun = False
        try:
            async with target.batch():
                if await self.is_done(target, batch, event):
                    return
                begun = True
                process: Callable[..., Awaitable[object]] = self.process_tracked_event
                check_returned(await process(target, event))
                if event.id not in batch.retries:
                    await self.set_done(target, batch, event)
        except Exception as error:
            if begun:
                blame(event.id, error)
            if not begun or target.closed or not self._is_for_policy(error):
                raise
            await self.fail_event(batch, event, error)

    async def is_done(self, target: AsyncConnection, batch: AsyncBatch, event: Event) -> bool:
        """Lock the consumer's name until the transaction ends; return whether the event is done."""
        return await self._tell(target, sql.BEGIN_EVENT, batch, event)

    async def set_done(self, target: AsyncConnection, batch: AsyncBatch, event: Event) -> None:
        """Record that the event is done."""
        await self._tell(target, sql.END_EVENT, batch, event)

    async def _tell(
        self, target: AsyncConnection, statement: bytes, batch: AsyncBatch, event: Event
    ) -> bool:
        identity = *batch.identity, event.id, event.retry_count, event.time
        return bool((await async_fetch(target, statement, identity))[0][0])
