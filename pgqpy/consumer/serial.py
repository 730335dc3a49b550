# WARNING: generated from pgqpy/consumer/serial_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Consumers of another database that keep the order of events."""

from __future__ import annotations

from pgqpy.connection import Connection
from pgqpy.consumer.batch import Batch
from pgqpy.consumer.remote import RemoteConsumer
from pgqpy.errors import PgqError


class SerialConsumer(RemoteConsumer):
    """A RemoteConsumer for effects whose order matters: no event is left for later.

    An event that is retried, or given up, fails the batch, which is retried as a whole.
    """

    def _end(self, target: Connection, batch: Batch) -> None:
        if batch.retries:
            raise PgqError(
                f"an event of batch {batch.id} was put back or given up, but consumer "
                f"{batch.consumer} keeps the order of events",
                hint="Raise the error, so that the batch comes again, or use a RemoteConsumer.",
            )
        super()._end(target, batch)
