"""The life of the daemon in one database: connect, stand by, lead, and again.

One task a database on one event loop: the work is waiting for servers, a worker holds two
connections at most for long, and a task can be cancelled at any await, which threads cannot.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import psycopg

from pgqpy_ticker.config import Database
from pgqpy_ticker.connect import Connection, JobConnection, answering, connect, milliseconds
from pgqpy_ticker.delayed import Delayed
from pgqpy_ticker.failures import Failures, Note
from pgqpy_ticker.foreign import ForeignLocks
from pgqpy_ticker.health import Pulse, State
from pgqpy_ticker.jobs import Supervised, alongside, repeat
from pgqpy_ticker.lead import check_schema, check_session, win
from pgqpy_ticker.logs import Log
from pgqpy_ticker.maintenance import Maintenance
from pgqpy_ticker.metrics import Metrics
from pgqpy_ticker.observe import Observe
from pgqpy_ticker.problem import FailureLog, Problem, Unanswered
from pgqpy_ticker.tick import Tick


class RoundFailed(Exception):
    """The database is there and refuses ticks: its disk is full, or it was restored.

    Jobs go on meanwhile, since maintenance may be the cure.
    """

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.error = error


class Worker:
    """Serves one database until cancelled."""

    def __init__(self, database: Database, metrics: Metrics) -> None:
        self.database = database
        """May be replaced while running by one with the same name and DSN."""
        self._failures = Failures(database.name, metrics)
        self.pulse = Pulse(failures=self._failures)
        self.settled = asyncio.Event()
        """Set once the state of the database is known: led, stood by for, or away."""
        self._metrics = metrics
        self._log = Log(database=database.name)
        self._failure_log = FailureLog(self._log, 0.1, database.reconnect_at_most)
        self._foreign = ForeignLocks(self._log, self._failures)
        self._jobs: AsyncExitStack | None = None
        self._delayed = Delayed(JobConnection(self._current), self._current, metrics)
        self._round_failed = False
        self._server_pid = 0

    async def run(self) -> None:
        self._metrics.serves(self.database.name)
        try:
            while True:
                pause = await self._attempt()
                await asyncio.sleep(pause)
        finally:
            await self._end_jobs()
            self._metrics.forget(self.database.name)

    def _current(self) -> Database:
        return self.database

    async def _attempt(self) -> float:
        """Serve until an error. Returns the seconds before the next attempt."""
        try:
            await self._serve()
        except RoundFailed as failed:
            return await self._away(failed.error, in_round=True)
        except (psycopg.Error, OSError) as error:
            return await self._away(error)
        except Exception as error:
            problem = Problem.of(error, self.database)
            if not problem.permanent and not isinstance(error, Unanswered):
                # A bug must not end the service of this database, nor hide.
                self._log.exception("unexpected error")
            return await self._away(error)
        raise AssertionError("serving ends by an error or by being cancelled")

    async def _away(self, error: BaseException, *, in_round: bool = False) -> float:
        problem = Problem.of(error, self.database)
        self.pulse.enter(State.AWAY, problem.message)
        self.settled.set()
        self._failure_log.failed(problem.message, hint=problem.hint, cause=problem.cause)
        self._metrics.failed(self.database.name, "tick")
        pause = self._failure_log.pause(self.database.reconnect_at_most)
        self._round_failed = in_round
        if problem.permanent or not in_round:
            await self._end_jobs()
        return self.database.schema_retry if problem.permanent else pause

    async def _serve(self) -> None:
        limit = milliseconds(self.database.leader_timeout)
        connection = await connect(
            self.database,
            idle_session_timeout=limit,
            idle_in_transaction_session_timeout=limit,
            statement_timeout=limit,
        )
        try:
            async with answering(self.database):
                await check_session(connection, self.database)
                await check_schema(connection)
            pid = await win(
                connection,
                self._current,
                self._log,
                self._failures,
                self._foreign,
                self._stand_by,
            )
            try:
                await self._lead(connection, pid)
            except psycopg.Error as error:
                if connection.closed:
                    raise
                raise RoundFailed(error) from error
            finally:
                self._metrics.leads(self.database.name, False)
        finally:
            await connection.close()

    async def _stand_by(self) -> None:
        if self.pulse.state is not State.STANDBY:
            self.pulse.enter(State.STANDBY)
            await self._end_jobs()
        # If a round failed, the leader's may fail, too, and the lead return to us.
        if self._failure_log.rested or not self._round_failed:
            self._failure_log.recovered("back again")
        self.pulse.beat(time.monotonic())
        self.settled.set()

    async def _lead(self, connection: Connection, pid: int) -> None:
        await self._begin_jobs()
        self._server_pid = pid
        tick = Tick(
            connection, pid, self._current, self._ticked, self._metrics, self._delayed.notice
        )
        async with answering(self.database):
            await tick.listen()
        await repeat(tick)

    def _ticked(self, now: float) -> None:
        """Note a successful round: only the first shows that we can lead."""
        if self.pulse.state is State.LEADING:
            self.pulse.beat(now)
        else:
            self.pulse.enter(State.LEADING)
            self._metrics.leads(self.database.name, True)
            self._log.info("leading", extra={"server_pid": self._server_pid})
            self.settled.set()
        self._failure_log.recovered("back again")

    # Jobs

    async def _begin_jobs(self) -> None:
        """Start the leader's jobs other than ticks. They go on while rounds fail, until another
        ticker leads or the database is away."""
        if self._jobs is not None:
            return
        name, metrics = self.database.name, self._metrics
        log = Log(database=name, job=Maintenance.name)
        jobs = (
            self._delayed,
            Maintenance(JobConnection(self._current), self._current, metrics, log, self._failures),
            Observe(JobConnection(self._current), self._current, metrics, self._log, self._foreign),
            Note(JobConnection(self._current), self._failures),
        )
        metrics.maintenance_began(name)
        self._jobs = AsyncExitStack()
        await self._jobs.enter_async_context(
            alongside(*(Supervised(job, name, self._failures) for job in jobs))
        )

    async def _end_jobs(self) -> None:
        jobs, self._jobs = self._jobs, None
        if jobs is not None:
            await jobs.aclose()
            self._failures.clear()
            self._metrics.maintenance_ended(self.database.name)
