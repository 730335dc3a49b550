"""Features of job queues: results, progress, cancellation, limits, periodic tasks."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Any

from pgqpy._runtime.acompat import AsyncWaker
from pgqpy._runtime.retries import interval
from pgqpy.errors import InvalidTask, TaskFailed
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._history_async import AsyncTaskHistory
from pgqpy.tasks._statements import Duration
from pgqpy.tasks._values import PeriodicInfo, TaskLimits, TaskProgress

_RESULT = b"select status, result, error from pgq_task.get_result(%s)"
_CANCEL = b"select pgq_task.cancel(%s, %s)"
_PROGRESS = b"select * from pgq_task.get_progress(%s, %s::bigint[])"
_SET_LIMITS = b"""
select pgq_task.set_limits(%s, %s::int4, %s::int4, %s::int4, %s::int4, %s::interval)
"""
_LIMITS = b"select queue_name as queue, * from pgq_task.get_limits(%s)"
_PERIODIC = b"select * from pgq_task.get_periodic_info()"
_PAUSE_PERIODIC = b"select pgq_task.pause_periodic(%s)"
_RESUME_PERIODIC = b"select pgq_task.resume_periodic(%s)"
_RUN_PERIODIC = b"select pgq_task.run_periodic(%s)"
_DROP_PERIODIC = b"select pgq_task.drop_periodic(%s)"


class AsyncTaskJobs(AsyncTaskHistory):
    """Operations on tasks that other processes work on."""

    async def result(self, task_id: int, *, wait: Duration | None = None) -> Any:
        """Return the result of a task, decoded; waits until it is finished, for up to ``wait``
        seconds (None: without end).

        The queue must keep finished tasks, for longer than it takes to ask. Raises TaskFailed, with
        the reason, if the task is in an error queue or was deleted; TimeoutError; InvalidTask if
        the task is unknown, or not visible to others before this transaction commits.
        """
        end = None if wait is None else monotonic() + interval(wait, "wait").total_seconds()
        pause = 0.01
        waker = AsyncWaker()
        try:
            while True:
                rows = await self._rows(_RESULT, sql.task_id(task_id))
                if not rows:
                    raise InvalidTask(
                        f"nothing is known of task {task_id}",
                        hint="It does not exist, or its queue did not keep it when it was finished:"
                        " Tasks.set_config(queue, 'keep', '1 hour').",
                    )
                ((status, result, error),) = rows
                if status == "finished":
                    return result
                if status == "uncommitted":
                    raise InvalidTask(
                        f"task {task_id} was pushed in this transaction, which is still open",
                        hint="Commit it: no worker sees the task before.",
                    )
                if status in ("failed", "deleted", "popped"):
                    said = status if status == "failed" else f"was {status}"
                    raise TaskFailed(f"task {task_id} {said}" + (f": {error}" if error else ""))
                left = pause if end is None else end - monotonic()
                if left <= 0:
                    raise TimeoutError(f"task {task_id} is {status}")
                await waker.wait(min(pause, left))
                pause = min(pause * 1.5, 1.0)
        finally:
            waker.close()

    async def cancel(self, task_id: int, reason: str = "cancelled") -> bool:
        """Cancel a task: True if it was not claimed, and is deleted.

        False if a worker has it. A `TaskApp` worker is told within about a second: an asyncio job
        is cancelled, others find out by `CurrentJob.progress` or `check_cancelled`; then the task
        goes to the error queue. Raises TaskConflict if there is no such task.
        """
        return bool(await self._value(_CANCEL, sql.task_id(task_id), reason) == "deleted")

    async def progress(
        self, queue: str | None = None, *, ids: Iterable[int] | None = None
    ) -> list[TaskProgress]:
        """Return the progress of claimed tasks that reported it, or were cancelled."""
        rows = await self._rows(_PROGRESS, queue, sql.task_ids(ids))
        return [TaskProgress(*row) for row in rows]

    async def set_limits(
        self,
        queue: str,
        *,
        max_running: int | None = None,
        max_running_per_key: int | None = None,
        rate: int | None = None,
        rate_per_key: int | None = None,
        rate_period: Duration = 60,
    ) -> None:
        """Limit how many tasks of a queue run at a time, and are begun in any period of
        ``rate_period`` seconds; in all, and of those with the same ``limit_key`` in their headers.

        It applies to all workers together, from the commit on. None is no limit. Raises InvalidTask
        for limits below 1.
        """
        await self._value(
            _SET_LIMITS,
            queue,
            sql.whole(max_running, "max_running"),
            sql.whole(max_running_per_key, "max_running_per_key"),
            sql.whole(rate, "rate"),
            sql.whole(rate_per_key, "rate_per_key"),
            sql.duration(rate_period, "rate_period"),
        )

    async def limits(self, queue: str | None = None) -> list[TaskLimits]:
        """Return the limits of queues that have any."""
        rows = await self._rows(_LIMITS, queue)
        return [TaskLimits(row[0], *row[2:]) for row in rows]

    async def periodic(self) -> list[PeriodicInfo]:
        """Return the periodic tasks."""
        return [PeriodicInfo(*row) for row in await self._rows(_PERIODIC)]

    async def pause_periodic(self, name: str) -> None:
        """Stop pushing runs of a periodic task."""
        await self._value(_PAUSE_PERIODIC, name)

    async def resume_periodic(self, name: str) -> None:
        """End a pause; runs that were due in it are not made up for."""
        await self._value(_RESUME_PERIODIC, name)

    async def run_periodic(self, name: str) -> int:
        """Push a run of a periodic task now, in addition to the due ones; return the task's id."""
        return int(await self._value(_RUN_PERIODIC, name))

    async def drop_periodic(self, name: str) -> None:
        """Delete a periodic task, until a worker starts whose app has it."""
        await self._value(_DROP_PERIODIC, name)
