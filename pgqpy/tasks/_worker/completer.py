# WARNING: generated from pgqpy/tasks/_worker/completer_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Completing tasks: their outcomes go to the server, the log and the worker's hooks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pgqpy._runtime.acompat import holding
from pgqpy._runtime.failure import Failure
from pgqpy.connection import Connection
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


class Hooks(PlainHooks, Protocol):
    """The methods of an `TaskWorker` that its parts call; it describes them."""

    def handle_task(self, task: Task) -> Any: ...

    def process_task(self, conn: Connection, task: Task) -> Any: ...

    def process_batch(self, conn: Connection, tasks: list[Task]) -> Sequence[Any] | None: ...

    def on_task_failed(
        self, task: Task, error: Exception, delay: float | timedelta | None
    ) -> None: ...

    def on_completed(self, stats: TaskStats) -> None: ...

    def on_error(self, error: Exception) -> None: ...


class Completer(TaskOutcomes):
    """Decides on outcomes, and reports them; the loop and all executors share it."""

    _hooks: Hooks

    def __init__(self, settings: Settings, hooks: Hooks) -> None:
        super().__init__(settings, hooks)

    # --- to the server

    def prepare(self, conn: Connection, completed: list[Completion]) -> Completions:
        """Return the statements for outcomes; stops renewing the leases of these tasks."""
        claims = [each.claim for each in completed]
        info = conn.info
        in_transaction = info.transaction_status != TransactionStatus.IDLE
        if not in_transaction:
            with holding(self.leases.renewing):
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
            (rows,) = send(conn, [(sql.LEASES, [claimant, ids, in_transaction])])
            know_versions(doubtful, rows)
        return Completions(claimant, info, completed)

    def complete_each(self, conn: Connection, completed: list[Completion]) -> None:
        """Complete tasks one by one, and take them out of the list: the one refused has failed."""
        while completed:
            each = completed[0]
            completions = self.prepare(conn, [each])
            try:
                answers = send(conn, completions.calls())
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
                self.report(completions, answers)
            completed.pop(0)

    # --- to the log and the hooks

    def report(self, completions: Completions, answers: list[list[Any]]) -> None:
        """Report outcomes that the server has recorded."""
        lost = list(completions.lost(answers))
        if not lost and completions.one_finished:
            self._hooks.on_completed(_ONE_FINISHED)
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
            self._tell_failed(claim, outcome, verdict)
        self._hooks.on_completed(
            TaskStats(
                finished=counts[Finished],
                failed=counts[Failed],
                moved=counts[Moved],
                released=counts[Released],
                lost=len(lost),
            )
        )

    def _tell_failed(self, claim: Claim, outcome: Failed, verdict: Sequence[Any]) -> None:
        """Report the outcome of a failed task to the log and the worker's hook."""
        task, error = claim.task, outcome.raised
        final, queue, because = verdict
        what = f"task {task.id} of queue {task.queue}"
        end = f"goes to the error queue {queue}" + (f" ({because})" if because else "")
        delay = None if final else outcome.delay or timedelta()
        Failure(error, delay).log(what, task.attempts, self._fields(claim), end=end)
        if final:
            error.add_note(f"{what} {end} after attempt {task.attempts}")
        self._hooks.on_task_failed(task, error, delay)


def send(conn: Connection, calls: list[Call]) -> list[list[Any]]:
    """Send statements at once and return their rows: outside of a transaction they are one."""
    cursors = [conn.cursor(row_factory=tuple_row, binary=True) for _ in calls]
    with translate_errors():
        if len(calls) == 1:
            cursors[0].execute(*calls[0])
        else:
            try:
                with conn.pipeline():
                    for cursor, call in zip(cursors, calls, strict=True):
                        cursor.execute(*call)
            except psycopg.Error:
                _forget_prepared(conn)
                raise
        return [cursor.fetchall() for cursor in cursors]


def _forget_prepared(conn: Connection) -> None:
    """Make psycopg forget its prepared statements, by a rollback: if one of a pipeline's statements
    was refused, it wrongly takes those behind it for prepared."""
    if conn.info.transaction_status == TransactionStatus.IDLE:
        with suppress(psycopg.Error), conn.transaction(force_rollback=True):
            pass
