"""Workers that have tasks: what the server knows of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from psycopg.rows import class_row

from pgqpy.connection import Connection

WORKERS = "select * from pgq_task.get_workers() limit %s"


@dataclass(frozen=True, slots=True)
class TaskWorker:
    """A worker: the number of its tasks, their queues, the start of the oldest attempt, and the end
    of the first lease."""

    claimant: str
    tasks: int
    queues: list[str]
    since: datetime | None
    lease: datetime | None


def task_workers(conn: Connection, most: int) -> list[TaskWorker]:
    """Return the workers that have tasks now; an idle one is not known."""
    with conn.cursor(row_factory=class_row(TaskWorker)) as cursor:
        return cursor.execute(WORKERS, [most]).fetchall()
