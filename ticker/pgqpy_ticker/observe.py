"""Observation of queues, consumers, old transactions and foreign locks: for the metrics and the
log's warnings."""

from __future__ import annotations

import time
from typing import LiteralString, NamedTuple

from pgqpy_ticker.connect import Connection
from pgqpy_ticker.foreign import ForeignLocks
from pgqpy_ticker.jobs import Job
from pgqpy_ticker.served import NOTHING, ConsumerSeen, Observation, QueueSeen, Served

_QUEUES: LiteralString = """
    select i.queue_name,
           greatest(extract(epoch from i.ticker_lag), 0)::float8,
           coalesce(i.ev_new, 0),
           q.queue_rotations,
           greatest(extract(epoch from now() - q.queue_switch_time), 0)::float8
    from pgq.get_queue_info() i
    join pgq.queue q on q.queue_name = i.queue_name
"""

_CONSUMERS: LiteralString = """
    select queue_name, consumer_name,
           greatest(extract(epoch from lag), 0)::float8,
           greatest(extract(epoch from last_seen), 0)::float8,
           coalesce(pending_events, 0)
    from pgq.get_consumer_info()
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
        await self._foreign.look(connection)
        transactions = await self._transactions(connection)
        queues = await (await connection.execute(_QUEUES)).fetchall()
        consumers = await (await connection.execute(_CONSUMERS)).fetchall()
        oldest = dict.fromkeys(("prepared", "idle", "active", "hidden"), 0.0)
        for each in transactions:
            oldest[each.kind] = max(oldest[each.kind], each.age)
        self.served.observation = Observation(
            tuple(QueueSeen(*row) for row in queues),
            tuple(ConsumerSeen(*row) for row in consumers),
            oldest,
        )
        database = self.served.database
        self._warn([each for each in transactions if each.age >= database.old_transaction])
        return database.observe_period

    async def close(self) -> None:
        self.served.observation = NOTHING
        await super().close()

    async def _transactions(self, connection: Connection) -> list[OpenTransaction]:
        rows = await (await connection.execute(_TRANSACTIONS, (_MOST,))).fetchall()
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
