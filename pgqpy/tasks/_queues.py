# WARNING: generated from pgqpy/tasks/_queues_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Task queues as a whole: their settings and sizes, lists of tasks, changes of many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from psycopg.rows import dict_row, tuple_row

from pgqpy._wire.statements import checked
from pgqpy.connection import Connection
from pgqpy.errors import translate_errors
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._values import TaskInfo, TaskQueueInfo


class TaskQueues:
    """Operations on queues, and on tasks without claiming them."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn

    def create_queue(self, queue: str) -> bool:
        """Create a task queue; False if it exists already."""
        return bool(self._value(sql.CREATE_QUEUE, queue))

    def drop_queue(self, queue: str, *, force: bool = False) -> None:
        """Drop a task queue. Raises TaskQueueNotEmpty if it has tasks, unless ``force``."""
        self._value(sql.DROP_QUEUE, queue, force)

    def set_config(self, queue: str, param: str, value: object) -> None:
        """Set ``lease``, ``max_attempts``, ``error_queue`` or ``keep`` (how long finished tasks are
        kept); values are written like in SQL, for instance ``'1 hour'``, None is none."""
        self._value(sql.SET_QUEUE_CONFIG, queue, param, None if value is None else str(value))

    def pause(self, queue: str) -> None:
        """Stop claims of the queue's tasks, from the commit on."""
        self._value(sql.PAUSE_QUEUE, queue)

    def resume(self, queue: str) -> None:
        """End a pause."""
        self._value(sql.RESUME_QUEUE, queue)

    def queues(
        self, queue: str | None = None, *, max_count: int | None = 10_000
    ) -> list[TaskQueueInfo]:
        """Return settings and sizes of all queues, or of one. Counts at most ``max_count`` tasks of
        each kind and priority (None: all), so that the cost does not grow with their number."""
        number = sql.whole(max_count, "max_count")
        return [TaskQueueInfo(**row) for row in self._dicts(sql.QUEUE_INFO, queue, number)]

    def is_empty(self, queues: str | Iterable[str]) -> bool:
        """Whether the queues have no tasks at all, claimed and scheduled ones included."""
        return bool(self._value(sql.QUEUE_IS_EMPTY, sql.queue_names(queues)))

    def next_time(self, queues: str | Iterable[str]) -> datetime | None:
        """Return the time from which the first task of the queues can be claimed, in the past if
        one can be now; None if there is none, or all are claimed."""
        time: datetime | None = self._value(sql.NEXT_TIME, sql.queue_names(queues))
        return time

    def server_time(self) -> datetime:
        """Return the server's clock, with which tasks' times are compared."""
        time: datetime = self._value(sql.SERVER_TIME)
        return time

    def list(
        self,
        queue: str | None = None,
        filter: Mapping[str, Any] | None = None,  # noqa: A002
        *,
        max_tasks: int | None = 100,
    ) -> list[TaskInfo]:
        """List tasks, of all queues or of one, without locks.

        ``filter`` has the conditions of ``pgq_task.list_tasks``: ``status`` (available, claimed,
        scheduled, held, stopped, or several), ``ids``, ``payload`` and ``headers`` (contained
        values), ``error`` (part of it), ``claimant``, ``priority``, ``unique_key``, ``order_key``,
        ``attempts`` (at least), ``created_after``, ``created_before``, ``at_after``, ``at_before``.
        """
        number = sql.whole(max_tasks, "max_tasks")
        rows = self._dicts(sql.LIST, queue, sql.filter_json(filter), number)
        return [TaskInfo(**row) for row in rows]

    def stop(self, task_id: int, version: int) -> int:
        """Exclude a task from claims until `start`; return its new version. Raises TaskConflict."""
        known = sql.task_id(task_id), sql.whole(version, "the version")
        return int(self._value(sql.STOP, *known))

    def start(self, task_id: int, version: int) -> int:
        """Make a stopped or scheduled task available now; return its new version."""
        known = sql.task_id(task_id), sql.whole(version, "the version")
        return int(self._value(sql.START, *known))

    def change(
        self,
        queue: str,
        filter: Mapping[str, Any] | None,  # noqa: A002
        change: Mapping[str, Any],
        *,
        max_tasks: int | None = None,
        claimed: bool = False,
    ) -> int:
        """Change all tasks of a queue that a filter finds, in the same way; return their number.

        ``change`` has ``at`` or ``delay``, ``queue``, ``priority``, ``payload``, ``headers``,
        ``attempts``, ``error``, ``order_key``, or ``stop``. Claimed tasks are not changed unless
        ``claimed``.
        """
        value = self._value(
            sql.CHANGE,
            queue,
            sql.filter_json(filter),
            sql.filter_json(change),
            sql.whole(max_tasks, "max_tasks"),
            claimed,
        )
        return int(value)

    def remove(
        self,
        queue: str,
        filter: Mapping[str, Any] | None,  # noqa: A002
        *,
        max_tasks: int | None = None,
        claimed: bool = False,
    ) -> int:
        """Delete all tasks of a queue that a filter finds; return their number. See `change`."""
        filtered, number = sql.filter_json(filter), sql.whole(max_tasks, "max_tasks")
        return int(self._value(sql.REMOVE, queue, filtered, number, claimed))

    def requeue(
        self,
        queue: str,
        filter: Mapping[str, Any] | None = None,  # noqa: A002
        *,
        max_tasks: int | None = None,
    ) -> int:
        """Send tasks of an error queue back to where they failed; return their number."""
        filtered, number = sql.filter_json(filter), sql.whole(max_tasks, "max_tasks")
        return int(self._value(sql.REQUEUE, queue, filtered, number))

    # --- helpers

    def _value(self, statement: bytes, *arguments: Any) -> Any:
        ((value,),) = self._rows(statement, *arguments)
        return value

    def _rows(self, statement: bytes, *arguments: Any) -> Any:
        cursor = self.conn.cursor(row_factory=tuple_row, binary=True)
        with translate_errors():
            cursor.execute(statement, checked(arguments))
            return cursor.fetchall()

    def _dicts(self, statement: bytes, *arguments: Any) -> Any:
        cursor = self.conn.cursor(row_factory=dict_row)
        with translate_errors():
            cursor.execute(statement, checked(arguments))
            return cursor.fetchall()
