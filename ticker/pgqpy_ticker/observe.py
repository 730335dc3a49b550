"""Observation of queues, consumers, old transactions and foreign locks: for the metrics and the
log's warnings."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, LiteralString, NamedTuple, TypeVar

from pgqpy_ticker.connect import Connection, fetch
from pgqpy_ticker.foreign import ForeignLocks
from pgqpy_ticker.jobs import Job
from pgqpy_ticker.served import (
    NOTHING,
    ConsumerSeen,
    Observation,
    QueueSeen,
    Served,
    TaskQueueSeen,
)

_QUEUES: LiteralString = """
    select i.queue_name,
           greatest(extract(epoch from i.ticker_lag), 0)::float8,
           coalesce(i.ev_new, 0),
           q.queue_rotations,
           greatest(extract(epoch from now() - q.queue_switch_time), 0)::float8,
           coalesce(i.ev_per_sec, 0),
           d.delayed_events,
           d.retry_events
    from pgq.get_queue_info() i
    join pgq.queue q on q.queue_name = i.queue_name
    join pgq.get_delayed_info() d on d.queue_name = i.queue_name
"""

_CONSUMERS: LiteralString = """
    select i.queue_name, i.consumer_name,
           greatest(extract(epoch from i.lag), 0)::float8,
           greatest(extract(epoch from i.last_seen), 0)::float8,
           coalesce(i.pending_events, 0),
           coalesce(f.attempts, 0),
           (select count(*)
              from (select from pgq.dead_letter d
                     where d.dl_queue = i.queue_name and d.dl_consumer = i.consumer_name
                     limit 10000) d)
    from pgq.get_consumer_info() i
    left join pgq.failing_consumer f
      on f.queue_name = i.queue_name and f.consumer_name = i.consumer_name
"""

# Tenants are counted with their queue.
_TASK_QUEUES: LiteralString = """
    select split_part(i.queue_name, '/', 1),
           coalesce(sum(i.available), 0)::int8, coalesce(sum(i.claimed), 0)::int8,
           coalesce(sum(i.scheduled), 0)::int8, coalesce(sum(i.held), 0)::int8,
           coalesce(sum(i.stopped), 0)::int8,
           greatest(coalesce(extract(epoch from now() - min(i.oldest)), 0), 0)::float8,
           sum(s.pushed)::int8, sum(s.claimed)::int8, sum(s.finished)::int8, sum(s.popped)::int8,
           sum(s.failed_attempts)::int8, sum(s.failed)::int8, sum(s.released)::int8,
           sum(s.moved)::int8, sum(s.deleted)::int8
    from pgq_task.get_queue_info() i
    join pgq_task.get_statistics() s on s.queue_name = i.queue_name
    group by 1
"""

# Only transactions with an id hold up rotation, but those of all databases do: a snapshot lists
# the running transactions of the whole cluster. Of other roles' sessions, a role without
# pg_read_all_stats sees that there is an id, but neither state nor age.
_TRANSACTIONS: LiteralString = """
    select 'prepared' as kind, gid as holder,
           extract(epoch from clock_timestamp() - prepared)::float8 as age,
           database::text, owner::text, transaction::text
    from pg_catalog.pg_prepared_xacts
    union all
    select case when xact_start is null then 'hidden'
                when state like 'idle in transaction%%' then 'idle'
                else 'active' end,
           'pid ' || pid, extract(epoch from clock_timestamp() - xact_start)::float8,
           datname::text, usename::text, backend_xid::text
    from pg_catalog.pg_stat_activity
    where backend_xid is not null and pid <> pg_catalog.pg_backend_pid()
    order by age desc nulls first
    limit %s
"""

_MOST = 1000
#: A measurement of more than this many seconds takes at most that share of the time.
_LONG = 0.1
_SHARE = 0.01
#: The queues, consumers and task queues that have numbers of their own.
MOST_SEEN = 1000

Seen = TypeVar("Seen", QueueSeen, ConsumerSeen, TaskQueueSeen)


class OpenTransaction(NamedTuple):
    """A transaction with an id: rotation waits for it, wherever in the cluster it is.

    ``kind`` is prepared, idle (in transaction), active, or hidden: our role may not see its state,
    nor its start, and ``age`` counts from when we first noticed it.
    """

    kind: str
    holder: str
    age: float
    database: str | None
    role: str | None


class Observe(Job):
    """Stores an observation for the metrics; warns once of each old transaction."""

    name = "observe"

    def __init__(self, served: Served, foreign: ForeignLocks) -> None:
        super().__init__(served)
        self._log = served.log()
        self._foreign = foreign
        self._warned: set[tuple[str, str]] = set()
        self._first_seen: dict[str, float] = {}

    async def run(self) -> float:
        connection = await self.connection()
        began = time.monotonic()
        await self._foreign.look(connection)
        transactions = await self._transactions(connection)
        queues = [QueueSeen(*row) for row in await fetch(connection, _QUEUES)]
        consumers = [ConsumerSeen(*row) for row in await fetch(connection, _CONSUMERS)]
        tasks = [TaskQueueSeen(*row) for row in await fetch(connection, _TASK_QUEUES)]
        oldest = dict.fromkeys(("prepared", "idle", "active", "hidden"), 0.0)
        for each in transactions:
            oldest[each.kind] = max(oldest[each.kind], each.age)
        self.served.observation = Observation(few(queues), few(consumers), oldest, few(tasks))
        database = self.served.database
        self._warn([each for each in transactions if each.age >= database.old_transaction])
        took = time.monotonic() - began
        return max(database.observe_period, took / _SHARE if took > _LONG else 0.0)

    async def close(self) -> None:
        self.served.observation = NOTHING
        await super().close()

    async def _transactions(self, connection: Connection) -> list[OpenTransaction]:
        rows = await fetch(connection, _TRANSACTIONS, _MOST)
        now = time.monotonic()
        self._first_seen = {xid: self._first_seen.get(xid, now) for *_, xid in rows}
        # The wall clock may have been set back since it began.
        return [
            OpenTransaction(
                kind, holder, max(now - self._first_seen[xid], age or 0.0), database, role
            )
            for kind, holder, age, database, role, xid in rows
        ]

    def _warn(self, old: list[OpenTransaction]) -> None:
        current = {(each.kind, each.holder) for each in old}
        for each in old:
            if (each.kind, each.holder) not in self._warned:
                fields = each._asdict()
                fields["in_database"] = fields.pop("database")
                self._log.warning("an old transaction holds up rotation", extra=fields)
        for kind, holder in self._warned - current:
            self._log.info("an old transaction has ended", extra={"kind": kind, "holder": holder})
        self._warned = current


def few(seen: Iterable[Seen]) -> tuple[Seen, ...]:
    """Return the first ones by name, and the others as one called ``_OTHER``: with their sums, and
    the greatest of their ages."""
    first: list[Any] = sorted(seen)
    if len(first) <= MOST_SEEN:
        return tuple(first)
    others = first[MOST_SEEN - 1 :]
    kind: Any = type(others[0])
    columns = zip(kind._fields, zip(*others, strict=True), strict=True)
    other = kind(*(_together(name, values) for name, values in columns))
    return (*first[: MOST_SEEN - 1], other)


def _together(name: str, values: tuple[Any, ...]) -> Any:
    if isinstance(values[0], str):
        return "_OTHER"
    return max(values) if name.endswith("_age") or name in ("lag", "last_seen") else sum(values)
