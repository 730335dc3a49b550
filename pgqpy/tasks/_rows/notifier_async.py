"""Notifications of rows of a table that are due."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncCursor

from pgqpy._runtime.listener_async import AsyncSubscriber


class AsyncRowNotifier(AsyncSubscriber):
    """Receiver of the triggers of `pgq_task.notify_workers` of a table."""

    probe = ""
    subject = "rows"

    def __init__(self, dsn: str, table: str, signal: str) -> None:
        #: Whether there may be rows that were not looked for yet.
        self.heard = False
        self._notifier = signal
        super().__init__(dsn, table)

    async def channel(self, cursor: AsyncCursor[Any]) -> str:
        return "pgq_task_table"

    def hear(self, payload: str) -> None:
        if payload == self._notifier:
            self.heard = True
            self._wake()

    def _news(self) -> bool:
        return self.heard
