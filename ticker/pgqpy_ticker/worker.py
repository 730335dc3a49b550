"""The life of the daemon in one database: connect, stand by, lead, and over again.

One task a database on one event loop: the work is waiting for servers, a worker holds two
connections at most for long, and a task can be cancelled at any await, which threads cannot.
"""

from __future__ import annotations

import asyncio

import psycopg

from pgqpy.backoff import Backoff
from pgqpy_ticker.config import Database
from pgqpy_ticker.connect import Connection, connect, milliseconds
from pgqpy_ticker.delayed import Delayed
from pgqpy_ticker.failures import Failures, Note
from pgqpy_ticker.health import Pulse, State
from pgqpy_ticker.jobs import Sturdy, alongside, repeat
from pgqpy_ticker.lead import check_schema, check_session, win
from pgqpy_ticker.link import Link
from pgqpy_ticker.logs import Log
from pgqpy_ticker.maintenance import Maintenance
from pgqpy_ticker.metrics import Metrics
from pgqpy_ticker.observe import Observe
from pgqpy_ticker.tick import Tick
from pgqpy_ticker.trouble import Complaints, Trouble


class Worker:
    """Serves one database until cancelled."""

    def __init__(self, database: Database, metrics: Metrics) -> None:
        self.database = database
        """May be replaced while running by one with the same name and DSN."""
        self._failures = Failures(database.name, metrics)
        self.pulse = Pulse(failures=self._failures)
        self.settled = asyncio.Event()
        """Set once it is known how the database is: led, stood by for, or away."""
        self._metrics = metrics
        self._log = Log(database=database.name)
        self._complaints = Complaints(self._log)
        self._backoff = Backoff(0.1, database.reconnect_at_most)

    async def run(self) -> None:
        self._metrics.serves(self.database.name)
        try:
            while True:
                pause = await self._attempt()
                await asyncio.sleep(pause)
        finally:
            self._metrics.forget(self.database.name)

    def _current(self) -> Database:
        return self.database

    async def _attempt(self) -> float:
        """Serve until something goes wrong. Returns the seconds before the next attempt."""
        try:
            await self._serve()
        except (psycopg.Error, OSError) as error:
            return self._away(error)
        except Exception as error:
            if not Trouble.of(error, self.database).settled:
                # A bug must not end the service of this database, nor hide.
                self._log.exception("unexpected error")
            return self._away(error)
        raise AssertionError("serving ends by an error or by being cancelled")

    def _away(self, error: BaseException) -> float:
        trouble = Trouble.of(error, self.database)
        self.pulse.enter(State.AWAY, trouble.message)
        self.settled.set()
        self._complaints.complain(trouble.message, hint=trouble.hint, cause=trouble.cause)
        self._metrics.failed(self.database.name, "tick")
        self._backoff.cap = self.database.reconnect_at_most
        return self.database.schema_retry if trouble.settled else self._backoff.pause()

    async def _serve(self) -> None:
        limit = milliseconds(self.database.leader_timeout)
        connection = await connect(
            self.database,
            idle_session_timeout=limit,
            idle_in_transaction_session_timeout=limit,
            statement_timeout=limit,
        )
        try:
            await check_session(connection, self.database)
            await check_schema(connection)
            pid = await win(connection, self._current, self._log, self._stand_by)
            try:
                await self._lead(connection, pid)
            finally:
                self._metrics.leads(self.database.name, False)
        finally:
            await connection.close()

    def _stand_by(self) -> None:
        if self.pulse.state is not State.STANDBY:
            self._went_well()
        self.pulse.enter(State.STANDBY)
        self.settled.set()

    async def _lead(self, connection: Connection, pid: int) -> None:
        name, metrics = self.database.name, self._metrics
        delayed = Delayed(Link(self._current), self._current, metrics)
        tick = Tick(connection, pid, self._current, self.pulse, metrics, delayed.notice)
        await tick.listen()
        self._went_well()
        self.pulse.enter(State.LEADING)
        metrics.leads(name, True)
        self._log.info("leading", extra={"server_pid": pid})
        self.settled.set()
        log = Log(database=name, job=Maintenance.name)
        chores = (
            delayed,
            Maintenance(Link(self._current), self._current, metrics, log, self._failures),
            Observe(Link(self._current), self._current, metrics, self._log),
            Note(Link(self._current), self._failures),
        )
        metrics.maintenance_began(name)
        try:
            async with alongside(*(Sturdy(chore, name, self._failures) for chore in chores)):
                await repeat(tick)
        finally:
            self._failures.clear()
            metrics.maintenance_ended(name)

    def _went_well(self) -> None:
        self._complaints.over("back again")
        self._backoff.reset()
