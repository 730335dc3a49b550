"""Two looks at the same numbers some seconds apart, from which forecasts follow."""

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
            return f"finished no batch in {duration(timedelta(seconds=self.seconds))}"
        gained = (before - after) / self.seconds
        if after == 0:
            return "caught up"
        if gained <= 0:
            return "at this rate it never catches up"
        return f"caught up in {until(after / gained)}"


def until(seconds: float) -> str:
    """Format the time until something is expected."""
    return duration(timedelta(seconds=min(seconds, 1e9)))
