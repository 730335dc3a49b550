"""Splitting a queue's events into other queues, by one of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pgqpy
from pgqpy.errors import PgqError, QueueNotFound
from pgqpy_consumers._event_copy import Timed, endless, is_same_database, write_events
from pgqpy_consumers.settings import Configured, setting

#: The number of events held in memory.
_PIECE = 10_000

Field = Literal["type", "extra1", "extra2", "extra3", "extra4"]


class QueueSplitter(Configured, pgqpy.RemoteConsumer):
    """Writes each event of a queue into the queue that a field of it names, exactly once.

    Events keep type, data, extra fields and time, and in each queue their order, and get new
    ids. To choose the queue in another way, subclass it and override `choose`.
    """

    consumer = "queue_splitter"
    target_dsn: str = setting("The database with the queues to write; it may be the same.")
    field: Field = setting("The field that says where an event goes.", default="extra1")
    queues: Mapping[str, str] = setting(
        "The queue for each value; a value that is not here is a queue's name.",
        default={},
        example={"public.orders": "orders"},
    )
    default_queue: str | None = setting(
        "The queue for events without a value, and for values that name no queue; without it they"
        " are errors.",
        default=None,
    )
    create_queues: bool = setting("Create the queues that are missing.", default=False)
    batch_size: int | None = setting(
        "The approximate number of events a transaction.", default=10_000, at_least=1
    )

    def choose(self, event: pgqpy.Event) -> str | None:
        """The queue for an event; None: the default queue."""
        value = getattr(event, self.field)
        return self.queues.get(value, value) or None

    def prepare_target(self, target: pgqpy.Connection) -> None:
        """Raises QueueNotFound if a queue that the settings name is missing and is not to be
        created, InvalidParameter if it is the queue to read."""
        self._own = {self.queue} if is_same_database(self, target) else set()
        self._look(target)
        named = {*self.queues.values()}
        if self.default_queue:
            named.add(self.default_queue)
        for queue in sorted(named):
            self._resolve(target, queue, "the settings name it")

    def process_remote_batch(
        self, conn: pgqpy.Connection, batch: pgqpy.Batch, target: pgqpy.Connection
    ) -> None:
        """Write the batch's events, queue by queue."""
        self._look(target)
        pieces: dict[str, list[Timed]] = {}
        for count, event in enumerate(batch, 1):
            pieces.setdefault(self._queue_of(target, event), []).append((event, event.new()))
            if count % _PIECE == 0:
                self._write(target, pieces)
        self._write(target, pieces)

    def _write(self, target: pgqpy.Connection, pieces: dict[str, list[Timed]]) -> None:
        # In sorted order, so that two splitters cannot deadlock.
        for queue in sorted(pieces):
            write_events(target, queue, pieces[queue])
        pieces.clear()

    def _queue_of(self, target: pgqpy.Connection, event: pgqpy.Event) -> str:
        queue, why = self.choose(event), f"event {event.id} has it as {self.field}"
        may_be = queue in self._known or (self.create_queues and _is_name(queue))
        if self.default_queue and (queue in self._own or not may_be):
            queue, why = self.default_queue, f"event {event.id} goes there"
        if queue is None:
            raise PgqError(
                f"event {event.id} has no {self.field}, which says to which queue it goes",
                hint="Set default_queue to a queue for such events.",
            )
        return self._resolve(target, queue, why)

    def _resolve(self, target: pgqpy.Connection, queue: str, why: str) -> str:
        """The queue, if it exists or may be created."""
        if queue in self._own:
            raise endless(queue)
        if queue in self._known:
            return queue
        if not self.create_queues:
            raise QueueNotFound(
                f"there is no queue {queue}; {why}",
                hint=f"Create it (pgqpy queue create {queue}), map the value to another queue in "
                "queues, set default_queue, or set create_queues.",
            )
        pgqpy.Admin(target).create_queue(queue)
        self._known.add(queue)
        return queue

    def _look(self, target: pgqpy.Connection) -> None:
        found = target.execute("select queue_name from pgq.queue").fetchall()
        self._known = {name for (name,) in found}

    #: Queues of the target, and of them the one that is read.
    _known: set[str]
    _own: set[str]


def _is_name(value: str | None) -> bool:
    return value is not None and len(value.encode()) <= 255
