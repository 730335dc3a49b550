"""Moving a queue's events into another database's queue, each exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import psycopg

import pgqpy
from pgqpy_consumers.event_copy import (
    Timed,
    copy_events,
    current_table,
    endless,
    is_same_database,
    write_events,
)
from pgqpy_consumers.settings import setting


class QueueMover(pgqpy.RemoteConsumer):
    """Writes a queue's events into another database's queue, each exactly once.

    Events keep type, data, extra fields, time and order, and get new ids. To change or leave
    out events, subclass it and override `convert`.
    """

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        """Settings of a queue mover."""

        dsn: str | None = setting(
            "The queue's database; without it, PGQPY_DSN or libpq's environment.", default=None
        )
        queue: str = setting("The queue to read.")
        consumer: str = setting("The consumer's name.", default="queue_mover")
        target_dsn: str = setting("The database with the queue to write.")
        target_queue: str = setting("The queue to write.")
        create_queue: bool = setting("Create the queue to write if there is none.", default=False)
        event_types: tuple[str, ...] = setting("Only events of these types; none: all.", default=())
        batch_size: int = setting("The approximate number of events a transaction.", default=50_000)

        def __post_init__(self) -> None:
            if self.batch_size < 1:
                raise ValueError("batch_size must be at least 1")

    consumer = "queue_mover"
    batch_size: int | None = 50_000
    target_queue: str = ""
    """The queue to write."""
    create_queue: bool = False
    """Create the queue to write if it does not exist."""

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """A mover with these settings."""
        made = cls(
            config.dsn,
            target_dsn=config.target_dsn,
            queue=config.queue,
            consumer=config.consumer,
        )
        made.target_queue = config.target_queue
        made.create_queue = config.create_queue
        made.event_types = config.event_types or None
        made.batch_size = config.batch_size
        return made

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
        current_table(target, self.target_queue)

    def process_remote_batch(
        self, conn: pgqpy.Connection, batch: pgqpy.Batch, target: pgqpy.Connection
    ) -> None:
        """Write the batch's events."""
        if type(self).convert is QueueMover.convert and isinstance(
            batch.source, psycopg.Connection
        ):
            copy_events(batch.source, batch, target, self.target_queue)
        else:
            write_events(target, self.target_queue, self._converted(batch))

    def _converted(self, batch: pgqpy.Batch) -> Iterator[Timed]:
        for event in batch:
            new = self.convert(event)
            if new is not None:
                yield event, new
