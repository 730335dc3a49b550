"""Consumers that share their work by keys: the events of a key in order, different keys at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from time import monotonic
from typing import Unpack, cast

from psycopg.rows import dict_row

from pgqpy._runtime.acompat import AsyncWaker
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.fetch_async import async_fetch
from pgqpy._runtime.heartbeat import Heartbeat
from pgqpy._wire.statements import call
from pgqpy.admin_async import AsyncGroupAdmin
from pgqpy.connection import Connection
from pgqpy.connection_async import AsyncConnection, async_connect
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._batch import NO_TICKS
from pgqpy.consumer._concurrency import WAITING, AsyncKeyOrder
from pgqpy.consumer._group import GroupSettings, log_parked, parking_full
from pgqpy.consumer._heartbeat import start_heartbeat
from pgqpy.consumer._loop_async import AsyncLoop
from pgqpy.consumer.base_async import AsyncConsumer, ConsumerOptions
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.consumer.group_batch_async import AsyncGroupBatch, AsyncParkedBatch
from pgqpy.errors import LeaseLost, PgqError
from pgqpy.event import Event
from pgqpy.log import logger
from pgqpy.retry import DeadLetter, Retry

#: Seconds between warnings about a partition that takes no batches.
_COMPLAIN_EVERY = 60.0


class AsyncGroupConsumer(GroupSettings, AsyncConsumer):
    """A worker of a consumer group: events of one key in order, different keys in parallel.

    The queue's events are divided by ``key`` into ``partitions``; each belongs to one of the
    running workers at a time::

        class Shipments(AsyncGroupConsumer):
            queue = "orders"
            consumer = "shipments"
            key = "ev_data::jsonb ->> 'customer'"

            async def process_event(self, conn, event):
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

    def __init__(
        self,
        dsn: str | None = None,
        *,
        worker_name: str | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """See `AsyncConsumer`; ``consumer`` is the group's."""
        super().__init__(dsn, **options)
        self._name(worker_name)

    # --- the life of a worker

    async def register(self, *, at_tick: int | None = None) -> bool:
        """Create the group, to get all events from ``start`` on, or after ``at_tick``.

        False if it exists already; it stays as it is. Raises GroupConflict if that has another
        key, and the errors of `AsyncConsumer.register`.
        """
        async with await async_connect(self.dsn) as conn:
            admin = AsyncGroupAdmin(conn)
            names = self.queue, self.consumer
            return await admin.create_group(*names, at_tick=at_tick, **self.new_group())

    async def unregister(self) -> bool:
        """Drop the group with its positions. Raises GroupNotFound, KeysParked."""
        async with await async_connect(self.dsn) as conn:
            await AsyncGroupAdmin(conn).drop_group(self.queue, self.consumer)
        return True

    # --- processing

    async def process_batch(self, conn: AsyncConnection, batch: AsyncBatch) -> None:
        """Process a batch of a partition, or parked events, inside a transaction of ``conn``.

        See `AsyncConsumer.process_batch`. The default calls `process_event` for each event, and
        parks the keys of those that fail.
        """
        batch = cast(AsyncGroupBatch, batch)
        at_once = 1
        process: Callable[[Event], Awaitable[None]]
        traced = self._traced(batch, partial(self.process_event, conn))
        process = partial(self._process_unless_parked, traced, batch)
        if self.concurrency > 1:
            if batch.keys is None:
                await batch.read_keys(self.dsn)
            batch.order = AsyncKeyOrder(self.concurrency, batch.key_of)
            process = partial(batch.order.process, process)
            at_once = self.concurrency * WAITING
        await self._process_each(conn, batch, process, at_once=at_once)

    async def _process_unless_parked(
        self, process: Callable[[Event], Awaitable[None]], batch: AsyncGroupBatch, event: Event
    ) -> None:
        if batch.is_parked(event):
            return
        await process(event)
        delay = batch.retries.take(event.id)
        if delay is not None:
            raise Retry(delay - datetime.now(UTC) if isinstance(delay, datetime) else delay)

    async def fail_event(self, batch: AsyncBatch, event: Event, error: Exception) -> None:
        """Park an event's key, or give the event up, by the error and ``retry_policy``."""
        batch = cast(AsyncGroupBatch, batch)
        if isinstance(error, DeadLetter):
            await super().fail_event(batch, event, error)
        else:
            await self._park(batch, event, error)
        if batch.order is not None:
            batch.order.end(event.id)

    async def _park(self, batch: AsyncGroupBatch, event: Event, error: Exception) -> None:
        failure, attempt = self._decide(event, error)
        if batch.keys is None:
            await batch.read_keys(self.dsn)
        batch.park(event, failure.reason, failure.delay)
        log_parked(self.log_fields(batch), event, attempt, failure)
        await self.on_event_failed(event, error, failure.delay)

    def _kind_of_loop(self) -> type[AsyncLoop]:
        return _AsyncGroupLoop


class _AsyncGroupLoop(AsyncLoop):
    """The run of a worker: batches of its partitions, in turn, and parked events that are due.

    The worker becomes a member of the group when it opens the first batch.
    """

    # Other partitions go on.
    _pauses = False
    # Free partitions, and parked keys that are due.
    _unannounced = True
    _kind = AsyncGroupBatch
    _consumer: AsyncGroupConsumer

    _member: int | None = None
    _heartbeat: Heartbeat | None = None
    _key_sql = ""
    #: The partition of the last batch: the next one comes from another.
    _after = -1
    #: Whether parked events that are due come before other batches.
    _parked_first = True
    _complained = -_COMPLAIN_EVERY

    def __init__(self, consumer: AsyncGroupConsumer, waker: AsyncWaker, *, strict: bool) -> None:
        super().__init__(consumer, waker, strict=strict)
        #: Partitions whose last batch failed: the time to go on, and the length of the next pause.
        #: The partition of parked events is None.
        self._paused: dict[int | None, tuple[float, Backoff]] = {}
        self._full: list[int] = []

    async def _join(self, conn: AsyncConnection) -> bool:
        return await AsyncGroupAdmin(conn).create_group(*self._names, **self._consumer.new_group())

    async def _open(self) -> AsyncBatch | None:
        """Open a batch of a partition, or of parked events.

        Raises ParkingFull if it is strict, and there are none since too many events are parked.
        """
        while True:
            conn = await self._asking()
            try:
                batch = await self._open_as_member(conn)
            except LeaseLost as error:
                self._warn(
                    "worker %s has lost its partitions, and joins again: %s",
                    self._consumer.worker_name,
                    error.message,
                )
                self._member = None
                continue
            break
        if self._full and monotonic() - self._complained > _COMPLAIN_EVERY:
            self._complained = monotonic()
            full = parking_full(self._consumer, self._full)
            logger.error("%s", full, extra=self._consumer.log_fields())
            await self._consumer.on_error(full, None)
        if self._full and batch is None and self._strict:
            raise parking_full(self._consumer, self._full)
        return batch

    def _more(self, batch: AsyncBatch) -> bool:
        """Whether there may be more: other partitions may have batches."""
        return True

    async def _done(self, batch: AsyncBatch) -> None:
        self._paused.pop(_partition(batch), None)

    def _pause(self, batch: AsyncBatch) -> float:
        default = 0.0, Backoff(self._consumer.backoff_first, self._consumer.backoff_cap)
        _, backoff = self._paused.get(_partition(batch), default)
        pause = backoff.pause()
        self._paused[_partition(batch)] = monotonic() + pause, backoff
        return pause

    async def close(self) -> None:
        """Leave the group, so that other workers get the partitions at once."""
        if self._heartbeat is not None:
            self._heartbeat.close(timeout=1)
        try:
            if self._member is not None:
                conn = await self._session.working()
                await async_fetch(conn, call("leave_group", 1), (self._member,))
        except PgqError as error:
            self._warn(
                "worker %s could not leave its group, which will notice: %s",
                self._consumer.worker_name,
                error.message,
            )
        finally:
            await super().close()

    async def _become_member(self, conn: AsyncConnection) -> int:
        consumer = self._consumer
        name = *self._names, consumer.worker_name
        ((member, lease),) = await async_fetch(conn, call("join_group", 3), name)
        self._member = int(member)
        if self._standby is not None:
            ((self._key_sql,),) = await async_fetch(conn, sql.KEY_SQL, (member,))
        if self._heartbeat is not None:
            self._heartbeat.close(timeout=0)
        third = lease.total_seconds() / 3
        self._heartbeat = start_heartbeat(consumer, consumer.worker_name, self._beat, third)
        return self._member

    async def _open_as_member(self, conn: AsyncConnection) -> AsyncBatch | None:
        member = self._member
        if member is None:
            member = await self._become_member(conn)
        consumer = self._consumer
        now = monotonic()
        paused = [partition for partition, (until, _) in self._paused.items() if until > now]
        may_park = None not in paused
        arguments = [
            member,
            consumer.batch_size,
            consumer.min_lag,
            None if consumer.event_types is None else list(consumer.event_types),
            sql.MOST_INLINE if self._standby is None else -1,
            self._after,
            [partition for partition in paused if partition is not None],
            may_park and self._parked_first,
        ]
        (row,) = await async_fetch(conn, sql.NEXT_GROUP_BATCH, arguments, dict_row, binary=True)
        self._parked_first = True
        self._full = row["full_partitions"]
        if row["batch_id"] is None:
            if not (row["parked"] and may_park):
                return None
            # Between two runs of parked events other batches have their turn.
            self._parked_first = False
            return await self._open_parked(conn, member)
        self._after = row["partition"]
        place = {"partition": self._after, "generation": row["generation"]}
        place["key_sql"] = self._key_sql
        batch = cast(AsyncGroupBatch, await self._made(row, **place))
        if consumer.concurrency > 1 and self._standby is None:
            batch.keys = dict(await batch.keys_on(conn))
        return batch

    async def _open_parked(self, conn: AsyncConnection, member: int) -> AsyncBatch | None:
        (row,) = await async_fetch(conn, sql.OPEN_PARKED, [member], dict_row, binary=True)
        if row["parked_id"] is None:
            return None
        # Its last event may have been given up by hand.
        time = row["first_time"] or datetime.now(UTC)
        return AsyncParkedBatch(
            **NO_TICKS,
            id=row["parked_id"],
            queue=self._consumer.queue,
            consumer=self._consumer.consumer,
            prev_tick_time=time,
            tick_time=time,
            lag=row["lag"] or timedelta(),
            validators=await self._validators(),
            source=row["events"],
            partition=row["partition"],
            generation=row["generation"],
            # They have one key.
            keys=dict.fromkeys(row["ev_ids"], ""),
            event_ids=row["ev_ids"],
            parked_ids=row["pe_ids"],
        )

    def _beat(self, conn: Connection) -> None:
        """Tell the others, in the heartbeat's thread."""
        conn.execute(call("group_heartbeat", 1), (self._member,))


def _partition(batch: AsyncBatch) -> int | None:
    return None if isinstance(batch, AsyncParkedBatch) else cast(AsyncGroupBatch, batch).partition
