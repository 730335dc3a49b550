"""Tasks that are pushed by themselves, when a cron expression says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg.rows import namedtuple_row

from pgqpy.connection import Connection
from pgqpy.errors import PgqError, translate_errors
from pgqpy.log import logger
from pgqpy.tasks.cron import Cron
from pgqpy.tasks.statements import headers_json, jsonb

#: What becomes of runs that were due while nobody was there: only the last one is made up for, or
#: all, or none.
MISSED = ("last", "all", "skip")
#: Who comes later than this has missed a run.
_LATE = timedelta(minutes=1)
#: Runs that are pushed at once, where all are made up for.
_AT_ONCE = 100

_SET = b"""
select pgq_task.set_periodic(%s, %s, %s, %s, %s::jsonb, %s::int4, %s, %s::jsonb, %s, %s)
"""
_LIST = b"select * from pgq_task.get_periodic_info()"
_PUSH = b"select pgq_task.push_periodic(%s, %s, %s, %s::timestamptz[])"
_NOW = b"select pgq_task.server_time()"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicTask:
    """A task that is pushed into a queue again and again; ``name`` tells it from others.

    The rest is as of `pgqpy.tasks.Tasks.push`: with a ``unique_key`` a run is left out while the
    queue still has the one before it.
    """

    name: str
    queue: str
    cron: Cron
    payload: Any
    missed: str = "last"
    priority: int = 0
    headers: Mapping[str, Any] | None = None
    unique_key: str | None = None
    order_key: str | None = None


def set_periodic(conn: Connection, tasks: Iterable[PeriodicTask]) -> None:
    """Tell the server of periodic tasks, in the connection's transaction.

    Those it knows by name are changed; from when on they are due is only changed with when they
    are. One that moves to another queue is logged: two programs may use the same name. Raises
    TaskQueueNotFound, InvalidTask.
    """
    with translate_errors():
        queues = {row[0]: row[1] for row in conn.execute(_LIST)}
        for task in tasks:
            if queues.get(task.name, task.queue) != task.queue:
                logger.warning(
                    "periodic task %s was of queue %s, and is of %s from now on; two tasks need two"
                    " names",
                    task.name,
                    queues[task.name],
                    task.queue,
                )
            conn.execute(
                _SET,
                [
                    task.name,
                    task.queue,
                    task.cron.expression,
                    task.cron.time_zone,
                    jsonb(task.payload),
                    task.priority,
                    task.missed,
                    headers_json(task.headers),
                    task.unique_key,
                    task.order_key,
                ],
            )


def push_due(conn: Connection) -> float | None:
    """Push the periodic tasks that are due; the seconds until the next one is, None if none is.

    The connection is in autocommit. Whoever is first pushes a run: the server has it pushed only
    if it is still the next one, in the transaction in which that becomes the run after it.
    """
    next_due = None
    with translate_errors():
        cursor = conn.cursor(row_factory=namedtuple_row)
        now = cursor.execute(_NOW).fetchone().server_time  # type: ignore[union-attr]
        known: list[Any] = cursor.execute(_LIST).fetchall()
    for row in known:
        if row.paused is not None:
            continue
        try:
            due = _push_one(conn, row, now)
        except PgqError as error:
            if conn.closed:
                raise
            logger.error("periodic task %s cannot be pushed: %s", row.name, error)
            continue
        if due is not None:
            next_due = due if next_due is None else min(next_due, due)
    return None if next_due is None else max((next_due - now).total_seconds(), 0)


def _push_one(conn: Connection, row: Any, now: datetime) -> datetime | None:
    """Push what is due of one; when the next run is."""
    due: list[datetime] = []
    passed = 0
    after = None
    for run in Cron(row.cron, row.time_zone).after(row.last_due):
        after = run
        if run > now or (row.missed == "all" and len(due) == _AT_ONCE):
            break
        passed += 1
        if row.missed != "all":
            due.clear()
        due.append(run)
    if not due:
        return after
    last = due[-1]
    if row.missed == "skip" and last < now - _LATE:
        due.clear()
    with translate_errors():
        ((pushed,),) = conn.execute(_PUSH, [row.name, row.last_due, last, due])
    if pushed and passed > len(due):
        logger.warning(
            "periodic task %s: %s runs since %s were missed",
            row.name,
            passed - len(due),
            row.last_due,
        )
    return after
