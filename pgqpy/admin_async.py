"""Administration of queues, consumers and groups: one method for each SQL function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from pgqpy._runtime.fetch_async import async_fetch, require_psycopg
from pgqpy._wire.statements import call, start_text
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import BatchNotFound, GroupNotFound, QueueNotFound
from pgqpy.models import (
    BatchInfo,
    ConsumerInfo,
    ConsumerPause,
    Contract,
    ContractInfo,
    EventPlace,
    GroupInfo,
    GroupPartition,
    NextBatch,
    ParkedKey,
    QueueGrant,
    QueueInfo,
    Start,
    _Row,
)

R = TypeVar("R", bound=_Row)


class _AsyncCalls:
    """Calls of SQL functions on a connection of the caller's."""

    def __init__(self, conn: AsyncConnection) -> None:
        require_psycopg(self, conn)
        self.conn = conn

    async def _value(self, function: str, *arguments: Any) -> Any:
        return next(iter((await self._rows(function, *arguments))[0].values()))

    async def _list(self, kind: type[R], function: str, *arguments: Any) -> list[R]:
        return [kind.from_row(row) for row in await self._rows(function, *arguments)]

    async def _rows(self, function: str, *arguments: Any) -> list[dict[str, Any]]:
        return await async_fetch(self.conn, call(function, len(arguments)), arguments, dict_row)


