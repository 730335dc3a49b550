"""Collecting events: when enough are waiting for a batch, and how much one batch may hold.

Nothing here opens a batch or leaves a transaction open: waiting events block no other session.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import LiteralString

from psycopg import sql
from psycopg.rows import class_row

import pgqpy
from pgqpy.errors import translate_errors

# The waiting range ends at the latest with the first tick beyond the limits of a batch. A heartbeat
# has no new events; nor, by the sequences, has a tick that brings only late commits.
_WAITING: LiteralString = """
select s.sub_batch is not null as opened,
       l.tick_id as start, l.tick_snapshot::text as start_snapshot,
       e.tick_id as end, e.tick_snapshot::text as end_snapshot,
       e.tick_event_seq - l.tick_event_seq as events,
       clock_timestamp() - coalesce(f.tick_time, n.tick_time) as age
  from pgq.queue q
  join pgq.subscription s on s.sub_queue = q.queue_id
  join pgq.consumer c on c.co_id = s.sub_consumer
  join pgq.tick l on l.tick_queue = q.queue_id and l.tick_id = s.sub_last_tick
  left join lateral (
       select * from pgq.tick
        where tick_queue = q.queue_id and tick_id > l.tick_id
        order by tick_id
        limit 1) n on true
  left join lateral (
       select * from pgq.tick
        where tick_queue = q.queue_id and tick_id > l.tick_id
          and tick_event_seq > l.tick_event_seq
        order by tick_id
        limit 1) f on true
  left join lateral (
       (select * from pgq.tick
         where tick_queue = q.queue_id and tick_id > l.tick_id
           and tick_event_seq > l.tick_event_seq + %(most)s
         order by tick_id
         limit 1)
       union all
       (select * from pgq.tick
         where tick_queue = q.queue_id and tick_id > l.tick_id
         order by tick_id desc
         limit 1)
       order by tick_id
       limit 1) e on true
 where q.queue_name = %(queue)s
   and c.co_name = %(consumer)s
"""

# The length of a text stored compressed or out of line is known without reading it.
_SIZES = sql.SQL("""
select ev_id,
       coalesce(octet_length(ev_type), 0) + coalesce(octet_length(ev_data), 0)
       + coalesce(octet_length(ev_extra1), 0) + coalesce(octet_length(ev_extra2), 0)
       + coalesce(octet_length(ev_extra3), 0) + coalesce(octet_length(ev_extra4), 0) as bytes
  from ({events}) e
""")
_SUM = sql.SQL("select coalesce(sum(bytes), 0)::int8 from ({sizes}) s")
# Up to the first event that exceeds the limit.
_FIT = sql.SQL("""
select count(*)
  from (select sum(bytes) over (order by ev_id) as total from ({sizes}) s) t
 where total <= {most}::numeric
""")

#: The limit where there is none: a backlog that large is a batch, whatever the bounds say.
_MANY = 1_000_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """The conditions a `SparkConsumer` waits for, and the limits of a batch; None is no bound."""

    collect_events: int | None
    collect_bytes: int | None
    collect_for: timedelta | None
    batch_size: int | None
    batch_bytes: int | None

    def __post_init__(self) -> None:
        if self.collecting and self.batch_size is None:
            raise TypeError("collecting takes several ticks at once: give batch_size a number")
        if self.collect_for is None and (self.collect_events or self.collect_bytes):
            raise TypeError(
                "collect_events and collect_bytes need collect_for, the longest that an event may"
                " wait: a queue that falls quiet would keep its last events for ever, and what"
                " waits holds up rotation"
            )

    @property
    def collecting(self) -> bool:
        """Whether batches wait for any condition."""
        return self.collect_for is not None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The range behind a consumer's position, up to the newest tick or the limits of a batch."""

    opened: bool
    """A batch is open already; it comes first."""
    start: int
    start_snapshot: str
    end: int | None
    end_snapshot: str | None
    events: int | None
    """By the event sequence: includes events of other types and those rolled back."""
    age: timedelta | None
    """The age of the first tick that brought any of them."""


class Collector:
    """Checks how much has been collected for a consumer."""

    def __init__(self, queue: str, consumer: str, bounds: Bounds) -> None:
        self._queue = queue
        self._consumer = consumer
        self._bounds = bounds
        self._measured: tuple[Waiting, int] | None = None

    def is_enough(self, conn: pgqpy.Connection) -> bool:
        """Whether to ask for a batch now, even if one is open or has no events. Raises the server's
        errors, as a PgqError."""
        bounds = self._bounds
        now = self._look(conn)
        if now is None or now.opened:
            return True
        if now.events is None or now.age is None:
            return False
        if bounds.collect_for is not None and now.age >= bounds.collect_for:
            return True
        if now.events >= (bounds.collect_events or bounds.batch_size or _MANY):
            return True
        return bounds.collect_bytes is not None and self._bytes(conn, now) >= bounds.collect_bytes

    def most_events(self, conn: pgqpy.Connection) -> int | None:
        """The maximum number of events of a batch now, by ``batch_size`` and ``batch_bytes``."""
        bounds = self._bounds
        if bounds.batch_bytes is None:
            return bounds.batch_size
        now = self._look(conn)
        if now is None or now.opened or not now.events:
            return bounds.batch_size
        query = _FIT.format(
            sizes=self._sizes(conn, now.start, now.start_snapshot, now),
            most=sql.Literal(bounds.batch_bytes),
        )
        return min(max(self._number(conn, query), 1), bounds.batch_size or _MANY)

    def _look(self, conn: pgqpy.Connection) -> Waiting | None:
        with translate_errors(), conn.cursor(row_factory=class_row(Waiting)) as cursor:
            return cursor.execute(
                _WAITING,
                {
                    "queue": self._queue,
                    "consumer": self._consumer,
                    "most": self._bounds.batch_size or _MANY,
                },
            ).fetchone()

    def _bytes(self, conn: pgqpy.Connection, now: Waiting) -> int:
        """The size of the waiting events, in bytes; each event is measured once."""
        tick, snapshot, size = now.start, now.start_snapshot, 0
        if self._measured is not None and self._measured[0].start == now.start:
            before, size = self._measured
            assert before.end is not None
            assert before.end_snapshot is not None
            tick, snapshot = before.end, before.end_snapshot
        if tick != now.end:
            size += self._number(conn, _SUM.format(sizes=self._sizes(conn, tick, snapshot, now)))
            self._measured = now, size
        return size

    def _sizes(
        self, conn: pgqpy.Connection, tick: int, snapshot: str, now: Waiting
    ) -> sql.Composed:
        with translate_errors():
            row = conn.execute(
                "select pgq.snapshot_range_sql(%s, %s, %s, %s, %s)",
                (self._queue, tick, snapshot, now.end, now.end_snapshot),
            ).fetchone()
        assert row is not None
        return _SIZES.format(events=sql.SQL(row[0].removesuffix(" order by 1")))

    def _number(self, conn: pgqpy.Connection, query: sql.Composed) -> int:
        with translate_errors():
            row = conn.execute(query).fetchone()
        assert row is not None
        return int(row[0])
