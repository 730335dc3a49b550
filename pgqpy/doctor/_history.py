"""Rates and their last hour: from ticks at first, then from what console and `pgqpy top` read."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pgqpy.connection import Connection
from pgqpy.doctor._queues import Status

#: How long is remembered, and how often something new is, in seconds.
SPAN = 3600.0
EVERY = 15.0

#: The event sequence at the newest tick of each queue: what has come in.
COUNTERS = """
select q.queue_name, t.tick_event_seq
  from pgq.queue q
 cross join lateral (
       select tick_event_seq
         from pgq.tick
        where tick_queue = q.queue_id
        order by tick_id desc
        limit 1) t
"""
#: The same at ticks of the last hour, newest first, about a minute apart. Ticks have no index by
#: time: each step goes some ticks back, as many as had taken a minute before, and fewer if that
#: leads too far.
PAST = f"""
with recursive past (queue, nr, time, seq, step, is_passed) as (
    select q.queue_id, t.tick_id, t.tick_time, t.tick_event_seq, 1::bigint, true
      from pgq.queue q
     cross join lateral (
           select *
             from pgq.tick
            where tick_queue = q.queue_id
            order by tick_id desc
            limit 1) t
     union all
    select p.queue, n.nr, n.time, n.seq,
           case when not n.is_passed then p.step / 4
                else least(p.step * 4, ceil(p.step * 60 / greatest(n.seconds, 0.01)))
            end::bigint,
           n.is_passed
      from past p
      left join lateral (
           select *, extract(epoch from p.time - tick_time) as seconds
             from pgq.tick
            where tick_queue = p.queue
              and tick_id <= p.nr - p.step
            order by tick_id desc
            limit 1) t on true
     cross join lateral (
           select t.tick_id, t.tick_time, t.tick_event_seq, t.seconds, true
            where t.seconds < 90 or p.step < 4
            union all
           select p.nr, p.time, p.seq, 0, false
            where (t.seconds < 90) is not true and p.step >= 4
           ) n (nr, time, seq, seconds, is_passed)
     where p.time > now() - interval '{SPAN} s'
       and n.nr is not null)
select q.queue_name, extract(epoch from time)::float8, seq
  from past
  join pgq.queue q on q.queue_id = queue
 where is_passed
 order by time
"""


@dataclass(slots=True)
class Series:
    """A counter that grows, and its rates a second at times in seconds."""

    counts: deque[tuple[float, float]] = field(default_factory=deque)
    rates: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, now: float, count: float) -> None:
        """Add a reading; those that come soon after another replace it."""
        if len(self.counts) > 1 and now - self.counts[-2][0] < EVERY:
            self.counts[-1] = (now, count)
            self.rates.pop()
        else:
            self.counts.append((now, count))
            if len(self.counts) == 1:
                return
        # Ticks come every few seconds, so a rate is one of at least as long as `EVERY`.
        (before, less), (after, more) = self.counts[max(len(self.counts) - 3, 0)], self.counts[-1]
        # A queue that was dropped and created again counts from the start.
        self.rates.append((after, max(more - less, 0) / max(after - before, 0.001)))
        for each in (self.counts, self.rates):
            while each[0][0] < now - SPAN:
                each.popleft()

    @property
    def rate(self) -> float | None:
        """The rate at present; None if it is not known yet."""
        return self.rates[-1][1] if self.rates else None


class History:
    """The series of one database, by name. Only the thread of the database's session uses it."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, ...], Series] = {}
        self._read_at = -math.inf

    def add(self, now: float, counts: Mapping[tuple[str, ...], float]) -> None:
        """Add readings of all counters; those that are not among them are forgotten."""
        self._series = {name: self._series.get(name) or Series() for name in counts}
        for name, count in counts.items():
            self._series[name].add(now, count)

    def __getitem__(self, name: tuple[str, ...]) -> Series:
        return self._series.get(name) or Series()

    def rate(self, names: Iterable[tuple[str, ...]]) -> float | None:
        """The sum of some rates; None if none is known yet."""
        rates = [rate for name in names if (rate := self[name].rate) is not None]
        return sum(rates) if rates else None

    def read(self, conn: Connection, status: Status, every: float = 0) -> None:
        """Add what has come into each queue, and what each consumer has read.

        Within ``every`` seconds after another reading it does nothing.
        """
        now = status.server.time.timestamp()
        if 0 <= now - self._read_at < every:
            return
        self._read_at = now
        if not self._series:
            for name, time, seq in conn.execute(PAST):
                self._series.setdefault(("in", name), Series()).add(time, seq)
        newest: dict[str, int] = dict(conn.execute(COUNTERS).fetchall())
        counts: dict[tuple[str, ...], float] = {("in", name): seq for name, seq in newest.items()}
        for each in status.queues:
            for consumer in each.consumers:
                if consumer.pending_events is not None and each.queue in newest:
                    position = newest[each.queue] - consumer.pending_events
                    counts["out", each.queue, consumer.consumer] = position
        self.add(now, counts)
