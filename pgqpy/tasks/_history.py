# WARNING: generated from pgqpy/tasks/_history_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""The history of tasks: kept finished tasks, and statistics."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from pgqpy.tasks import _statements as sql
from pgqpy.tasks._queues import TaskQueues
from pgqpy.tasks._values import FinishedTask, TaskStatistics

FINISHED = b"""
select id, %s as queue, outcome, finished, claimant, attempts, last_attempt, created, result, error,
       payload, headers, priority, unique_key, order_key
  from pgq_task.finished_tasks(%s::text, %s::int4, %s::bigint[], %s::timestamptz, %s::timestamptz,
                               %s::jsonb, %s::text)
"""
REPLAY = b"""
select * from pgq_task.replay(%s::text, %s::text, %s::bigint[], %s::timestamptz, %s::timestamptz,
                              %s::jsonb, %s::text, %s::int4)
"""
STATISTICS = b"""
select queue_name as queue, pushed, claimed, finished, popped, failed, buried, released, moved,
       deleted
  from pgq_task.get_statistics(%s)
"""


class TaskHistory(TaskQueues):
    """Finished tasks and statistics."""

    def finished(
        self,
        queue: str,
        *,
        ids: Iterable[int] | None = None,
        finished_from: datetime | None = None,
        finished_before: datetime | None = None,
        payload: Any = None,
        outcome: str | None = None,
        max_tasks: int | None = 100,
    ) -> list[FinishedTask]:
        """Return the finished tasks that a queue keeps, the last ones first.

        Only those with these ``ids``, finished between two times (with time zone), with a payload
        that contains ``payload`` (JSON; None: any payload), with outcome ``"finished"``,
        ``"popped"`` or ``"deleted"``; at most ``max_tasks`` (None: all). The queue's setting
        ``keep`` says how long they are kept.
        """
        rows = self._dicts(
            FINISHED,
            queue,
            queue,
            sql.whole(max_tasks, "max_tasks"),
            sql.task_ids(ids),
            sql.when(finished_from, None)[0],
            sql.when(finished_before, None)[0],
            sql.jsonb_or_null(payload),
            outcome,
        )
        return [FinishedTask(**row) for row in rows]

    def replay(
        self,
        queue: str,
        *,
        target: str | None = None,
        ids: Iterable[int] | None = None,
        finished_from: datetime | None = None,
        finished_before: datetime | None = None,
        payload: Any = None,
        outcome: str | None = None,
        max_tasks: int | None = None,
    ) -> list[int]:
        """Push finished tasks again, as new ones, to the same queue or to ``target``; return their
        ids.

        They are chosen like for `finished`. The headers of each name the original task: ``origin``,
        ``replay_of`` and ``finished_at``.
        """
        rows = self._rows(
            REPLAY,
            queue,
            target,
            sql.task_ids(ids),
            sql.when(finished_from, None)[0],
            sql.when(finished_before, None)[0],
            sql.jsonb_or_null(payload),
            outcome,
            sql.whole(max_tasks, "max_tasks"),
        )
        return [row[0] for row in rows]

    def statistics(self, queue: str | None = None) -> list[TaskStatistics]:
        """Return the counts of operations on tasks, of all queues or of one."""
        return [TaskStatistics(**row) for row in self._dicts(STATISTICS, queue)]
