"""Pushing due periodic tasks."""

from __future__ import annotations

from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from psycopg.rows import namedtuple_row

from pgqpy._runtime.io import AsyncIo, Io
from pgqpy.connection import Connection
from pgqpy.errors import PermissionDenied, PgqError, translate_errors
from pgqpy.log import logger

#: Seconds until changes of periodic tasks by other sessions are noticed.
LOOK = 30.0
#: A run that is pushed later than this counts as missed.
_LATE = timedelta(minutes=1)
#: The maximum missed runs that are pushed at once.
_AT_ONCE = 100
#: The maximum runs that it passes over at once, in a twentieth of a second.
_MOST = 5000
#: The seconds after which it pauses, and for how long: a role that may push to any queue may have
#: any number of periodic tasks, and the worker has work of its own.
_PUSHING, _PAUSE = 0.1, 0.4

_LIST = b"""
select name, cron, time_zone, missed, last_due
  from pgq_task.get_periodic_info() where paused is null order by random()
"""
_PUSH = b"select pgq_task.push_periodic(%s, %s, %s, %s::timestamptz[])"
_NOW = b"select pgq_task.server_time()"


def push_due(conn: Connection) -> float | None:
    """Call `async_push_due` on a sync connection."""
    io = Io()
    return io.run(async_push_due(io, conn))


async def async_push_due(io: AsyncIo, conn: Any) -> float | None:
    """Push the periodic tasks that are due; return the seconds until the next one, or until it is
    to go on, None if there are none.

    The connection is in autocommit. The first worker pushes a run: the server pushes it only if it
    is still the next one, in the transaction that advances the schedule. Raises ImportError if
    there are schedules, and no library for cron expressions is installed.
    """
    with translate_errors():
        cursor = conn.cursor(row_factory=namedtuple_row)
        known: list[Any] = await io.fetch_by(cursor, _LIST)
        if not known:
            return None
        ((now,),) = await io.fetch_by(cursor, _NOW)
    next_due = None
    until = monotonic() + _PUSHING
    for row in known:
        if monotonic() > until:
            return _PAUSE
        try:
            due = await _push_one(io, conn, row, now)
        except PgqError as error:
            if conn.closed:
                raise
            if isinstance(error, PermissionDenied):
                logger.debug("periodic task %s is for others to push: %s", row.name, error)
            else:
                logger.error("periodic task %s cannot be pushed: %s", row.name, error)
            continue
        if due is not None:
            next_due = due if next_due is None else min(next_due, due)
    return None if next_due is None else max((next_due - now).total_seconds(), 0)


async def _push_one(io: AsyncIo, conn: Any, row: Any, now: datetime) -> datetime | None:
    """Push the due runs of one schedule; return the time of the next run."""
    # It is an optional dependency.
    from pgqpy.tasks._jobs.periodic import Cron

    due: list[datetime] = []
    passed = 0
    after = None
    for run in Cron(row.cron, row.time_zone).after(row.last_due):
        after = run
        if run > now or len(due) == _AT_ONCE or passed == _MOST:
            break
        passed += 1
        if row.missed != "all":
            due.clear()
        due.append(run)
    if not due:
        return after
    last = due[-1]
    more = passed == _MOST and after is not None and after <= now
    if more or (row.missed == "skip" and last < now - _LATE):
        due.clear()
    with translate_errors():
        push = [row.name, row.last_due, last, due]
        ((pushed,),) = await io.fetch_by(conn.cursor(), _PUSH, push)
    if pushed and passed > len(due):
        logger.warning(
            "periodic task %s: runs missed since %s: %s",
            row.name,
            row.last_due.isoformat(" ", "seconds"),
            passed - len(due),
        )
    return after
