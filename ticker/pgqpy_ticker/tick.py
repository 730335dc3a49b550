"""The main job: ticks, soon after events arrive.

A round ticks every queue that is due, in one transaction. Between rounds this job either polls
or sleeps until a producer wakes it; see schedule.py for which.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import LiteralString

import psycopg

from pgqpy_ticker.config import Database
from pgqpy_ticker.connect import Connection, answering, fetch
from pgqpy_ticker.problem import Pooled
from pgqpy_ticker.schedule import Budget, Schedule
from pgqpy_ticker.served import Served

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

_LAST_WORDS = 2.0
"""The seconds that a clean end of the session may take."""


class Tick:
    """Ticks on the connection that holds the lead. Any error here ends the lead."""

    def __init__(
        self,
        served: Served,
        connection: Connection,
        leader_pid: int,
        ticked: Callable[[], None],
        notice_delayed: Callable[[int | None], None],
    ) -> None:
        self._served = served
        self._connection = connection
        self._pid = leader_pid
        self._ticked = ticked
        self._notice_delayed = notice_delayed
        self._schedule = Schedule(time.monotonic())
        self._budget = Budget(time.monotonic())
        self._looked_at_idle = -math.inf
        # Arrays as text: as lists a thousand queues would cost more here than on the server.
        self._quiet: tuple[str | None, str | None] = None, None
        self._declared = False
        self._ask_again = 0.0

    async def run(self) -> None:
        """Listen to producers, and tick until an error, or until cancelled."""
        async with answering(self._served.database):
            await self._connection.execute(_LISTEN)
            # The previous leader may have left its sleep declared.
            await self._wake_up()
        try:
            while True:
                database = self._served.database
                async with answering(database):
                    pause = await self._round(database)
                await asyncio.sleep(pause)
        finally:
            # Producers' notifications would not be received any more. If the connection is lost or
            # slow, the server ends the session anyway once we are gone.
            with suppress(psycopg.Error, TimeoutError):
                async with asyncio.timeout(_LAST_WORDS):
                    await self._wake_up()

    async def _round(self, database: Database) -> float:
        """Tick what is due. Returns the seconds until the next round."""
        started = time.monotonic()
        idle_too = started - self._looked_at_idle >= database.sleep_at_most
        most_early = self._budget.early(started, database.tick_spacing)
        known = (None, None) if idle_too else self._quiet
        [row] = await fetch(self._connection, _ROUND, idle_too, most_early, *known)
        ticks, early, found, wait, work, pid, last_delayed, *quiet = row
        if pid != self._pid:
            raise Pooled
        self._notice_delayed(last_delayed)
        now = time.monotonic()
        if idle_too:
            self._looked_at_idle = started
            self._quiet = quiet[0], quiet[1]
        self._budget.spend(early, database.tick_spacing)
        self._served.ticked(ticks, now - started)
        self._ticked()
        rest = self._schedule.after_round(
            now,
            took=now - started,
            work=work,
            found=found,
            limited=early >= most_early,
            wait=wait,
            database=database,
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
            # Wait for a producer, or until it is time to check the declaration.
            async for _ in self._connection.notifies(timeout=rest.seconds, stop_after=1):
                self._served.wakes += 1
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
        [(self._declared,)] = await fetch(self._connection, _SLEEP)
        return self._declared

    async def _wake_up(self) -> None:
        """Tell producers that they need not notify any more."""
        await self._connection.execute(_AWAKE)
        self._declared = False
