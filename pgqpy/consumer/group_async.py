"""Consumers that share their work by keys: the events of a key in order, different keys at once."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any, cast

import psycopg
from psycopg.rows import dict_row

from pgqpy._runtime.acompat import async_every
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.checks import COUNT, INTERVAL, check_settings
from pgqpy._runtime.failure import decide, storable
from pgqpy._runtime.log import logger
from pgqpy._runtime.session_async import AsyncSession
from pgqpy._wire.statements import MOST_INLINE, call, checked
from pgqpy.connection_async import AsyncConnection, async_connect
from pgqpy.consumer._event_by_event_async import AsyncEventByEvent
from pgqpy.consumer._key_order import WAITING, AsyncKeyOrder
from pgqpy.consumer.base_async import AsyncConsumer
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.consumer.group_batch_async import AsyncGroupBatch, AsyncParkedBatch
from pgqpy.errors import LeaseLost, ParkingFull, PgqError, translate_errors
from pgqpy.event import Event
from pgqpy.models import BatchStats
from pgqpy.retry import (
    DeadLetter,
    ExponentialBackoff,
    Retry,
    RetryPolicy,
)

_NEXT_BATCH = b"""
select batch.*, clock_timestamp() - batch.cur_tick_time as lag
  from pgq.next_group_batch(%s, %s, %s, %s::text[], %s, %s, %s::integer[], %s) batch
