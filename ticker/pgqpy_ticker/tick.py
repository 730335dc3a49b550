"""The main job: ticks, soon after events arrive.

A round ticks every queue that is due, in one transaction. Between rounds this job either polls
or sleeps until a producer wakes it; see schedule.py for which.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import LiteralString

from pgqpy_ticker.config import Database
from pgqpy_ticker.connect import Connection, answering, politely
from pgqpy_ticker.metrics import Metrics
from pgqpy_ticker.problem import Pooled
from pgqpy_ticker.schedule import Budget, Schedule

# The process id tells a session of our own from one that a pooler lends us.
_ROUND: LiteralString = """
    select ticks, early, fresh > 0, extract(epoch from wait)::float8,
           extract(epoch from work)::float8, pg_catalog.pg_backend_pid(),
           pg_catalog.pg_sequence_last_value('pgq.delayed_due_nr_seq'),
           quiet_queues::text, quiet_seqs::text
    from pgq.ticker_round(%s, %s, %s::int4[], %s::bigint[])
"""

_LISTEN: LiteralString = "listen pgq_wake"
_SLEEP: LiteralString = "select pgq.ticker_sleep()"
_AWAKE: LiteralString = "select pgq.ticker_awake()"


ASK_AGAIN = 1.0
"""Seconds until a ticker that may not sleep, and so polls, asks whether it may."""


class Tick:
    """Ticks on the connection that holds the lead. Any error here ends the lead."""

    name = "tick"

    def __init__(
        self,
        connection: Connection,
        leader_pid: int,
        database: Callable[[], Database],
        ticked: Callable[[float], None],
        metrics: Metrics,
        notice_delayed: Callable[[int | None], None],
    ) -> None:
        self._connection = connection
        self._pid = leader_pid
        self._database = database
        self._ticked = ticked
        self._metrics = metrics
        self._notice_delayed = notice_delayed
        self._schedule = Schedule(time.monotonic())
        self._budget = Budget(time.monotonic())
        self._looked_at_idle = -math.inf
        # Arrays as text: as lists a thousand queues would cost more here than on the server.
        self._quiet: tuple[str | None, str | None] = None, None
        self._declared = False
        self._ask_again = 0.0

    async def run(self) -> float:
        database = self._database()
        async with answering(database):
            return await self._round(database)

    async def _round(self, database: Database) -> float:
        started = time.monotonic()
        idle_too = started - self._looked_at_idle >= database.sleep_at_most
        most_early = self._budget.early(started, database.tick_spacing)
        known = (None, None) if idle_too else self._quiet
        cursor = await self._connection.execute(_ROUND, (idle_too, most_early, *known))
        row = await cursor.fetchone()
        assert row is not None
        ticks, early, found, wait, work, pid, last_delayed, *quiet = row
        if pid != self._pid:
            raise Pooled
        self._notice_delayed(last_delayed)
        now = time.monotonic()
        if idle_too:
            self._looked_at_idle = started
            self._quiet = quiet[0], quiet[1]
        self._budget.spend(early, database.tick_spacing)
        self._ticked(now)
        self._metrics.round(database.name, ticks, now - started)
        rest = self._schedule.after_round(
            now,
            took=now - started,
            work=work,
            found=found,
            limited=early >= most_early,
            wait=wait,
            busy=database.poll_busy,
            idle=database.poll_idle,
            sleep_after=database.sleep_after,
            sleep_at_most=database.sleep_at_most,
        )
        if found:
            self._ask_again = 0.0  # it may have been these events that forbade sleep
        if not rest.asleep:
            if self._declared:
                # Only now: the ticks for the producers that called come first.
                await self._wake_up()
            return rest.seconds
        if now < self._ask_again:
            return database.poll_idle
        if await self._may_sleep():
            await self._sleep(rest.seconds, database)
        else:
            self._ask_again = now + min(database.sleep_at_most, ASK_AGAIN)
        return 0.0

    async def _may_sleep(self) -> bool:
        """Ask producers to notify, unless the database refuses sleep now.

        LISTEN came before: a producer that commits after the declaration notifies us, and the
        events of one that inserted before it are seen by ticker_sleep(), which then refuses. It
        always refuses if prepared transactions are possible, since one that notified could not be
        prepared.
        """
        cursor = await self._connection.execute(_SLEEP)
        self._declared = await cursor.fetchone() == (True,)
        return self._declared

    async def _sleep(self, seconds: float, database: Database) -> None:
        """Wait for a producer, or until it is time to check the declaration."""
        async for _ in self._connection.notifies(timeout=seconds, stop_after=1):
            self._metrics.woken(database.name)

    async def _wake_up(self) -> None:
        """Tell producers that they need not notify any more."""
        await self._connection.execute(_AWAKE)
        self._declared = False

    async def listen(self) -> None:
        """Listen to producers from now on. The previous leader may have left its sleep declared."""
        await self._connection.execute(_LISTEN)
        await self._wake_up()

    async def close(self) -> None:
        """Withdraw the declaration of sleep: the producers' notifications would not be received."""
        async with politely():
            await self._wake_up()
