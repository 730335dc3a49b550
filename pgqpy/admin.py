# WARNING: generated from pgqpy/admin_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Administration of queues, consumers and groups: one method for each SQL function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from pgqpy._runtime.fetch import fetch, require_psycopg
from pgqpy._wire.statements import call, start_text
from pgqpy.connection import Connection
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


class _Calls:
    """Calls of SQL functions on a connection of the caller's."""

    def __init__(self, conn: Connection) -> None:
        require_psycopg(self, conn)
        self.conn = conn

    def _value(self, function: str, *arguments: Any) -> Any:
        return next(iter((self._rows(function, *arguments))[0].values()))

    def _list(self, kind: type[R], function: str, *arguments: Any) -> list[R]:
        return [kind.from_row(row) for row in self._rows(function, *arguments)]

    def _rows(self, function: str, *arguments: Any) -> list[dict[str, Any]]:
        return fetch(self.conn, call(function, len(arguments)), arguments, dict_row)


class Admin(_Calls):
    """PgQ's functions on a connection of the caller's, in the caller's transaction.

    Each method calls the SQL function of its name (see the SQL reference) and raises a
    `pgqpy.errors.PgqError` for what that refuses, for instance QueueNotFound.
    """

    def version(self) -> str:
        """The version of the installed schema."""
        return str(self._value("version"))

    # --- queues

    def create_queue(self, queue: str) -> bool:
        """Create a queue; False if it exists already."""
        return bool(self._value("create_queue", queue))

    def drop_queue(self, queue: str, *, force: bool = False) -> None:
        """Drop a queue and its events; with ``force`` its consumers too.

        Raises QueueInUse if it has consumers, delayed events or dead letters and ``force`` is not
        set.
        """
        self._value("drop_queue", queue, force)

    def set_queue_config(self, queue: str, param: str, value: object) -> None:
        """Change a setting of a queue, for instance ``ticker_max_lag`` to ``'1 second'``."""
        text = None if value is None else str(value)
        self._value("set_queue_config", queue, param, text)

    def get_queue_info(self, queue: str | None = None) -> list[QueueInfo]:
        """Return all queues, or one. Raises QueueNotFound if that one does not exist."""
        found = self._list(QueueInfo, "get_queue_info", *_given(queue))
        if queue is not None and not found:
            raise QueueNotFound(f"queue {queue!r} does not exist")
        return found

    def restrict_queue(self, queue: str, *, restricted: bool = True) -> None:
        """Restrict a queue to roles with grants, or open it again; see docs/permissions.md."""
        self._value("restrict_queue", queue, restricted)

    def grant_queue(
        self, queue: str, actions: Sequence[str], role: str, *, consumer: str | None = None
    ) -> None:
        """Grant a role actions on a queue: ``insert``, ``consume``, ``read``, ``admin``.

        ``consume`` is granted for one consumer or group, None: for all.
        """
        self._value("grant_queue", queue, list(actions), role, consumer)

    def revoke_queue(
        self, queue: str, actions: Sequence[str], role: str, *, consumer: str | None = None
    ) -> None:
        """Revoke what `grant_queue` has granted; ``consumer`` None: for all, named ones too."""
        self._value("revoke_queue", queue, list(actions), role, consumer)

    def get_queue_grants(self, queue: str | None = None) -> list[QueueGrant]:
        """Return the grants on all queues, or on one."""
        return self._list(QueueGrant, "get_queue_grants", queue)

    def set_contract(
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
        return int(self._value("set_contract", *arguments))

    def drop_contract(self, queue: str, ev_type: str | None) -> None:
        """Drop a contract with all its versions. Raises ContractNotFound."""
        self._value("drop_contract", queue, ev_type)

    def get_contract(
        self, queue: str, ev_type: str | None, version: int | None = None
    ) -> Contract | None:
        """Return the contract that holds for a type, in force or a ``version``; None if none does.

        Raises ContractNotFound if there is no such version.
        """
        return next(iter(self._list(Contract, "get_contract", queue, ev_type, version)), None)

    def get_contract_info(self, queue: str | None = None) -> list[ContractInfo]:
        """Return the contracts of all queues, or of one."""
        return self._list(ContractInfo, "get_contract_info", queue)

    # --- consumers

    def register_consumer(self, queue: str, consumer: str, start: int | Start = "now") -> bool:
        """Register a consumer; False if it is registered already, and stays where it is.

        Its events begin at ``start``, see `find_tick`, which says what it raises.
        """
        place = _given(None if start == "now" else start_text(start))
        return bool(self._value("register_consumer", queue, consumer, *place))

    def register_consumer_at(self, queue: str, consumer: str, tick_id: int) -> bool:
        """Register a consumer at a tick, or move it there; False if it was registered already.

        Raises TickNotFound if the tick does not exist (any more).
        """
        return bool(self._value("register_consumer_at", queue, consumer, tick_id))

    def find_tick(self, queue: str, start: int | Start) -> int:
        """Return the tick after which a consumer is to begin to get all events from some point on.

        ``start`` is "first" (the oldest events there are), "now" (those to come), a time, or the
        number of an event. Raises InvalidParameter for one in the future or without a time zone,
        TickNotFound if rotation may have removed events from then on, NoTicks.
        """
        return int(self._value("find_tick", queue, start_text(start)))

    def unregister_consumer(self, queue: str, consumer: str) -> int:
        """Unregister a consumer with its retries; return the number of registrations removed."""
        return int(self._value("unregister_consumer", queue, consumer))

    def pause_consumer(self, queue: str, consumer: str) -> bool:
        """Pause a consumer or a group: it opens no batch until `resume_consumer`.

        An open batch is still finished. What it has not read waits for it, and rotation with that.
        False if it was paused already.
        """
        return bool(self._value("pause_consumer", queue, consumer))

    def resume_consumer(self, queue: str, consumer: str) -> bool:
        """End the pause of a consumer or a group; False if it was not paused."""
        return bool(self._value("resume_consumer", queue, consumer))

    def get_paused_consumers(self, queue: str | None = None) -> list[ConsumerPause]:
        """Return the consumers and the partitions of groups that are paused, of a queue or all."""
        return self._list(ConsumerPause, "get_paused_consumers", queue)

    def get_consumer_info(
        self, queue: str | None = None, consumer: str | None = None
    ) -> list[ConsumerInfo]:
        """Return all consumers, those of a queue, or one on a queue."""
        return self._list(ConsumerInfo, "get_consumer_info", *_given(queue, consumer))

    def where_is_event(self, queue: str, event_id: int) -> list[EventPlace]:
        """Return where an event is: first the event itself, then for each consumer and group."""
        return self._list(EventPlace, "where_is_event", queue, event_id)

    # --- batches, without `Consumer`

    def next_batch(self, queue: str, consumer: str) -> int | None:
        """Open the next batch, or return the open one; its id, None if there is none yet."""
        batch_id: int | None = self._value("next_batch", queue, consumer)
        return batch_id

    def next_batch_info(self, queue: str, consumer: str) -> NextBatch | None:
        """Open the next batch like `next_batch`; return it with its ticks."""
        return self._next("next_batch_info", queue, consumer)

    def next_batch_custom(
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
        return self._next("next_batch_custom", queue, consumer, min_lag, min_count, min_interval)

    def next_batch_upto(
        self, queue: str, consumer: str, max_count: int, *, min_lag: timedelta | None = None
    ) -> NextBatch | None:
        """Open a batch of as many ticks as hold about ``max_count`` events."""
        return self._next("next_batch_upto", queue, consumer, max_count, min_lag)

    def get_batch_info(self, batch_id: int) -> BatchInfo:
        """Describe an open batch. Raises BatchNotFound."""
        rows = self._rows("get_batch_info", batch_id)
        if not rows or rows[0]["queue_name"] is None:
            raise BatchNotFound(f"batch {batch_id} is not open")
        return BatchInfo.from_row(rows[0])

    def batch_event_sql(self, batch_id: int) -> str:
        """Return a query for the batch's events; any connection may run it, even on a standby."""
        return str(self._value("batch_event_sql", batch_id))

    def finish_batch(self, batch_id: int) -> bool:
        """Move the consumer past the batch; False if it is not open."""
        return bool(self._value("finish_batch", batch_id))

    def event_retry(self, batch_id: int, event_id: int, when: int | datetime) -> bool:
        """Schedule a retry of an event in seconds, or at a time; False if one is scheduled already.

        Raises EventNotFound if it is not in the batch.
        """
        return bool(self._value("event_retry", batch_id, event_id, when))

    def batch_retry(self, batch_id: int, seconds: int) -> int:
        """Schedule a retry of the whole batch in ``seconds`` seconds; return the number of
        events."""
        return int(self._value("batch_retry", batch_id, seconds))

    # --- manual ticks

    def ticker(self, queue: str | None = None) -> int | None:
        """Tick one queue and return the tick's id, or all that are due and return their number."""
        tick: int | None = self._value("ticker", *_given(queue))
        return tick

    def force_tick(self, queue: str) -> int | None:
        """Make the next call of the ticker tick; return the id of the last tick.

        None if there is no such queue, or if its ticker is paused or external.
        """
        tick: int | None = self._value("force_tick", queue)
        return tick

    def maint_retry_events(self) -> int:
        """Put due retries back into their queues; return their number."""
        return int(self._value("maint_retry_events"))

    def _next(self, function: str, *arguments: Any) -> NextBatch | None:
        row = (self._rows(function, *arguments))[0]
        return None if row["batch_id"] is None else NextBatch.from_row(row)


class GroupAdmin(_Calls):
    """Consumer groups, on the caller's connection and in its transaction.

    Raises a `pgqpy.errors.PgqError` for what the SQL functions refuse, for instance GroupNotFound.
    """

    def create_group(
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

        ``start`` is as for `Admin.find_tick`. ``key`` is described at `GroupConsumer`. Raises
        InvalidParameter if it cannot be a key, and GroupConflict if the group has another.
        """
        place = at_tick, start_text(start)
        return bool(
            self._value(
                "create_group", queue, group_name, partitions, key, lease, park_limit, *place
            )
        )

    def drop_group(self, queue: str, group_name: str, *, force: bool = False) -> None:
        """Drop a group with its positions; with ``force`` its parked events too.

        Raises KeysParked if it has parked events and ``force`` is not set.
        """
        self._value("drop_group", queue, group_name, force)

    def set_group_config(self, queue: str, group_name: str, param: str, value: object) -> None:
        """Change ``lease`` or ``park_limit`` of a group."""
        self._value("set_group_config", queue, group_name, param, str(value))

    def resize_group(self, queue: str, group_name: str, partitions: int) -> int | None:
        """Change the number of partitions; return the tick that all must reach first, None if done.

        Its workers take the partitions there. Setting the present number cancels a resize that has
        not happened yet.
        """
        tick: int | None = self._value("resize_group", queue, group_name, partitions)
        return tick

    def get_group_info(
        self, queue: str | None = None, group_name: str | None = None
    ) -> list[GroupInfo]:
        """Return all groups, those of a queue, or one. Raises GroupNotFound if it does not
        exist."""
        rows = self._rows("get_group_info", queue, group_name)
        if group_name is not None and queue is not None and not rows:
            raise GroupNotFound(
                f"there is no consumer group {group_name!r} on queue {queue!r}",
                hint="Create it with create_group, or run a worker.",
            )
        return [GroupInfo.from_row(row) for row in rows]

    def get_group_partitions(self, queue: str, group_name: str) -> list[GroupPartition]:
        """Return the partitions of a group, by number."""
        return self._list(GroupPartition, "get_group_partitions", queue, group_name)

    def get_parked_keys(self, queue: str, group_name: str) -> list[ParkedKey]:
        """Return the parked keys of a group, the longest parked first."""
        return self._list(ParkedKey, "get_parked_keys", queue, group_name)

    def unpark_key(self, queue: str, group_name: str, key: str | None = None) -> int:
        """Retry a parked key, or all, now, in order; return the number of keys."""
        return int(self._value("unpark_key", queue, group_name, key))

    def give_up_parked(self, queue: str, group_name: str, key: str, *, most: int | None = 1) -> int:
        """Make the first events of a parked key dead letters, None: of all; return their number.

        The rest of the key is retried now.
        """
        return int(self._value("give_up_parked", queue, group_name, key, most))


def _given(*arguments: Any) -> tuple[Any, ...]:
    """Return the arguments up to the first omitted one: PgQ overloads instead of defaulting."""
    return arguments[: arguments.index(None)] if None in arguments else arguments
