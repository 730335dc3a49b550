"""Consumers of another database that keep the order of events."""

from __future__ import annotations

from pgqpy.connection_async import AsyncConnection
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.consumer.remote_async import AsyncRemoteConsumer
from pgqpy.errors import PgqError


class AsyncSerialConsumer(AsyncRemoteConsumer):
    """A RemoteConsumer for effects whose order matters: no event is left for later.

    An event that is retried, or given up, fails the batch, which is retried as a whole.
    """

    async def _end(self, target: AsyncConnection, batch: AsyncBatch) -> None:
        if batch.retries:
            raise PgqError(
                f"an event of batch {batch.id} was put back or given up, but consumer "
                f"{batch.consumer} keeps the order of events",
                hint="Raise the error, so that the batch comes again, or use a RemoteConsumer.",
            )
        await super()._end(target, batch)
