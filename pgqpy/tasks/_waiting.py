"""The waiting of clients: for tasks, for empty queues, for results."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic
from typing import Any

from pgqpy._runtime.failure import interval
from pgqpy._runtime.io import AsyncIo
from pgqpy.errors import InvalidTask, TaskFailed, translate_errors
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._statements import Duration

#: Seconds between polls while `Tasks.claim` waits: some tasks send no notification.
POLL = 1.0


class WaitingClient:
    """A base of `Tasks` and `AsyncTasks`, which run these coroutines by their `_io`."""

    _io: AsyncIo
    conn: Any
    #: Returns the rows of a statement with these values.
    _rows: Callable[..., Any]
    #: Executes a statement on a connection of another library; None for one of psycopg's.
    _foreign: Any
    _stopped = False

    async def _wait_for(
        self, channel: bytes, queues: list[str], take: Callable[[], Any], wait: Duration | None
    ) -> Any:
        """Take what is wanted as soon as it is there, until the timeout."""
        if self._foreign is not None:
            raise self._only_pushes()
        if not self.conn.autocommit:
            raise InvalidTask(
                "it is to wait for tasks, and the connection is not in autocommit",
                hint="Open it with autocommit=True, or do not wait: try_claim().",
            )
        seconds = seconds_of(wait)
        end = monotonic() + seconds
        taken = await self._io.call(take)
        if taken or seconds <= 0:
            return taken
        with translate_errors():
            await self._io.call(self.conn.execute, b"listen " + channel)
        try:
            while True:
                due = None
                if queues:
                    ((due,),) = await self._io.call(self._rows, sql.SET_WAITING, queues)
                taken = await self._io.call(take)
                left = end - monotonic()
                if taken or left <= 0 or self._stopped:
                    return taken
                pause = POLL if due is None else min(POLL, due.total_seconds())
                with translate_errors():
                    await self._io.notified(self.conn, min(pause, left))
        finally:
            self._stopped = False
            if not self.conn.closed:
                with translate_errors():
                    await self._io.call(self.conn.execute, b"unlisten " + channel)

    async def _wait_for_result(self, task_id: int, wait: Duration | None) -> Any:
        end = monotonic() + seconds_of(wait)
        pause = 0.01
        while True:
            rows = await self._io.call(self._rows, sql.RESULT, sql.task_id(task_id))
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
            left = end - monotonic()
            if left <= 0:
                raise TimeoutError(f"task {task_id} is {status}")
            await self._io.sleep(min(pause, left))
            pause = min(pause * 1.5, 1.0)

    def _only_pushes(self) -> InvalidTask:
        return InvalidTask(
            f"tasks are only pushed into {self.conn!r:.80}",
            hint="All else takes a connection of psycopg's, such as pgqpy.connect().",
        )


def seconds_of(wait: Duration | None) -> float:
    """Return the seconds to wait; None: without end."""
    return math.inf if wait is None else interval(wait, "wait").total_seconds()