class AsyncAdmin(_AsyncCalls):
    """PgQ's functions on a connection of the caller's, in the caller's transaction.

    Each method calls the SQL function of its name (see the SQL reference) and raises a
    `pgqpy.errors.PgqError` for what that refuses, for instance QueueNotFound.
    """

    async def version(self) -> str:
        """The version of the installed schema."""
        return str(await self._value("version"))

    # --- queues

    async def create_queue(self, queue: str) -> bool:
        """Create a queue; False if it exists already."""
        return bool(await self._value("create_queue", queue))

    async def drop_queue(self, queue: str, *, force: bool = False) -> None:
        """Drop a queue and its events; with ``force`` its consumers too.

        Raises QueueInUse if it has consumers, delayed events or dead letters and ``force`` is not
        set.
        """
        await self._value("drop_queue", queue, force)

    async def set_queue_config(self, queue: str, param: str, value: object) -> None:
        """Change a setting of a queue, for instance ``ticker_max_lag`` to ``'1 second'``."""
        text = None if value is None else str(value)
        await self._value("set_queue_config", queue, param, text)

    async def get_queue_info(self, queue: str | None = None) -> list[QueueInfo]:
        """Return all queues, or one. Raises QueueNotFound if that one does not exist."""
        found = await self._list(QueueInfo, "get_queue_info", *_given(queue))
        if queue is not None and not found:
            raise QueueNotFound(f"queue {queue!r} does not exist")
        return found

    async def restrict_queue(self, queue: str, *, restricted: bool = True) -> None:
        """Restrict a queue to roles with grants, or open it again; see docs/permissions.md."""
        await self._value("restrict_queue", queue, restricted)

    async def grant_queue(
        self, queue: str, actions: Sequence[str], role: str, *, consumer: str | None = None
    ) -> None:
        """Grant a role actions on a queue: ``insert``, ``consume``, ``read``, ``admin``.

        ``consume`` is granted for one consumer or group, None: for all.
        """
        await self._value("grant_queue", queue, list(actions), role, consumer)

    async def revoke_queue(
        self, queue: str, actions: Sequence[str], role: str, *, consumer: str | None = None
    ) -> None:
        """Revoke what `grant_queue` has granted; ``consumer`` None: for all, named ones too."""
        await self._value("revoke_queue", queue, list(actions), role, consumer)

    async def get_queue_grants(self, queue: str | None = None) -> list[QueueGrant]:
        """Return the grants on all queues, or on one."""
        return await self._list(QueueGrant, "get_queue_grants", queue)

    async def set_contract(
        self,
        queue: str,
        ev_type: str | None,
        schema: Mapping[str, Any],
        *,
        compatibility: Literal["none", "backward", "full"] | None = None,
        enforced: bool | None = None,
    ) -> int:
        """Add a version to the contract for a type of event; return the version in force.

        ``ev_type`` None: for all types without a contract of their own. Raises InvalidContract,
        IncompatibleContract. See docs/contracts.md.
        """
        arguments = queue, ev_type, Jsonb(schema), compatibility, enforced
        return int(await self._value("set_contract", *arguments))

    async def drop_contract(self, queue: str, ev_type: str | None) -> None:
        """Drop a contract with all its versions. Raises ContractNotFound."""
        await self._value("drop_contract", queue, ev_type)

    async def get_contract(
        self, queue: str, ev_type: str | None, version: int | None = None
    ) -> Contract | None:
        """Return the contract that holds for a type, in force or a ``version``; None if none does.

        Raises ContractNotFound if there is no such version.
        """
        return next(iter(await self._list(Contract, "get_contract", queue, ev_type, version)), None)

    async def get_contract_info(self, queue: str | None = None) -> list[ContractInfo]:
        """Return the contracts of all queues, or of one."""
        return await self._list(ContractInfo, "get_contract_info", queue)

    # --- consumers

    async def register_consumer(
        self, queue: str, consumer: str, start: int | Start = "now"
    ) -> bool:
        """Register a consumer; False if it is registered already, and stays where it is.

        Its events begin at ``start``, see `find_tick`, which says what it raises.
        """
        place = _given(None if start == "now" else start_text(start))
        return bool(await self._value("register_consumer", queue, consumer, *place))

    async def register_consumer_at(self, queue: str, consumer: str, tick_id: int) -> bool:
        """Register a consumer at a tick, or move it there; False if it was registered already.

        Raises TickNotFound if the tick does not exist (any more).
        """
        return bool(await self._value("register_consumer_at", queue, consumer, tick_id))

    async def find_tick(self, queue: str, start: int | Start) -> int:
        """Return the tick after which a consumer is to begin to get all events from some point on.

        ``start`` is "first" (the oldest events there are), "now" (those to come), a time, or the
        number of an event. Raises InvalidParameter for one in the future or without a time zone,
        TickNotFound if rotation may have removed events from then on, NoTicks.
        """
        return int(await self._value("find_tick", queue, start_text(start)))

    async def unregister_consumer(self, queue: str, consumer: str) -> int:
        """Unregister a consumer with its retries; return the number of registrations removed."""
        return int(await self._value("unregister_consumer", queue, consumer))

    async def pause_consumer(self, queue: str, consumer: str) -> bool:
        """Pause a consumer or a group: it opens no batch until `resume_consumer`.

        An open batch is still finished. What it has not read waits for it, and rotation with that.
        False if it was paused already.
        """
        return bool(await self._value("pause_consumer", queue, consumer))

    async def resume_consumer(self, queue: str, consumer: str) -> bool:
        """End the pause of a consumer or a group; False if it was not paused."""
        return bool(await self._value("resume_consumer", queue, consumer))

    async def get_paused_consumers(self, queue: str | None = None) -> list[ConsumerPause]:
        """Return the consumers and the partitions of groups that are paused, of a queue or all."""
        return await self._list(ConsumerPause, "get_paused_consumers", queue)

    async def get_consumer_info(
        self, queue: str | None = None, consumer: str | None = None
    ) -> list[ConsumerInfo]:
        """Return all consumers, those of a queue, or one on a queue."""
        return await self._list(ConsumerInfo, "get_consumer_info", *_given(queue, consumer))

    async def where_is_event(self, queue: str, event_id: int) -> list[EventPlace]:
        """Return where an event is: first the event itself, then for each consumer and group."""
        return await self._list(EventPlace, "where_is_event", queue, event_id)

    # --- batches, without `Consumer`

    async def next_batch(self, queue: str, consumer: str) -> int | None:
        """Open the next batch, or return the open one; its id, None if there is none yet."""
        batch_id: int | None = await self._value("next_batch", queue, consumer)
        return batch_id

    async def next_batch_info(self, queue: str, consumer: str) -> NextBatch | None:
        """Open the next batch like `next_batch`; return it with its ticks."""
        return await self._next("next_batch_info", queue, consumer)

    async def next_batch_custom(
        self,
        queue: str,
        consumer: str,
        *,
        min_lag: timedelta | None = None,
        min_count: int | None = None,
        min_interval: timedelta | None = None,
    ) -> NextBatch | None:
        """Open a batch of events older than ``min_lag``: ``min_count`` of them, or
        ``min_interval``."""
        return await self._next(
            "next_batch_custom", queue, consumer, min_lag, min_count, min_interval
        )

    async def next_batch_upto(
        self, queue: str, consumer: str, max_count: int, *, min_lag: timedelta | None = None
    ) -> NextBatch | None:
        """Open a batch of as many ticks as hold about ``max_count`` events."""
        return await self._next("next_batch_upto", queue, consumer, max_count, min_lag)

    async def get_batch_info(self, batch_id: int) -> BatchInfo:
        """Describe an open batch. Raises BatchNotFound."""
        rows = await self._rows("get_batch_info", batch_id)
        if not rows or rows[0]["queue_name"] is None:
            raise BatchNotFound(f"batch {batch_id} is not open")
        return BatchInfo.from_row(rows[0])

    async def batch_event_sql(self, batch_id: int) -> str:
        """Return a query for the batch's events; any connection may run it, even on a standby."""
        return str(await self._value("batch_event_sql", batch_id))

    async def finish_batch(self, batch_id: int) -> bool:
        """Move the consumer past the batch; False if it is not open."""
        return bool(await self._value("finish_batch", batch_id))

    async def event_retry(self, batch_id: int, event_id: int, when: int | datetime) -> bool:
        """Schedule a retry of an event in seconds, or at a time; False if one is scheduled already.

        Raises EventNotFound if it is not in the batch.
        """
        return bool(await self._value("event_retry", batch_id, event_id, when))

    async def batch_retry(self, batch_id: int, seconds: int) -> int:
        """Schedule a retry of the whole batch in ``seconds`` seconds; return the number of
        events."""
        return int(await self._value("batch_retry", batch_id, seconds))

    # --- manual ticks

    async def ticker(self, queue: str | None = None) -> int | None:
        """Tick one queue and return the tick's id, or all that are due and return their number."""
        tick: int | None = await self._value("ticker", *_given(queue))
        return tick

    async def force_tick(self, queue: str) -> int | None:
        """Make the next call of the ticker tick; return the id of the last tick.

        None if there is no such queue, or if its ticker is paused or external.
        """
        tick: int | None = await self._value("force_tick", queue)
        return tick

    async def maint_retry_events(self) -> int:
        """Put due retries back into their queues; return their number."""
        return int(await self._value("maint_retry_events"))

    async def _next(self, function: str, *arguments: Any) -> NextBatch | None:
        row = (await self._rows(function, *arguments))[0]
        return None if row["batch_id"] is None else NextBatch.from_row(row)


