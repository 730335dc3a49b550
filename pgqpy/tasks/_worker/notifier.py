# WARNING: generated from pgqpy/tasks/_worker/notifier_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Notifications of pushed tasks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from psycopg import Cursor

from pgqpy._runtime.listener import Subscriber


class TaskNotifier(Subscriber):
    """Receiver of notifications of a worker's queues."""

    probe = ""
    subject = "tasks"

    def __init__(self, dsn: str, queues: Collection[str]) -> None:
        #: Whether there may be tasks that were not looked for yet.
        self.heard = False
        self._queues = frozenset(queues)
        super().__init__(dsn, ", ".join(queues))

    def channel(self, cursor: Cursor[Any]) -> str:
        return "pgq_task"

    def hear(self, payload: str) -> None:
        if payload in self._queues:
            self.heard = True
            self._wake()

    def _news(self) -> bool:
        return self.heard
