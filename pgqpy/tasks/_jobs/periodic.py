"""Tasks that are pushed by cron expressions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pgqpy._runtime.log import logger
from pgqpy.connection import Connection
from pgqpy.errors import translate_errors
from pgqpy.tasks._jobs.cron import Cron
from pgqpy.tasks._statements import headers_json, jsonb

#: The runs to push after a time without workers: only the last one that was due, or all, or none.
MISSED = ("last", "all", "skip")

_SET = b"""
select pgq_task.set_periodic(%s, %s, %s, %s, %s::jsonb, %s::int4, %s, %s::jsonb, %s, %s)
"""
_LIST = b"select * from pgq_task.get_periodic_info()"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicTask:
    """A task that is pushed into a queue again and again; ``name`` identifies it.

    The rest is described at `pgqpy.tasks.Tasks.push`: with a ``unique_key`` a run is skipped while
    the queue still has the one before it.
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
    """Store periodic tasks on the server, in the connection's transaction.

    Existing ones of the same name are changed; their next run only if the schedule changes. A
    change of the queue is logged: two programs may use the same name. Raises
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
