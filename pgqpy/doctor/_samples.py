"""Forecasts: from two looks some seconds apart, or from what the log of positions remembers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from pgqpy._runtime.words import duration
from pgqpy.connection import Connection

# The number of events after a consumer's position, with those that no tick covers yet.
_BACKLOGS = """
select c.queue_name, c.consumer_name, c.pending_events + coalesce(q.ev_new, 0), c.last_tick
  from pgq.get_consumer_info() c
  join pgq.get_queue_info() q on q.queue_name = c.queue_name
"""
# A consumer's oldest position of the last minutes whose tick is kept: its age in seconds, the
# events that were read since then, and those that came in.
_PAST = """
with position as (
    select p.pos_nr, p.pos_active, t.tick_queue, t.tick_event_seq
      from pgq.queue q
      join pgq.registration r on r.sub_queue = q.queue_id
      join pgq.consumer c on c.co_id = r.sub_consumer
      join (select * from pgq.position_0 union all select * from pgq.position_1) p
        on p.pos_registration = r.reg_id and p.pos_active > clock_timestamp() - %s
      join pgq.tick t on t.tick_queue = q.queue_id and t.tick_id = p.pos_last_tick
     where q.queue_name = %s and c.co_name = %s)
select extract(epoch from clock_timestamp() - first.pos_active)::float8,
       last.tick_event_seq - first.tick_event_seq, newest.tick_event_seq - before.tick_event_seq
  from (select * from position order by pos_nr limit 1) first
 cross join (select * from position order by pos_nr desc limit 1) last
 cross join lateral (
       select tick_event_seq from pgq.tick t
        where t.tick_queue = first.tick_queue order by tick_id desc limit 1) newest
 cross join lateral (
       select tick_event_seq from pgq.tick t
        where t.tick_queue = first.tick_queue and t.tick_time <= first.pos_active
        order by tick_id desc limit 1) before
"""
#: How far back that is, and what is too short for a rate, in seconds.
PAST, SHORT = timedelta(minutes=10), 5.0
# A slot that is not used keeps all WAL that is written.
_BYTES = """
select pg_catalog.pg_database_size(pg_catalog.current_database())
       + coalesce(
           (select max(pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), restart_lsn))
              from pg_catalog.pg_replication_slots
             where not active and not pg_catalog.pg_is_in_recovery()), 0)
"""


@dataclass(frozen=True, slots=True)
class _Sample:
    bytes: float
    backlogs: Mapping[tuple[str, str], tuple[int, int | None]]
    at: float

    @classmethod
    def take(cls, conn: Connection) -> _Sample:
        with conn.transaction():
            conn.execute("set transaction read only")
            [(size,)] = conn.execute(_BYTES)
            rows = conn.execute(_BACKLOGS).fetchall()
        backlogs = {
            (queue, consumer): (events or 0, tick) for queue, consumer, events, tick in rows
        }
        return cls(float(size), backlogs, time.monotonic())


@dataclass(frozen=True, slots=True)
class Samples:
    """What changed in some seconds."""

    before: _Sample
    after: _Sample

    @classmethod
    def take(cls, conn: Connection, seconds: float) -> Samples:
        before = _Sample.take(conn)
        time.sleep(seconds)
        return cls(before, _Sample.take(conn))

    @property
    def seconds(self) -> float:
        """The time between them."""
        return self.after.at - self.before.at

    @property
    def growth(self) -> float:
        """The bytes a second by which the database, and WAL that is kept, have grown."""
        return (self.after.bytes - self.before.bytes) / self.seconds

    def forecast(self, queue: str, consumer: str) -> str:
        """Say when a consumer will have caught up."""
        key = queue, consumer
        if key not in self.before.backlogs or key not in self.after.backlogs:
            return "no forecast: it is new"
        (before, tick), (after, newer) = self.before.backlogs[key], self.after.backlogs[key]
        if tick == newer:
            return f"finished no batch in {until(self.seconds)}"
        return _caught_up(after, (before - after) / self.seconds)


def past_forecast(conn: Connection, queue: str, consumer: str, events: int) -> str | None:
    """Say when a consumer that is some events behind will have caught up, by its last minutes.

    None if they tell nothing.
    """
    rows = conn.execute(_PAST, [PAST, queue, consumer]).fetchall()
    if not rows:
        return None
    [(seconds, read, came)] = rows
    if seconds < SHORT:
        return None
    if read <= 0:
        return f"finished no batch in {until(seconds)}"
    return _caught_up(events, (read - came) / seconds)


def _caught_up(events: int, gained: float) -> str:
    """Say when some events, which become fewer by ``gained`` a second, will be none."""
    if events == 0:
        return "caught up"
    if gained <= 0:
        return "at this rate it never catches up"
    return f"caught up in {until(events / gained)}"


def until(seconds: float) -> str:
    """Format the time until something is expected."""
    return duration(timedelta(seconds=min(seconds, 1e9)))
