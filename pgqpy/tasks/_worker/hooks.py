# WARNING: generated from pgqpy/tasks/_worker/hooks_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""The methods of a worker that its parts call."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

from pgqpy.connection import Connection
from pgqpy.retry import RetryPolicy
from pgqpy.tasks._outcome import TaskStats
from pgqpy.tasks._values import Task


class Hooks(Protocol):
    """An `TaskWorker`, which describes these methods."""

    stopping: bool

    def handle_task(self, task: Task) -> Any: ...

    def process_task(self, conn: Connection, task: Task) -> Any: ...

    def process_batch(self, conn: Connection, tasks: list[Task]) -> Sequence[Any] | None: ...

    def policy_of(self, task: Task) -> RetryPolicy: ...

    def encode_result(self, value: Any) -> str | None: ...

    def on_task_lost(self, task: Task) -> None: ...

    def on_task_failed(
        self, task: Task, error: Exception, delay: float | timedelta | None
    ) -> None: ...

    def on_completed(self, stats: TaskStats) -> None: ...

    def on_error(self, error: Exception) -> None: ...
