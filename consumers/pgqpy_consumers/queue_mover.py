"""Moving a queue's events into another database's queue, each exactly once."""

from __future__ import annotations

import psycopg

import pgqpy
from pgqpy.formats import event_table
from pgqpy_consumers._event_copy import copy_events, endless, is_same_database, write_events
from pgqpy_consumers._shared import watch_events
from pgqpy_consumers.settings import Configured, setting


class QueueMover(Configured, pgqpy.RemoteConsumer):
    """Writes a queue's events into another database's queue, each exactly once.

    Events keep type, data, extra fields, time and order, and get new ids. To change or leave
    out events, subclass it and override `convert`.
    """

    consumer = "queue_mover"
    target_dsn: str = setting("The database with the queue to write.")
    target_queue: str = setting("The queue to write.")
    create_queue: bool = setting("Create the queue to write if there is none.", default=False)
    event_types: tuple[str, ...] | None = setting(
        "Only events of these types.", default=None, example=("order.paid",)
    )
    batch_size: int | None = setting(
        "The approximate number of events a transaction.", default=50_000, at_least=1
    )

    def convert(self, event: pgqpy.Event) -> pgqpy.NewEvent | None:
        """The event to write; None to leave it out. Unless it is overridden, events are copied
        without decoding, which is quicker."""
        return event.new()

    def prepare_target(self, target: pgqpy.Connection) -> None:
        """Raises QueueNotFound if the queue to write is missing and is not to be created,
        InvalidParameter if it is the queue to read."""
        if self.target_queue == self.queue and is_same_database(self, target):
            raise endless(self.queue)
        if self.create_queue:
            pgqpy.Admin(target).create_queue(self.target_queue)
        event_table(target, self.target_queue)

    def process_remote_batch(
        self, conn: pgqpy.Connection, batch: pgqpy.Batch, target: pgqpy.Connection
    ) -> None:
        """Write the batch's events."""
        if (
            type(self).convert is QueueMover.convert
            and batch.elsewhere is None
            and isinstance(batch.source, psycopg.Connection)
        ):
            watch_events(conn, batch)
            copy_events(batch.source, batch, target, self.target_queue)
        else:
            converted = ((event, self.convert(event)) for event in batch)
            kept = ((event, new) for event, new in converted if new is not None)
            write_events(target, self.target_queue, kept)
