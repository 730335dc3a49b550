"""What both clients of tasks do on their connection, as coroutines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from psycopg.rows import tuple_row

from pgqpy._runtime.failure import interval
from pgqpy._wire.statements import checked, require_utf8
from pgqpy.errors import InvalidTask, TaskFailed, translate_errors
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._io import AsyncIo
from pgqpy.tasks._statements import Duration
from pgqpy.tasks._values import read_again

#: Seconds between polls while `Tasks.claim` waits: some tasks send no notification.
POLL = 1.0


class TaskCalls:
    """A base of `Tasks` and `AsyncTasks`."""

    _io: AsyncIo
    conn: Any
    #: Executes a statement on a connection of another library; None for one of psycopg's.
    _foreign: Any
    _stopped = False

    async def _fetch(self, statement: bytes, arguments: Sequence[Any], make: Any) -> Any:
        """Return the rows of a statement, made by a row factory of psycopg's."""
        if self._foreign is not None:
            if statement not in sql.PUSHES:
                raise self._only_pushes()
            return await self._io.call(self._foreign, self.conn, statement, checked(arguments))
        cursor = self.conn.cursor(row_factory=make, binary=True)
        with translate_errors():
            require_utf8(self.conn)
            await self._io.call(cursor.execute, statement, checked(arguments))
            try:
                return await self._io.call(cursor.fetchall)
            except (RecursionError, ValueError):
                return read_again(cursor, make(cursor))

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
                    ((due,),) = await self._fetch(sql.SET_WAITING, [queues], tuple_row)
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
            rows = await self._fetch(sql.RESULT, [sql.task_id(task_id)], tuple_row)
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
