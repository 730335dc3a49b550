"""Delivery of due events to their queues: delayed ones, and retries.

The pass that copies them returns the time of the next one among those that are committed. Others
may be uncommitted: the tick job, which polls the database all the time, reports when the sequence
of delayed events has moved. Then this job polls repeatedly, at growing intervals, until their
transactions must have ended.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from typing import LiteralString

from pgqpy_ticker.connect import fetch
from pgqpy_ticker.jobs import Job
from pgqpy_ticker.served import Served

_MOVE: LiteralString = (
    "select moved, extract(epoch from next_due)::float8 from pgq.maint_delayed_events()"
)

SHORTEST = 0.01
"""Seconds between two passes: events that fall due meanwhile share one."""

MANY = 1000
"""The number of events of a pass after which more may be due."""


class Delayed(Job):
    """Sleeps until the next event is due, or until new ones are reported."""

    name = "delayed"

    def __init__(self, served: Served) -> None:
        super().__init__(served)
        self._news = asyncio.Event()
        self._newest = -math.inf
        self._last: int | None = None

    def notice(self, last: int | None) -> None:
        """Take the last number that was drawn for a delayed event."""
        if last != self._last:
            self._last = last
            self._newest = time.monotonic()
            self._news.set()

    async def run(self) -> float:
        self._news.clear()
        [(moved, next_due)] = await fetch(await self.connection(), _MOVE)
        self.served.moved += moved
        if moved >= MANY:
            return 0.0
        # An event that waits for its transaction to end waits an eighth longer at most.
        rest = min(self.served.database.retry_period, (time.monotonic() - self._newest) / 8)
        if next_due is not None:
            rest = min(rest, next_due)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), max(rest - SHORTEST, 0.0))
        return SHORTEST
