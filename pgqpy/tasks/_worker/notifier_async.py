"""Notifications of pushed tasks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from psycopg import AsyncCursor

from pgqpy._runtime.listener_async import AsyncSubscriber


class AsyncTaskNotifier(AsyncSubscriber):
    """Receiver of notifications of a worker's queues."""

    probe = ""
    subject = "tasks"

    def __init__(self, dsn: str, queues: Collection[str]) -> None:
        #: Whether there may be tasks that were not looked for yet.
        self.heard = False
        self._queues = frozenset(queues)
        super().__init__(dsn, ", ".join(queues))

    async def channel(self, cursor: AsyncCursor[Any]) -> str:
        return "pgq_task"

    def hear(self, payload: str) -> None:
        if payload in self._queues:
            self.heard = True
            self._wake()

    def _news(self) -> bool:
        return self.heard
