# WARNING: generated from pgqpy/consumer/group_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Consumers that share their work by keys: the events of a key in order, different keys at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Unpack, cast

from pgqpy.admin import GroupAdmin
from pgqpy.connection import Connection, connect
from pgqpy.consumer._concurrency import WAITING, KeyOrder
from pgqpy.consumer._group import GroupLoop, GroupSettings, log_parked
from pgqpy.consumer.base import Consumer, ConsumerOptions
from pgqpy.consumer.batch import Batch
from pgqpy.consumer.group_batch import GroupBatch
from pgqpy.event import Event
from pgqpy.retry import DeadLetter, Retry


class GroupConsumer(GroupSettings, Consumer):
    """A worker of a consumer group: events of one key in order, different keys in parallel.

    The queue's events are divided by ``key`` into ``partitions``; each belongs to one of the
    running workers at a time::

        class Shipments(GroupConsumer):
            queue = "orders"
            consumer = "shipments"
            key = "ev_data::jsonb ->> 'customer'"

            def process_event(self, conn, event):
                ...

    Start as many as the work needs, up to one a partition, on as many machines. Workers find each
    other in the database: partitions move when a worker comes or goes. A worker that is killed, or
    cut off, loses its partitions after ``lease``; if it still lives, its finish fails with
    LeaseLost, and all its writes are rolled back. Effects in this database happen exactly once.

    If `process_event` raises, the event's key is *parked*: this event and the later ones of the
    key are put aside, and retried in order after the delay of ``retry_policy``; once that gives
    up, when they are unparked (``pgqpy group unpark``). Other keys go on. With more than
    ``park_limit`` parked events a partition takes no batches until there are fewer. To go on
    with the key without the event, raise `DeadLetter`. `Event.retry` parks, too, and like an error
    it undoes the writes for the event.

    asyncio: with ``concurrency`` events of different keys are processed at once, those of a key one
    after the other.

    If `process_batch` is overridden, it gets whole batches of a partition; then nothing is parked.
    """

    _loop_kind = GroupLoop

    def __init__(
        self,
        dsn: str | None = None,
        *,
        worker_name: str | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """See `Consumer`; ``consumer`` is the group's."""
        super().__init__(dsn, **options)
        self._name(worker_name)

    # --- the life of a worker

    def register(self, *, at_tick: int | None = None) -> bool:
        """Create the group, to get all events from ``start`` on, or after ``at_tick``.

        False if it exists already; it stays as it is. Raises GroupConflict if that has another
        key, and the errors of `Consumer.register`.
        """
        with connect(self.dsn) as conn:
            admin = GroupAdmin(conn)
            names = self.queue, self.consumer
            return admin.create_group(*names, at_tick=at_tick, **self.new_group())

    def unregister(self) -> bool:
        """Drop the group with its positions. Raises GroupNotFound, KeysParked."""
        with connect(self.dsn) as conn:
            GroupAdmin(conn).drop_group(self.queue, self.consumer)
        return True

    # --- processing

    def process_batch(self, conn: Connection, batch: Batch) -> None:
        """Process a batch of a partition, or parked events, inside a transaction of ``conn``.

        See `Consumer.process_batch`. The default calls `process_event` for each event, and
        parks the keys of those that fail.
        """
        batch = cast(GroupBatch, batch)
        at_once = 1
        process: Callable[[Event], None]
        traced = self._traced(batch, partial(self.process_event, conn))
        process = partial(self._process_unless_parked, traced, batch)
        if self.concurrency > 1:
            if batch.keys is None:
                batch.read_keys(self.dsn)
            batch.order = KeyOrder(self.concurrency, batch.key_of)
            process = partial(batch.order.process, process)
            at_once = self.concurrency * WAITING
        self._process_each(conn, batch, process, at_once=at_once)

    def _process_unless_parked(
        self, process: Callable[[Event], None], batch: GroupBatch, event: Event
    ) -> None:
        if batch.is_parked(event):
            return
        process(event)
        delay = batch.retries.take(event.id)
        if delay is not None:
            raise Retry(delay - datetime.now(UTC) if isinstance(delay, datetime) else delay)

    def fail_event(self, batch: Batch, event: Event, error: Exception) -> None:
        """Park an event's key, or give the event up, by the error and ``retry_policy``."""
        batch = cast(GroupBatch, batch)
        if isinstance(error, DeadLetter):
            super().fail_event(batch, event, error)
        else:
            self._park(batch, event, error)
        if batch.order is not None:
            batch.order.end(event.id)

    def _park(self, batch: GroupBatch, event: Event, error: Exception) -> None:
        failure, attempt = self._decide(event, error)
        if batch.keys is None:
            batch.read_keys(self.dsn)
        batch.park(event, failure.reason, failure.delay)
        log_parked(self.log_fields(batch), event, attempt, failure)
        self.on_event_failed(event, error, failure.delay)
