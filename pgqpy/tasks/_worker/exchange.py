"""The statements of a worker's loop, on a connection of its own."""

from __future__ import annotations

import math
from collections.abc import Collection
from time import monotonic
from typing import Any

from psycopg import AsyncCursor
from psycopg.rows import tuple_row
from psycopg.types.json import set_json_loads

from pgqpy._runtime.io import BATCH, AsyncIo
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import PgqError, translate_errors
from pgqpy.log import logger
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._jobs.due import LOOK, async_push_due
from pgqpy.tasks._settings import Settings
from pgqpy.tasks._values import read_json
from pgqpy.tasks._worker.completion import Completions

_SWEEP = 1.0
LOCK_NOT_AVAILABLE = "55P03"


class Exchange:
    """Completes and claims tasks in one round trip; sweeps queues, and pushes periodic tasks."""

    def __init__(self, settings: Settings, io: AsyncIo) -> None:
        self._settings = settings
        self._io = io
        self._has_patterns = any("*" in queue for queue in settings.queues)
        #: Without those that were dropped meanwhile; for patterns those that were found.
        self._queues = [] if self._has_patterns else settings.queues
        self._has_claimed = False
        self._conn: AsyncConnection | None = None
        self._cursor: AsyncCursor[Any] | None = None
        self.sweep_at = 0.0
        self.push_at = 0.0 if settings.pushes_periodic else math.inf

    async def connection(self) -> AsyncConnection:
        """Return the connection; connects if needed."""
        if self._conn is None or self._conn.closed:
            database = self._settings.database
            self._conn = await self._io.connect(BATCH, database.dsn, **database.options)
            set_json_loads(read_json, self._conn)
            await self._io.read_committed(self._conn)
        return self._conn

    async def close(self) -> None:
        """Close the connection; the next use opens another."""
        if self._conn is not None:
            await self._io.call(self._conn.close)

    def among(self, names: Collection[str]) -> list[str]:
        """Return the worker's queues of these names."""
        return [queue for queue in self._queues if queue in names]

    async def ask(
        self,
        conn: AsyncConnection,
        completions: Completions,
        room: int,
        *,
        arm: bool,
        last: bool,
        named: list[str],
    ) -> tuple[list[list[Any]], float | None, list[Any]]:
        """Complete tasks and claim ``room`` others, in one round trip and one transaction.

        They are claimed from all queues, or from ``named`` ones. Returns the answers to the
        completions, the seconds until a task is due, and the rows of claimed tasks. ``arm`` asks
        for notifications; ``last`` looks where a claim does not.
        """
        settings = self._settings
        if self._has_patterns and not (self._queues or completions.all):
            self._queues = await self._existing()
        if not self._queues:
            room, arm, last = 0, False, False
        one = completions.one_finished
        if one is not None and room == len(self._queues) == 1 and not arm:
            claim, result = one
            finish = [settings.database.claimant, claim.task.id, claim.version, *self._queues]
            arguments = [*finish, result, settings.lease, settings.random]
            return [[]], None, await self._finish_and_claim(conn, arguments)
        calls = completions.calls()
        kinds = len(calls)
        if arm:
            calls.append((sql.SET_WAITING, [self._queues]))
        if last:
            calls.append((sql.CATCH_UP, [self._queues]))
        if room:
            asked = [named or self._queues, settings.database.claimant, settings.lease, room]
            calls.append((sql.CLAIM_FOR_WORKER, [*asked, settings.random]))
        answers = await self._io.send(conn, calls)
        self._has_claimed = self._has_claimed or bool(room)
        due = answers[kinds][0][0] if arm else None
        return (
            answers[:kinds],
            None if due is None else due.total_seconds(),
            answers[-1] if room else [],
        )

    async def _finish_and_claim(self, conn: AsyncConnection, arguments: list[Any]) -> Any:
        """Use one cursor: a new one finds out how to send and load values, which takes longest."""
        if self._cursor is None or self._cursor.connection is not conn:
            self._cursor = conn.cursor(row_factory=tuple_row, binary=True)
        with translate_errors():
            return await self._io.fetch_by(self._cursor, sql.FINISH_AND_CLAIM_FOR_WORKER, arguments)

    async def forget_dropped(self) -> bool:
        """Go on without dropped queues. False if none is left, or nothing was ever claimed."""
        left = await self._existing()
        gone = [queue for queue in self._queues if queue not in left]
        if not gone:
            # It was created again meanwhile.
            return True
        # Before the first claim their names may be wrong.
        if not (self._has_patterns or (self._has_claimed and left)):
            return False
        logger.warning(
            "worker %s goes on without what was dropped: %s",
            self._settings.database.claimant,
            ", ".join(gone),
            extra=self._settings.fields,
        )
        self._queues = left
        return True

    async def _existing(self) -> list[str]:
        (rows,) = await self._io.send(
            await self.connection(), [(sql.FIND_QUEUES, [self._settings.queues])]
        )
        return [queue for (queue,) in rows]

    async def sweep(self) -> bool:
        """Sweep the queues: do so at `sweep_at`, in any worker. True if that may have made tasks
        visible that claims did not find."""
        conn = await self.connection()
        self.sweep_at = monotonic() + _SWEEP
        try:
            (((swept,),),) = await self._io.send(conn, [(sql.SWEEP, [])])
        except PgqError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            # Another session has locked what it needs; the next sweep begins anew.
            return False
        if self._has_patterns or len(self._queues) < len(self._settings.queues):
            self._queues = await self._existing()
        return bool(swept)

    async def push_due(self) -> None:
        """Push periodic tasks: the program that made them may run no workers."""
        try:
            seconds = await async_push_due(self._io, await self.connection())
        except ImportError as error:
            self.push_at = math.inf
            logger.warning(
                "worker %s pushes no periodic tasks: %s",
                self._settings.database.claimant,
                error,
                extra=self._settings.fields,
            )
            return
        self.push_at = monotonic() + (LOOK if seconds is None else min(seconds, LOOK))
