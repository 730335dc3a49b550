"""The workers of a `TaskApp`."""

from __future__ import annotations

from typing import Any

from pgqpy.connection_async import AsyncConnection
from pgqpy.tasks._jobs.current import async_call
from pgqpy.tasks._jobs.runner import JobRunner, check_result
from pgqpy.tasks._values import Task
from pgqpy.tasks._worker.worker_async import AsyncTaskWorker


class AsyncAppWorker(JobRunner, AsyncTaskWorker):
    """Runs the jobs of an app; `TaskApp.async_worker` makes it.

    If one of them has a transaction, each gets one, which begins when the job uses it; otherwise
    many tasks are finished at once. Its `run` raises TaskTimeout when all slots hang, long after
    the timeouts of their jobs.
    """

    async def run(self, *, until_empty: bool = False, handle_signals: bool = True) -> None:
        with self._beating():
            await super().run(until_empty=until_empty, handle_signals=handle_signals)

    async def handle_task(self, task: Task) -> Any:
        return await self._run_job(task, None)

    async def process_task(self, conn: AsyncConnection, task: Task) -> Any:
        return await self._run_job(task, conn)

    async def _run_job(self, task: Task, conn: AsyncConnection | None) -> Any:
        current, job, bound = self._call_of(task, conn)
        with self._heartbeat.watching(current):
            value = await async_call(current, job.function, *bound.args, **bound.kwargs)
        check_result(task, value)
        return value
