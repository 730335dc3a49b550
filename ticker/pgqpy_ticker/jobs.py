"""The interface of all jobs, and the scheduler, which only schedules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

import psycopg

from pgqpy_ticker.failures import Failures
from pgqpy_ticker.logs import Log
from pgqpy_ticker.problem import FailureLog, one_line


class Job(Protocol):
    """A job for one database."""

    name: str

    async def run(self) -> float:
        """Do it once. Returns the seconds until it is due again."""
        ...

    async def close(self) -> None:
        """Release its resources."""
        ...


async def repeat(job: Job) -> None:
    """Run a job forever; an error ends it."""
    try:
        while True:
            delay = await job.run()
            await asyncio.sleep(delay)
    finally:
        await job.close()


class Supervised:
    """A job that survives its errors: they are logged once, counted, and the job is retried."""

    def __init__(self, job: Job, database: str, failures: Failures) -> None:
        self.name = job.name
        self._job = job
        self._failures = failures
        self._log = Log(database=database, job=job.name)
        self._failure_log = FailureLog(self._log, 0.5, 60.0)

    async def run(self) -> float:
        try:
            delay = await self._job.run()
        except (psycopg.Error, OSError) as error:
            self._failure_log.failed(f"{self.name} failed: {one_line(error)}")
            said = one_line(error)
        except Exception as error:
            # Ticks must go on even if a job has a bug; the log must show it.
            self._log.exception("%s failed", self.name)
            said = one_line(error)
        else:
            self._failure_log.recovered(f"{self.name} works again")
            self._failures.mend((self.name, None))
            return delay
        self._failures.fail((self.name, None), said)
        await self._job.close()
        return self._failure_log.pause()

    async def close(self) -> None:
        await self._job.close()


@asynccontextmanager
async def alongside(*jobs: Job) -> AsyncIterator[None]:
    """Repeat jobs in the background while the body runs; they have ended when it is left."""
    async with AsyncExitStack() as stack:
        for job in jobs:
            stack.push_async_callback(_end, asyncio.create_task(repeat(job), name=job.name))
        yield


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
