# WARNING: generated from pgqpy/tasks/_rows/notifier_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Notifications of rows of a table that are due."""

from __future__ import annotations

from typing import Any

from psycopg import Cursor

from pgqpy._runtime.listener import Subscriber


class RowNotifier(Subscriber):
    """Receiver of the triggers of `pgq_task.notify_workers` of a table."""

    probe = ""
    subject = "rows"

    def __init__(self, dsn: str, table: str, signal: str) -> None:
        #: Whether there may be rows that were not looked for yet.
        self.heard = False
        self._notifier = signal
        super().__init__(dsn, table)

    def channel(self, cursor: Cursor[Any]) -> str:
        return "pgq_task_table"

    def hear(self, payload: str) -> None:
        if payload == self._notifier:
            self.heard = True
            self._wake()

    def _news(self) -> bool:
        return self.heard
