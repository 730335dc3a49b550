"""Completing tasks: their outcomes go to the server, the log and the worker's hooks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pgqpy._runtime.acompat import async_holding
from pgqpy._runtime.failure import Failure
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import PgqError, TaskConflict, is_transient, translate_errors
from pgqpy.log import logger
from pgqpy.retry import in_short
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._outcome import Failed, Finished, Moved, Released, TaskStats
from pgqpy.tasks._settings import Settings
from pgqpy.tasks._values import Task
from pgqpy.tasks._worker.completion import Call, Completion, Completions, lost_ids
from pgqpy.tasks._worker.leases import Claim, know_versions
from pgqpy.tasks._worker.outcomes import PlainHooks, TaskOutcomes

_ONE_FINISHED = TaskStats(finished=1)


class AsyncHooks(PlainHooks, Protocol):
    """The methods of an `AsyncTaskWorker` that its parts call; it describes them."""

    async def handle_task(self, task: Task) -> Any: ...

    async def process_task(self, conn: AsyncConnection, task: Task) -> Any: ...

    async def process_batch(
        self, conn: AsyncConnection, tasks: list[Task]
    ) -> Sequence[Any] | None: ...

    async def on_task_failed(
        self, task: Task, error: Exception, delay: float | timedelta | None
    ) -> None: ...

    async def on_completed(self, stats: TaskStats) -> None: ...

    async def on_error(self, error: Exception) -> None: ...


class AsyncCompleter(TaskOutcomes):
    """Decides on outcomes, and reports them; the loop and all executors share it."""

    _hooks: AsyncHooks

    def __init__(self, settings: Settings, hooks: AsyncHooks) -> None:
        super().__init__(settings, hooks)

    # --- to the server

    async def prepare(self, conn: AsyncConnection, completed: list[Completion]) -> Completions:
        """Return the statements for outcomes; stops renewing the leases of these tasks."""
        claims = [each.claim for each in completed]
        info = conn.info
        in_transaction = info.transaction_status != TransactionStatus.IDLE
        if not in_transaction:
            async with async_holding(self.leases.renewing):
                self.leases.drop(claims)
        elif self.leases.renewing.acquire(blocking=False):
            self.leases.drop(claims)
            self.leases.renewing.release()
        else:
            # Behind a pooler the renewal may wait for the very session of this transaction.
            self.leases.drop(claims)
            for claim in claims:
                claim.doubtful = True
        claimant = self._settings.database.claimant
        doubtful = [claim for claim in claims if claim.doubtful]
        if doubtful:
            ids = [claim.task.id for claim in doubtful]
            (rows,) = await async_send(conn, [(sql.LEASES, [claimant, ids, in_transaction])])
            know_versions(doubtful, rows)
        return Completions(claimant, info, completed)

    async def complete_each(self, conn: AsyncConnection, completed: list[Completion]) -> None:
        """Complete tasks one by one, and take them out of the list: the one refused has failed."""
        while completed:
            each = completed[0]
            completions = await self.prepare(conn, [each])
            try:
                answers = await async_send(conn, completions.calls())
            except PgqError as error:
                if is_transient(error) or conn.closed:
                    raise
                if isinstance(error, TaskConflict) and lost_ids(error):
                    self.lost(each.claim)
                elif (instead := self.instead_of_refused(each, error)) is not None:
                    each.outcome = instead
                    continue
                else:
                    logger.exception(
                        "the server takes no outcome of task %s",
                        each.claim.task.id,
                        extra=self._fields(each.claim),
                    )
            else:
                await self.report(completions, answers)
            completed.pop(0)

    # --- to the log and the hooks

    async def report(self, completions: Completions, answers: list[list[Any]]) -> None:
        """Report outcomes that the server has recorded."""
        lost = list(completions.lost(answers))
        if not lost and completions.one_finished:
            await self._hooks.on_completed(_ONE_FINISHED)
            return
        for each in lost:
            self.lost(each.claim)
            if isinstance(each.outcome, Failed):
                error = each.outcome.raised
                logger.warning(
                    "of task %s attempt %s had failed: %s",
                    each.claim.task.id,
                    each.claim.task.attempts,
                    in_short(error),
                    exc_info=error,
                    extra=self._fields(each.claim),
                )
        counts = dict.fromkeys((Finished, Failed, Moved, Released), 0)
        for each in completions.all:
            if each in lost:
                continue
            counts[type(each.outcome)] += 1
            if isinstance(each.outcome, Finished) and each.outcome.note:
                logger.warning(
                    "task %s of queue %s is finished, but %s",
                    each.claim.task.id,
                    each.claim.task.queue,
                    each.outcome.note,
                    extra=self._fields(each.claim),
                )
        for claim, outcome, verdict in completions.failed(answers):
            await self._tell_failed(claim, outcome, verdict)
        await self._hooks.on_completed(
            TaskStats(
                finished=counts[Finished],
                failed=counts[Failed],
                moved=counts[Moved],
                released=counts[Released],
                lost=len(lost),
            )
        )

    async def _tell_failed(self, claim: Claim, outcome: Failed, verdict: Sequence[Any]) -> None:
        """Report the outcome of a failed task to the log and the worker's hook."""
        task, error = claim.task, outcome.raised
        final, queue, because = verdict
        what = f"task {task.id} of queue {task.queue}"
        end = f"goes to the error queue {queue}" + (f" ({because})" if because else "")
        delay = None if final else outcome.delay or timedelta()
        Failure(error, delay).log(what, task.attempts, self._fields(claim), end=end)
        if final:
            error.add_note(f"{what} {end} after attempt {task.attempts}")
        await self._hooks.on_task_failed(task, error, delay)


async def async_send(conn: AsyncConnection, calls: list[Call]) -> list[list[Any]]:
    """Send statements at once and return their rows: outside of a transaction they are one."""
    cursors = [conn.cursor(row_factory=tuple_row, binary=True) for _ in calls]
    with translate_errors():
        if len(calls) == 1:
            await cursors[0].execute(*calls[0])
        else:
            try:
                async with conn.pipeline():
                    for cursor, call in zip(cursors, calls, strict=True):
                        await cursor.execute(*call)
            except psycopg.Error:
                await _forget_prepared(conn)
                raise
        return [await cursor.fetchall() for cursor in cursors]


async def _forget_prepared(conn: AsyncConnection) -> None:
    """Make psycopg forget its prepared statements, by a rollback: if one of a pipeline's statements
    was refused, it wrongly takes those behind it for prepared."""
    if conn.info.transaction_status == TransactionStatus.IDLE:
        with suppress(psycopg.Error):
            async with conn.transaction(force_rollback=True):
                pass
