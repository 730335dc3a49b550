"""The renewal of the leases of tasks that a program has claimed itself."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import replace
from time import monotonic
from typing import Any, Self

from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.failure import soon
from pgqpy._runtime.heartbeat import Heartbeat
from pgqpy.connection import Connection, connect
from pgqpy.errors import InvalidTask
from pgqpy.log import logger
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._values import Task

_RENEW = b"""
select id, version, lease_until, extract(epoch from lease_until - clock_timestamp())::float8
  from pgq_task.renew(%s, %s::bigint[], %s::int4[], %s::interval)
"""


class Renewing:
    """Renews tasks in a block, by a thread with a connection of its own; `Tasks.renewing` makes it.

    Each renewal gives a task a new version, which is known after the block: finish `task`, or
    `tasks`. Lost ones stay as they are, and cannot be finished.
    """

    def __init__(self, conn: Any, claimant: str, tasks: Iterable[Task], lease: Any) -> None:
        if conn.info.transaction_status != TransactionStatus.IDLE:
            raise InvalidTask(
                "the claim may not be committed: the connection has an open transaction",
                hint="Commit first, or use a connection in autocommit.",
            )
        self._tasks = {task.id: task for task in tasks}
        self._claimant = claimant
        self._lease = sql.duration(lease, "lease")
        self._lost: set[int] = set()
        self._at = 0.0
        dsn = make_conninfo(conn.info.dsn, password=conn.info.password or None)
        self._heartbeat = Heartbeat(
            "renewing",
            lambda: connect(dsn, autocommit=True),
            self._renew,
            lambda: self._at,
            self._failed,
            backoff=Backoff(0.05, 2),
        )

    @property
    def task(self) -> Task:
        """The task, if there is one only."""
        (task,) = self._tasks.values()
        return task

    @property
    def tasks(self) -> list[Task]:
        """The tasks, in their latest versions that are known."""
        return [*self._tasks.values()]

    @property
    def lost(self) -> list[Task]:
        """The tasks that another claimant has, or may take: further work on them is in vain."""
        return [self._tasks[each] for each in self._lost]

    def __enter__(self) -> Self:
        self._heartbeat.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._heartbeat.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self._heartbeat.close)

    # --- in the thread

    def _renew(self, conn: Connection) -> None:
        held = [task for task in self._tasks.values() if task.id not in self._lost]
        ids, versions = [task.id for task in held], [task.version for task in held]
        rows = conn.execute(_RENEW, [self._claimant, ids, versions, self._lease]).fetchall()
        for task_id, version, lease, _ in rows:
            self._tasks[task_id] = replace(self._tasks[task_id], version=version, lease=lease)
        self._lost.update(set(ids) - {row[0] for row in rows})
        seconds = min((row[3] for row in rows), default=math.inf)
        self._at = monotonic() + max(seconds, 0) / 2

    def _failed(self, error: Exception, pause: float) -> None:
        logger.warning("leases could not be renewed: %s; again %s", error, soon(pause))
