"""The methods of a worker that its parts call."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

from pgqpy.connection_async import AsyncConnection
from pgqpy.retry import RetryPolicy
from pgqpy.tasks._outcome import TaskStats
from pgqpy.tasks._values import Task


class AsyncHooks(Protocol):
    """An `AsyncTaskWorker`, which describes these methods."""

    stopping: bool

    async def handle_task(self, task: Task) -> Any: ...

    async def process_task(self, conn: AsyncConnection, task: Task) -> Any: ...

    async def process_batch(
        self, conn: AsyncConnection, tasks: list[Task]
    ) -> Sequence[Any] | None: ...

    def policy_of(self, task: Task) -> RetryPolicy: ...

    def encode_result(self, value: Any) -> str | None: ...

    def on_task_lost(self, task: Task) -> None: ...

    async def on_task_failed(
        self, task: Task, error: Exception, delay: float | timedelta | None
    ) -> None: ...

    async def on_completed(self, stats: TaskStats) -> None: ...

    async def on_error(self, error: Exception) -> None: ...
