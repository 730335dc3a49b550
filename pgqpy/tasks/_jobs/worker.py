# WARNING: generated from pgqpy/tasks/_jobs/worker_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""The workers of a `TaskApp`."""

from __future__ import annotations

from typing import Any

from pgqpy.connection import Connection
from pgqpy.tasks._jobs.current import call
from pgqpy.tasks._jobs.runner import JobRunner, check_result
from pgqpy.tasks._values import Task
from pgqpy.tasks._worker.worker import TaskWorker


class AppWorker(JobRunner, TaskWorker):
    """Runs the jobs of an app; `TaskApp.worker` makes it.

    If one of them has a transaction, each gets one, which begins when the job uses it; otherwise
    many tasks are finished at once. Its `run` raises TaskTimeout when all slots hang, long after
    the timeouts of their jobs.
    """

    def run(self, *, until_empty: bool = False, handle_signals: bool = True) -> None:
        with self._beating():
            super().run(until_empty=until_empty, handle_signals=handle_signals)

    def handle_task(self, task: Task) -> Any:
        return self._run_job(task, None)

    def process_task(self, conn: Connection, task: Task) -> Any:
        return self._run_job(task, conn)

    def _run_job(self, task: Task, conn: Connection | None) -> Any:
        current, job, bound = self._call_of(task, conn)
        with self._heartbeat.watching(current):
            value = call(current, job.function, *bound.args, **bound.kwargs)
        check_result(task, value)
        return value
