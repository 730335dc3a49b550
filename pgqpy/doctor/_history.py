"""Rates and their last hour, from what was read while the console or `pgqpy top` is looked at."""

from __future__ import annotations

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

    def read(self, conn: Connection, status: Status) -> None:
        """Add what has come into each queue, and what each consumer has read."""
        newest: dict[str, int] = dict(conn.execute(COUNTERS).fetchall())
        counts: dict[tuple[str, ...], float] = {("in", name): seq for name, seq in newest.items()}
        for each in status.queues:
            for consumer in each.consumers:
                if consumer.pending_events is not None and each.queue in newest:
                    position = newest[each.queue] - consumer.pending_events
                    counts["out", each.queue, consumer.consumer] = position
        self.add(status.server.time.timestamp(), counts)