"""
_OPEN_PARKED = b"select *, clock_timestamp() - first_time as lag from pgq.open_parked(%s)"

#: Seconds between warnings about a partition that takes no batches.
_COMPLAIN_EVERY = 60.0


class AsyncGroupConsumer(AsyncConsumer):
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

    key: str = "ev_extra1"
    """The key that orders events: an immutable SQL expression over ev_type, ev_data and ev_extra1
    to ev_extra4, or ``pkey``: the primary key of captured rows. An event for which it is NULL, or
    fails, has no order with others. Fixed when the group is created."""
    partitions: int = 8
    """Their number, when the group is created; `pgqpy group resize` changes it."""
    lease: timedelta = timedelta(seconds=15)
    """The silence after which a worker loses its partitions; used when the group is created."""
    park_limit: int = 10_000
    """The maximum parked events of a partition that goes on; used when the group is created."""
    worker_name: str = ""
    """The worker's name in lists of partitions; by default machine, process and a number."""

    retry_policy: RetryPolicy | None = ExponentialBackoff()
    """The delay before a parked key is retried: seconds after an attempt (from 1) that failed with
    an error, or None: until it is unparked. Without a policy the whole batch is retried."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        queue: str | None = None,
        consumer: str | None = None,
        worker_name: str | None = None,
        listen_dsn: str | None = None,
        prepare_threshold: int | None = 5,
    ) -> None:
        """See `AsyncConsumer`; ``consumer`` is the group's."""
        super().__init__(
            dsn,
            queue=queue,
            consumer=consumer,
            listen_dsn=listen_dsn,
            prepare_threshold=prepare_threshold,
        )
        self.worker_name = (
            worker_name
            or self.worker_name
            or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        )
        self._forget()

    def _forget(self) -> None:
        self._member: int | None = None
        self._beats = False
        self._encoding = ""
        #: Partitions whose last batch failed: the time to go on, and the length of the next pause.
        self._pauses: dict[int, tuple[float, Backoff]] = {}
        self._parked_pause = (0.0, Backoff(self.backoff_first, self.backoff_cap))
        self._after = -1
        self._parked_first = True
        self._found = False
        self._full: list[int] = []
        self._complained = -_COMPLAIN_EVERY

    # --- the life of a worker

    async def register(self, *, at_tick: int | None = None) -> bool:
        """Create the group, to get all events after the newest tick, or after ``at_tick``.

        False if it exists already; it stays as it is. Raises GroupConflict if that has another
        key, QueueNotFound, TickNotFound, InvalidParameter, PermissionDenied, ConnectionFailed.
        """
        async with await async_connect(self.dsn) as conn:
            return await self._create(conn, at_tick)

    async def unregister(self) -> bool:
        """Drop the group with its positions. Raises GroupNotFound, KeysParked."""
        async with await async_connect(self.dsn) as conn:
            with translate_errors():
                await conn.execute(call("drop_group", 2), (self.queue, self.consumer))
        return True

    async def _create(self, conn: AsyncConnection, at_tick: int | None = None) -> bool:
        with translate_errors():
            cursor = await conn.execute(
                call("create_group", 7),
                checked(
                    [
                        self.queue,
                        self.consumer,
                        self.partitions,
                        self.key,
                        self.lease,
                        self.park_limit,
                        at_tick,
                    ]
                ),
            )
            ((new,),) = await cursor.fetchall()
        return bool(new)

    def _check(self) -> None:
        super()._check()
        check_settings(self, {"lease": INTERVAL, "partitions": COUNT})

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[AsyncSession]:
        async with super()._session() as session, AsyncExitStack() as self._beating:
            try:
                yield session
            finally:
                await self._quit(session)
                self._forget()

    async def _join(self, conn: AsyncConnection) -> bool:
        return await self._create(conn)

    async def _become_member(self, conn: AsyncConnection) -> int:
        with translate_errors():
            cursor = await conn.execute(
                call("join_group", 3),
                checked([self.queue, self.consumer, self.worker_name]),
            )
            ((member, lease),) = await cursor.fetchall()
        self._member = int(member)
        self._encoding = conn.info.parameter_status("server_encoding") or ""
        if not self._beats:
            self._beats = True
            await self._beating.enter_async_context(
                async_every(lease.total_seconds() / 3, self._beat)
            )
        return self._member

    async def _quit(self, session: AsyncSession) -> None:
        """Leave the group, so that other workers get the partitions at once."""
        member, self._member = self._member, None
        if member is None:
            return
        try:
            with translate_errors():
                await (await session.working()).execute(call("leave_group", 1), (member,))
        except PgqError as error:
            logger.warning(
                "worker %s could not leave its group, which will notice: %s",
                self.worker_name,
                error.message,
                extra=self._fields(),
            )

    async def _beat(self) -> None:
        """Send a heartbeat, if this worker is a member."""
        try:
            async with await async_connect(self.dsn, prepare_threshold=None) as conn:
                await conn.execute(call("group_heartbeat", 1), (self._member,))
        except (PgqError, psycopg.Error) as error:
            logger.warning(
                "worker %s cannot say that it lives: %s",
                self.worker_name,
                str(error).partition("\n")[0],
                extra=self._fields(),
            )

    # --- batches

    async def _wait(self, session: AsyncSession) -> None:
        # No notification is sent for free partitions, or for parked keys that are due.
        assert self._waker is not None
        await session.wait(self._waker, self.poll_interval, for_tick=False)

    async def _next(self, session: AsyncSession, *, tolerant: bool) -> bool:
        self._found = False
        went_on = await super()._next(session, tolerant=tolerant)
        if self._full and not self._found and not tolerant:
            raise self._parking_full()
        # Other partitions may have more.
        return went_on or self._found

    async def _open(self, session: AsyncSession) -> AsyncBatch | None:
        while True:
            conn = await session.asking()
            try:
                batch = await self._open_as_member(session, conn)
            except LeaseLost as error:
                logger.warning(
                    "worker %s has lost its partitions, and joins again: %s",
                    self.worker_name,
                    error.message,
                    extra=self._fields(),
                )
                self._member = None
                continue
            if self._full and monotonic() - self._complained > _COMPLAIN_EVERY:
                self._complained = monotonic()
                full = self._parking_full()
                logger.error("%s", full, extra=self._fields())
                await self.on_error(full, None)
            self._found = batch is not None
            return batch

    async def _open_as_member(
        self, session: AsyncSession, conn: AsyncConnection
    ) -> AsyncBatch | None:
        member = self._member
        if member is None:
            member = await self._become_member(conn)
        now = monotonic()
        may_park = now >= self._parked_pause[0]
        row = await self._row(
            conn,
            _NEXT_BATCH,
            member,
            self.batch_size,
            self.min_lag,
            None if self.event_types is None else list(self.event_types),
            MOST_INLINE,
            self._after,
            [partition for partition, (until, _) in self._pauses.items() if until > now],
            may_park and self._parked_first,
        )
        self._parked_first = True
        self._full = row["full_partitions"]
        if row["batch_id"] is None:
            if not (row["parked"] and may_park):
                return None
            # Between two runs of parked events other batches have their turn.
            self._parked_first = False
            return await self._open_parked(conn, member)
        self._after = row["partition"]
        rows = row["events"]
        batch = AsyncGroupBatch(
            id=row["batch_id"],
            queue=self.queue,
            consumer=self.consumer,
            prev_tick=row["prev_tick_id"],
            tick=row["cur_tick_id"],
            prev_tick_time=row["prev_tick_time"],
            tick_time=row["cur_tick_time"],
            seq_start=row["prev_tick_event_seq"],
            seq_end=row["cur_tick_event_seq"],
            lag=row["lag"],
            sql=row["batch_sql"],
            source=await session.reading() if rows is None else rows,
            partition=row["partition"],
            generation=row["generation"],
            types=self.event_types,
        )
        if self.concurrency > 1:
            batch.keys = await self._keys(conn, batch)
        return batch

    async def _open_parked(self, conn: AsyncConnection, member: int) -> AsyncBatch | None:
        row = await self._row(conn, _OPEN_PARKED, member)
        if row["parked_id"] is None:
            return None
        # Its last event may have been given up by hand.
        time = row["first_time"] or datetime.now(UTC)
        return AsyncParkedBatch(
            id=row["parked_id"],
            queue=self.queue,
            consumer=self.consumer,
            prev_tick=0,
            tick=0,
            prev_tick_time=time,
            tick_time=time,
            seq_start=0,
            seq_end=0,
            lag=row["lag"] or timedelta(),
            sql="",
            source=row["events"],
            partition=row["partition"],
            generation=row["generation"],
            event_ids=row["ev_ids"],
            parked_ids=row["pe_ids"],
        )

    async def _row(self, conn: AsyncConnection, statement: bytes, *arguments: Any) -> Any:
        with translate_errors():
            async with conn.cursor(row_factory=dict_row, binary=True) as cursor:
                await cursor.execute(statement, checked(arguments))
                (row,) = await cursor.fetchall()
        return row

    async def _process(self, session: AsyncSession, batch: AsyncBatch) -> BatchStats:
        stats = await super()._process(session, batch)
        assert isinstance(batch, AsyncGroupBatch)
        if isinstance(batch, AsyncParkedBatch):
            self._parked_pause = (0.0, Backoff(self.backoff_first, self.backoff_cap))
        else:
            self._pauses.pop(batch.partition, None)
        return replace(stats, retried=len(batch.parks))

    async def process_batch(self, conn: AsyncConnection, batch: AsyncBatch) -> None:
        """Process a batch of a partition, or parked events, inside a transaction of ``conn``.

        See `AsyncConsumer.process_batch`. The default calls `process_event` for each event, and
        parks the keys of those that fail.
        """
        batch = cast(AsyncGroupBatch, batch)
        lanes = 1
        if self.concurrency > 1:
            batch.order = AsyncKeyOrder(self.concurrency)
            lanes = self.concurrency * WAITING
        each = AsyncEventByEvent(
            conn,
            batch,
            partial(self._process_one, conn, batch),
            self._is_for_policy,
            partial(self.fail_event, batch),
        )
        await each.run(lanes)

    async def _process_one(
        self, conn: AsyncConnection, batch: AsyncGroupBatch, event: Event
    ) -> None:
        if batch.order is None:
            await self._process_unless_parked(conn, batch, event)
            return
        await batch.order.begin(event.id, batch.key_of(event))
        try:
            await self._process_unless_parked(conn, batch, event)
        finally:
            batch.order.leave()
        batch.order.end(event.id)

    async def _process_unless_parked(
        self, conn: AsyncConnection, batch: AsyncGroupBatch, event: Event
    ) -> None:
        if batch.is_parked(event):
            return
        await self.process_event(conn, event)
        delay = batch.retries.take(event.id)
        if delay is not None:
            raise Retry(delay - datetime.now(UTC) if isinstance(delay, datetime) else delay)

    async def fail_event(self, batch: AsyncBatch, event: Event, error: Exception) -> None:
        """Park an event's key, or give the event up, by the error and ``retry_policy``."""
        assert isinstance(batch, AsyncGroupBatch)
        if isinstance(error, DeadLetter):
            await super().fail_event(batch, event, error)
        else:
            await self._park(batch, event, error)
        if batch.order is not None:
            batch.order.end(event.id)

    async def _park(self, batch: AsyncGroupBatch, event: Event, error: Exception) -> None:
        if not self._is_for_policy(error):
            raise error
        attempt = event.retry_count + 1
        failure = decide(error, attempt, self.retry_policy)
        if batch.keys is None and not isinstance(batch, AsyncParkedBatch):
            # On a separate connection: this is not one of the event's effects.
            async with await async_connect(self.dsn, prepare_threshold=None) as conn:
                batch.keys = await self._keys(conn, batch)
        batch.park(event, storable(failure.reason, self._encoding), failure.delay)
        failure.log(
            f"event {event.id}, whose key is parked,",
            attempt,
            self._fields(batch) | {"event_id": event.id},
            end="waits to be unparked",
            level=logging.WARNING,
            always_traceback=True,
        )
        await self.on_event_failed(event, error, failure.delay)

    async def _keys(self, conn: AsyncConnection, batch: AsyncGroupBatch) -> dict[int, str]:
        """Return the keys of a batch's events."""
        with translate_errors():
            cursor = await conn.execute(call("group_batch_keys", 1), (batch.id,))
            return dict(await cursor.fetchall())

    async def _batch_failed(
        self, session: AsyncSession, batch: AsyncBatch, error: Exception
    ) -> None:
        if session.lost:
            await self._database_away(session, error, batch)
            return
        assert isinstance(batch, AsyncGroupBatch)
        if isinstance(error, LeaseLost):
            logger.warning(
                "batch %s was rolled back: %s", batch.id, error.message, extra=self._fields(batch)
            )
            return
        # Other partitions go on.
        parked = isinstance(batch, AsyncParkedBatch)
        default = (0.0, Backoff(self.backoff_first, self.backoff_cap))
        _, backoff = self._parked_pause if parked else self._pauses.get(batch.partition, default)
        pause = backoff.pause()
        until = monotonic() + pause
        if parked:
            self._parked_pause = until, backoff
        else:
            self._pauses[batch.partition] = until, backoff
        self._log_failure(batch, error, pause)
        await self.on_error(error, batch)

    async def _note_failure(
        self, session: AsyncSession, batch: AsyncBatch, error: Exception
    ) -> None:
        # The group reports parked events: the queue has no open batch for them.
        if not isinstance(batch, AsyncParkedBatch):
            await super()._note_failure(session, batch, error)

    def _parking_full(self) -> ParkingFull:
        partitions = ", ".join(map(str, self._full))
        return ParkingFull(
            f"too many events are parked: partition {partitions} of consumer group "
            f"{self.consumer} on queue {self.queue} takes no batches",
            hint="See what fails: pgqpy group parked QUEUE GROUP. Mend it and unpark the keys, "
            "give events up, or allow more: pgqpy group set QUEUE GROUP park_limit N.",
        )

    def _fields(self, batch: AsyncBatch | None = None) -> dict[str, Any]:
        fields = super()._fields(batch) | {"worker": self.worker_name}
        if isinstance(batch, AsyncGroupBatch):
            fields["partition"] = batch.partition
        return fields
