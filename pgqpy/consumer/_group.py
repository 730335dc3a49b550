"""The settings of workers of a group, and their run."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, cast

from psycopg.rows import dict_row

from pgqpy._runtime.acompat import AsyncWaker
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.checks import COUNT, INTERVAL, TEXT
from pgqpy._runtime.failure import Failure
from pgqpy._runtime.heartbeat import Heartbeat
from pgqpy._wire.statements import call
from pgqpy.admin import GroupAdmin
from pgqpy.admin_async import AsyncGroupAdmin
from pgqpy.connection import Connection
from pgqpy.connection_async import AsyncConnection
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._batch import NO_TICKS
from pgqpy.consumer._heartbeat import start_heartbeat
from pgqpy.consumer._loop import Loop
from pgqpy.consumer._settings import WorkerSettings
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.consumer.group_batch import GroupBatch, ParkedBatch
from pgqpy.consumer.group_batch_async import AsyncGroupBatch, AsyncParkedBatch
from pgqpy.errors import LeaseLost, ParkingFull, PgqError
from pgqpy.event import Event
from pgqpy.log import logger
from pgqpy.retry import ExponentialBackoff, RetryPolicy
from pgqpy.telemetry._spans import trace_fields

#: Seconds between warnings about a partition that takes no batches.
_COMPLAIN_EVERY = 60.0


class GroupSettings(WorkerSettings):
    """The settings of a `GroupConsumer`."""

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

    retry_policy: RetryPolicy | None = ExponentialBackoff()
    """The delay before a parked key is retried: seconds after an attempt (from 1) that failed with
    an error, or None: until it is unparked. Without a policy the whole batch is retried."""

    _kinds = WorkerSettings._kinds | {"key": TEXT, "lease": INTERVAL, "partitions": COUNT}

    def log_fields(self, batch: Any = None) -> dict[str, Any]:
        """Return the fields of every log line, and those of a batch."""
        partition = getattr(batch, "partition", None)
        of_batch = {} if partition is None else {"partition": partition}
        return super().log_fields(batch) | of_batch

    def new_group(self) -> dict[str, Any]:
        """Return the arguments with which its group is created."""
        names = ("key", "partitions", "lease", "park_limit", "start")
        return {name: getattr(self, name) for name in names}


class GroupLoop(Loop):
    """The run of a worker: batches of its partitions, in turn, and parked events that are due.

    The worker becomes a member of the group when it opens the first batch.
    """

    # Other partitions go on.
    _pauses = False
    # Free partitions, and parked keys that are due.
    _unannounced = True
    _batch_kinds = AsyncGroupBatch, GroupBatch
    _consumer: GroupSettings

    _member: int | None = None
    _heartbeat: Heartbeat | None = None
    _key_sql = ""
    #: The partition of the last batch: the next one comes from another.
    _after = -1
    #: Whether parked events that are due come before other batches.
    _parked_first = True
    _complained = -_COMPLAIN_EVERY

    def __init__(self, consumer: GroupSettings, waker: AsyncWaker, *, strict: bool) -> None:
        super().__init__(consumer, waker, strict=strict)
        #: Partitions whose last batch failed: the time to go on, and the length of the next pause.
        #: The partition of parked events is None.
        self._paused: dict[int | None, tuple[float, Backoff]] = {}
        self._full: list[int] = []

    async def _join(self, conn: AsyncConnection) -> bool:
        admin = self._io.either(AsyncGroupAdmin, GroupAdmin)(conn)
        group = self._consumer.new_group()
        return await self._io.call(admin.create_group, *self._names, **group)

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
            full = _parking_full(self._consumer, self._full)
            logger.error("%s", full, extra=self._consumer.log_fields())
            await self._io.call(self._consumer.on_error, full, None)
        if self._full and batch is None and self._strict:
            raise _parking_full(self._consumer, self._full)
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
                await self._io.fetch(conn, call("leave_group", 1), (self._member,))
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
        ((member, lease),) = await self._io.fetch(conn, call("join_group", 3), name)
        self._member = int(member)
        if self._standby is not None:
            ((self._key_sql,),) = await self._io.fetch(conn, sql.KEY_SQL, (member,))
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
        (row,) = await self._io.fetch(conn, sql.NEXT_GROUP_BATCH, arguments, dict_row, binary=True)
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
            batch.keys = dict(await self._io.call(batch.keys_on, conn))
        return batch

    async def _open_parked(self, conn: AsyncConnection, member: int) -> AsyncBatch | None:
        (row,) = await self._io.fetch(conn, sql.OPEN_PARKED, [member], dict_row, binary=True)
        if row["parked_id"] is None:
            return None
        # Its last event may have been given up by hand.
        time = row["first_time"] or datetime.now(UTC)
        return self._io.either(AsyncParkedBatch, ParkedBatch)(
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
    return cast(AsyncGroupBatch, batch).partition if batch.is_of_queue else None


def _parking_full(consumer: GroupSettings, full: Iterable[int]) -> ParkingFull:
    """Return the error for partitions that are full."""
    partitions = ", ".join(map(str, full))
    return ParkingFull(
        f"too many events are parked: partition {partitions} of consumer group "
        f"{consumer.consumer} on queue {consumer.queue} takes no batches",
        hint="See what fails: pgqpy group parked QUEUE GROUP. Mend it and unpark the keys, "
        "give events up, or allow more: pgqpy group set QUEUE GROUP park_limit N.",
    )


def log_parked(fields: dict[str, Any], event: Event, attempt: int, failure: Failure) -> None:
    """Log that the key of an event is parked."""
    failure.log(
        f"event {event.id}, whose key is parked,",
        attempt,
        fields | {"event_id": event.id} | trace_fields(event),
        end="waits to be unparked",
        level=logging.WARNING,
        always_traceback=True,
    )
