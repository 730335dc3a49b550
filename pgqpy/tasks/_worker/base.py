"""What workers of both kinds have: nothing of it waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgqpy._runtime.io import AsyncIo
from pgqpy.retry import RetryPolicy
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._settings import TaskWorkerAttributes
from pgqpy.tasks._values import Task
from pgqpy.tasks._worker.loop import Loop


class PlainTaskWorker(TaskWorkerAttributes):
    """A base of `TaskWorker` and `AsyncTaskWorker`."""

    queues: str | Sequence[str] = ()
    """The queues to serve; higher priorities first, else at random among them. In a name ``*``
    stands for any characters: queues that come later are served, too, error queues are not."""

    _io: AsyncIo
    dsn: str
    name: str
    stopping: bool
    #: The method that works on tasks; None: the only one that is overridden.
    _way: str | None = None
    #: Whether to work beside the loop, however few tasks at once.
    _in_slots = False
    _loop: Loop | None = None

    def policy_of(self, task: Task) -> RetryPolicy:
        """Return the retry policy for a task."""
        return self.retry_policy

    def encode_result(self, value: Any) -> str | None:
        """Return the value for a task as JSON; None for none."""
        return sql.jsonb_or_null(value)

    def on_task_lost(self, task: Task) -> None:
        """Called when another worker may have the task now; further work on it is in vain.

        Called in another thread, while the task is worked on, or when it cannot be finished. The
        loss is logged already.
        """

    def has(self, task: Task) -> bool:
        """Whether the lease of a running task is not known to be lost. Call it from any thread: for
        handlers that take long."""
        loop = self._loop
        return loop is not None and task in loop.leases

    def _stuck(self) -> Exception | None:
        """Return the error with which to stop if all tasks that run hang."""
        return None

    def _hung(self) -> tuple[Task, Exception] | None:
        """Return a task that hangs, once, with the error by which its attempt is over."""
        return None

    def _pushes_periodic(self) -> bool:
        """Whether the loop pushes periodic tasks, between the others."""
        return self.periodic
