"""The leader's jobs other than ticks: their connections, and running them in the background."""

from __future__ import annotations

import asyncio

import psycopg

from pgqpy_ticker.connect import Connection, connect, milliseconds
from pgqpy_ticker.logs import FailureLog, one_line
from pgqpy_ticker.served import Operation, Served


class Job:
    """A job for one database, on a connection of its own, opened when needed.

    So a long operation does not delay the ticks, and a refused connection does not end the lead.
    """

    name = ""

    def __init__(self, served: Served) -> None:
        self.served = served
        self._connection: Connection | None = None

    async def run(self) -> float:
        """Do it once. Returns the seconds until it is due again."""
        raise NotImplementedError

    async def connection(self) -> Connection:
        """Return the connection; a new one if there is none, or it broke."""
        if self._connection is None or self._connection.closed:
            database = self.served.database
            self._connection = await connect(
                database,
                application_name="pgqpy ticker jobs",
                lock_timeout=milliseconds(database.maintenance_lock_timeout),
            )
        return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None


async def repeat(job: Job) -> None:
    """Run a job until cancelled. Errors are logged once, counted, and the job is retried."""
    log = job.served.log(job=job.name)
    failures = FailureLog(log, 0.5, 60.0)
    operation: Operation = job.name, None
    try:
        while True:
            try:
                pause = await job.run()
            except Exception as error:
                if isinstance(error, psycopg.Error | OSError):
                    failures.failed(f"{job.name} failed: {one_line(error)}")
                else:
                    # Ticks must go on even if a job has a bug; the log must show it.
                    log.exception("%s failed", job.name)
                job.served.fail(operation, one_line(error))
                await job.close()
                pause = failures.pause(error=error)
            else:
                failures.recovered(f"{job.name} works again")
                job.served.mend(operation)
            await asyncio.sleep(pause)
    finally:
        await job.close()


async def cancel(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
