"""The life of the daemon in one database: connect, stand by, lead, and again.

One task a database on one event loop: the work is waiting for servers, a worker holds two
connections at most for long, and a task can be cancelled at any await, which threads cannot.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import psycopg

from pgqpy_ticker.connect import Connection, answering, connect, milliseconds
from pgqpy_ticker.delayed import Delayed
from pgqpy_ticker.foreign import ForeignLocks
from pgqpy_ticker.jobs import cancel, repeat
from pgqpy_ticker.lead import Lead, check_schema, check_session
from pgqpy_ticker.logs import FailureLog
from pgqpy_ticker.maintenance import Maintenance, NoteFailures
from pgqpy_ticker.observe import Observe
from pgqpy_ticker.problem import Problem, Unanswered
from pgqpy_ticker.served import Served, State
from pgqpy_ticker.tick import Tick

_UNLOCK = "select pg_catalog.pg_advisory_unlock_all()"


class Worker:
    """Serves one database until cancelled."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.settled = asyncio.Event()
        """Set once the state of the database is known: led, stood by for, or away."""
        self.failure: Exception | None = None
        """The last reason for which it is, or was, away."""
        self._log = served.log()
        self._failure_log = FailureLog(self._log, 0.1, served.database.reconnect_at_most)
        self._foreign = ForeignLocks(served)
        self._delayed = Delayed(served)
        self._jobs: list[asyncio.Task[None]] = []
        self._round_failed = False

    async def run(self) -> None:
        try:
            while True:
                pause = await self._attempt()
                await asyncio.sleep(pause)
        finally:
            await self._end_jobs()

    async def _attempt(self) -> float:
        """Serve until an error. Returns the seconds before the next attempt."""
        database, in_round = self.served.database, False
        error: Exception
        try:
            error = await self._serve()
            in_round = True
        except Exception as caught:
            error = caught
        problem = Problem.of(error, database)
        if not (problem.permanent or isinstance(error, psycopg.Error | OSError | Unanswered)):
            # A bug must not end the service of this database, nor hide.
            self._log.error("unexpected error", exc_info=error)
        self.failure = error
        self.served.enter(State.AWAY, problem.message)
        self.settled.set()
        self._failure_log.failed(problem.message, hint=problem.hint, cause=problem.cause)
        self.served.errors["tick"] += 1
        pause = self._failure_log.pause(database.reconnect_at_most, error)
        self._round_failed = in_round
        if problem.permanent or not in_round:
            await self._end_jobs()
        return database.schema_retry if problem.permanent else pause

    async def _serve(self) -> psycopg.Error:
        """Connect, and lead. Returns the error of a round that the database has refused: its disk
        is full, or it was restored; jobs go on meanwhile, since maintenance may be the cure."""
        database = self.served.database
        limit = milliseconds(database.leader_timeout)
        connection = await connect(
            database,
            idle_session_timeout=limit,
            idle_in_transaction_session_timeout=limit,
            statement_timeout=limit,
        )
        try:
            async with answering(database):
                await check_session(connection, database)
                await check_schema(connection)
            pid = await Lead(connection, self.served, self._foreign).win(self._stand_by)
            try:
                await self._lead(connection, pid)
                raise AssertionError("a lead ends by an error or by being cancelled")
            except psycopg.Error as error:
                if connection.closed:
                    raise
                # Otherwise the next session may find the lead taken by this one, which is not gone.
                with suppress(psycopg.Error):
                    async with answering(database):
                        await connection.execute(_UNLOCK)
                return error
        finally:
            await connection.close()

    async def _stand_by(self) -> None:
        if self.served.state is not State.STANDBY:
            self.served.enter(State.STANDBY)
            await self._end_jobs()
        # If a round failed, the leader's may fail, too, and the lead return to us.
        if self._failure_log.rested or not self._round_failed:
            self._failure_log.recovered("back again")
        self.served.beat()
        self.settled.set()

    async def _lead(self, connection: Connection, pid: int) -> None:
        def ticked() -> None:
            """Note a successful round: only the first shows that we can lead."""
            if self.served.state is not State.LEADING:
                self.served.enter(State.LEADING)
                self._log.info("leading", extra={"server_pid": pid})
                self.settled.set()
            self.served.beat()
            self._failure_log.recovered("back again")

        self._begin_jobs()
        await Tick(self.served, connection, pid, ticked, self._delayed.notice).run()

    def _begin_jobs(self) -> None:
        """Start the leader's jobs other than ticks. They go on while rounds fail, until another
        ticker leads or the database is away."""
        if self._jobs:
            return
        served = self.served
        served.maintained = time.monotonic()
        jobs = (
            self._delayed,
            Maintenance(served),
            Observe(served, self._foreign),
            NoteFailures(served),
        )
        self._jobs = [asyncio.create_task(repeat(job), name=job.name) for job in jobs]

    async def _end_jobs(self) -> None:
        jobs, self._jobs = self._jobs, []
        if jobs:
            await cancel(*jobs)
            self.served.forget_failures()
            self.served.maintained = None