class AsyncGroupAdmin(_AsyncCalls):
    """Consumer groups, on the caller's connection and in its transaction.

    Raises a `pgqpy.errors.PgqError` for what the SQL functions refuse, for instance GroupNotFound.
    """

    async def create_group(
        self,
        queue: str,
        group_name: str,
        *,
        key: str,
        partitions: int = 8,
        lease: timedelta = timedelta(seconds=15),
        park_limit: int = 10_000,
        at_tick: int | None = None,
        start: int | Start = "now",
    ) -> bool:
        """Create a group behind ``at_tick``, or at ``start``; False if it exists already.

        ``start`` is as for `AsyncAdmin.find_tick`. ``key`` is described at `GroupConsumer`. Raises
        InvalidParameter if it cannot be a key, and GroupConflict if the group has another.
        """
        place = at_tick, start_text(start)
        return bool(
            await self._value(
                "create_group", queue, group_name, partitions, key, lease, park_limit, *place
            )
        )

    async def drop_group(self, queue: str, group_name: str, *, force: bool = False) -> None:
        """Drop a group with its positions; with ``force`` its parked events too.

        Raises KeysParked if it has parked events and ``force`` is not set.
        """
        await self._value("drop_group", queue, group_name, force)

    async def set_group_config(
        self, queue: str, group_name: str, param: str, value: object
    ) -> None:
        """Change ``lease`` or ``park_limit`` of a group."""
        await self._value("set_group_config", queue, group_name, param, str(value))

    async def resize_group(self, queue: str, group_name: str, partitions: int) -> int | None:
        """Change the number of partitions; return the tick that all must reach first, None if done.

        Its workers take the partitions there. Setting the present number cancels a resize that has
        not happened yet.
        """
        tick: int | None = await self._value("resize_group", queue, group_name, partitions)
        return tick

    async def get_group_info(
        self, queue: str | None = None, group_name: str | None = None
    ) -> list[GroupInfo]:
        """Return all groups, those of a queue, or one. Raises GroupNotFound if it does not
        exist."""
        rows = await self._rows("get_group_info", queue, group_name)
        if group_name is not None and queue is not None and not rows:
            raise GroupNotFound(
                f"there is no consumer group {group_name!r} on queue {queue!r}",
                hint="Create it with create_group, or run a worker.",
            )
        return [GroupInfo.from_row(row) for row in rows]

    async def get_group_partitions(self, queue: str, group_name: str) -> list[GroupPartition]:
        """Return the partitions of a group, by number."""
        return await self._list(GroupPartition, "get_group_partitions", queue, group_name)

    async def get_parked_keys(self, queue: str, group_name: str) -> list[ParkedKey]:
        """Return the parked keys of a group, the longest parked first."""
        return await self._list(ParkedKey, "get_parked_keys", queue, group_name)

    async def unpark_key(self, queue: str, group_name: str, key: str | None = None) -> int:
        """Retry a parked key, or all, now, in order; return the number of keys."""
        return int(await self._value("unpark_key", queue, group_name, key))

    async def give_up_parked(
        self, queue: str, group_name: str, key: str, *, most: int | None = 1
    ) -> int:
        """Make the first events of a parked key dead letters, None: of all; return their number.

        The rest of the key is retried now.
        """
        return int(await self._value("give_up_parked", queue, group_name, key, most))


def _given(*arguments: Any) -> tuple[Any, ...]:
    """Return the arguments up to the first omitted one: PgQ overloads instead of defaulting."""
    return arguments[: arguments.index(None)] if None in arguments else arguments
