"""The adapter of tasks: the worker as it comes."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from benchmarks.neutral._adapter import DSN, NAME, WORKERS, Adapter
from pgqpy import AsyncConnection
from pgqpy.tasks import AsyncTasks, AsyncTaskWorker, Task


class TaskQueue(Adapter):
    system = "pgqpy-tasks"
    tables = ("pgq_task.task",)
    depth_query = b"select sum(available) from pgq_task.get_queue_info('bench')"

    def create(self, conn: psycopg.Connection[Any]) -> None:
        conn.execute("select pgq_task.create_queue(%s)", [NAME])

    async def push(self, conn: AsyncConnection, items: list[dict[str, Any]]) -> None:
        await AsyncTasks(conn).push_many(NAME, items)

    async def work(self) -> None:
        async def handle(task: Task) -> None:
            await self.handle(task.payload)

        await AsyncTaskWorker(DSN, NAME, handle, concurrency=WORKERS).run()


if __name__ == "__main__":
    asyncio.run(TaskQueue().run())
