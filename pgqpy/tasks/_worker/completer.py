# WARNING: generated from pgqpy/tasks/_worker/completer_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Reporting outcomes of tasks: to the server, the log and the worker's hooks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pgqpy._runtime.acompat import holding
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.log import logger
from pgqpy.connection import Connection
from pgqpy.errors import TaskConflict, is_transient, translate_errors
from pgqpy.retry import DeadLetter, Retry, in_short
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._outcome import (
    Failed,
    Finished,
    Move,
    Moved,
    Outcome,
    Released,
    TaskLost,
    TaskStats,
)
from pgqpy.tasks._worker.completion import Call, Completion, Completions, lost_ids
from pgqpy.tasks._worker.leases import Claim, Leases, know_versions

if TYPE_CHECKING:
    from pgqpy.tasks._worker.worker import TaskWorker

_ONE_FINISHED = TaskStats(finished=1)


class Completer:
    """The shared state of a worker's loop and its attempts."""

    def __init__(self, worker: TaskWorker) -> None:
        self._worker = worker
        self._name = f"pgqpy {worker.name}"[:63]
        self.leases = Leases(
            worker.dsn,
            worker.name,
            sql.duration(worker.lease, "lease"),
            self.lost,
            application_name=self._name,
            prepare_threshold=worker.prepare_threshold,
        )
        #: Pauses after failures that are no task's fault.
        self._outage = Backoff(0.1, worker.reconnect_cap)
        self._outage_until = 0.0
        self.not_before = 0.0

    @property
    def connecting(self) -> dict[str, Any]:
        """The worker's arguments for connections."""
        return {
            "autocommit": True,
            "application_name": self._name,
            "prepare_threshold": self._worker.prepare_threshold,
        }

    def prepare(self, conn: Connection, completed: list[Completion]) -> Completions:
        """Return the statements for outcomes; stops renewing the leases of these tasks."""
        claims = [each.claim for each in completed]
        info = conn.info
        in_transaction = info.transaction_status != TransactionStatus.IDLE
        if in_transaction and self.leases.renewing.locked():
            # Behind a pooler the renewal may wait for the very session of this transaction.
            self.leases.drop(claims)
            for claim in claims:
                claim.doubtful = True
        else:
            with holding(self.leases.renewing):
                self.leases.drop(claims)
        doubtful = [claim for claim in claims if claim.doubtful]
        if doubtful:
            ids = [claim.task.id for claim in doubtful]
            (rows,) = send(conn, [(sql.LEASES, [self._worker.name, ids, in_transaction])])
            know_versions(doubtful, rows)
        return Completions(self._worker.name, info, completed)

    def report(self, completions: Completions, answers: list[list[Any]]) -> None:
        """Report outcomes that the server has recorded to the worker."""
        lost = [each.claim for each in completions.lost(answers)]
        if not lost and completions.one_finished:
            self._worker.on_completed(_ONE_FINISHED)
            return
        for claim in lost:
            self.lost(claim)
        for each in completions.all:
            if isinstance(each.outcome, Finished) and each.outcome.note and each.claim not in lost:
                task = each.claim.task
                logger.warning(
                    "task %s of queue %s is finished, but %s",
                    task.id,
                    task.queue,
                    each.outcome.note,
                    extra=self._fields(each.claim),
                )
        for each in completions.lost(answers):
            if isinstance(each.outcome, Failed):
                task, error = each.claim.task, each.outcome.raised
                logger.warning(
                    "of task %s attempt %s had failed: %s",
                    task.id,
                    task.attempts,
                    in_short(error),
                    exc_info=error,
                    extra=self._fields(each.claim),
                )
        for claim, outcome, verdict in completions.failed(answers):
            self._tell_failed(claim, outcome, verdict)
        counts = dict.fromkeys((Finished, Failed, Moved, Released), 0)
        for each in completions.all:
            if each.claim not in lost:
                counts[type(each.outcome)] += 1
        self._worker.on_completed(
            TaskStats(
                finished=counts[Finished],
                failed=counts[Failed],
                moved=counts[Moved],
                released=counts[Released],
                lost=len(lost),
            )
        )

    def lost(self, claim: Claim) -> None:
        """Report that another worker has, or had, the task. Call it from any thread."""
        if claim.lost:
            return
        claim.lost = True
        task = claim.task
        logger.warning(
            "task %s of queue %s is lost: it was claimed, finished or changed elsewhere",
            task.id,
            task.queue,
            extra=self._fields(claim),
        )
        try:
            self._worker.on_task_lost(task)
        except Exception:
            logger.exception("on_task_lost failed", extra=self._fields(claim))
        if claim.interrupt is not None:
            claim.interrupt()

    def wait_for_database(self) -> None:
        """Claim nothing for a while: nothing could be worked on."""
        self.not_before = monotonic() + self._outage_pause()

    def outage_is_over(self) -> None:
        """End an outage: something worked."""
        self._outage.reset()

    def _outage_pause(self) -> float:
        """Return the seconds to wait after a failure that is no task's fault. A failure before they
        are over belongs to the same outage, and does not prolong the pause."""
        now = monotonic()
        if now >= self._outage_until:
            self._outage_until = now + self._outage.pause()
        return self._outage_until - now

    def outcome_of_lost(self, claim: Claim) -> Outcome | None:
        """Return the outcome of a task that lost a worker, instead of a further attempt; None if it
        is retried."""
        before = replace(claim.task, attempts=claim.task.attempts - 1)
        outcome = self._worker.outcome_of_error(before, TaskLost(sql.LOST))
        return outcome if isinstance(outcome, Failed) and outcome.delay is None else None

    def outcome_of_error(self, claim: Claim, error: Exception) -> Outcome:
        """Return the outcome of a task for which this error was raised."""
        worker, task = self._worker, claim.task
        meant = isinstance(error, Retry | DeadLetter | Move)
        # A conflict of its own `modify`: the next attempt sees the others' changes.
        conflict = isinstance(error, TaskConflict) and bool(lost_ids(error))
        if not meant and (conflict or isinstance(error, worker.outages) or is_transient(error)):
            pause = self._outage_pause()
            logger.warning(
                "task %s is given back, for no fault of its own, for %.1f s: %s",
                task.id,
                pause,
                in_short(error),
                extra=self._fields(claim) | {"pause": pause},
            )
            return Released(timedelta(seconds=pause))
        return worker.outcome_of_error(task, error)

    def _tell_failed(self, claim: Claim, outcome: Failed, verdict: Sequence[Any]) -> None:
        """Report the outcome of a failed task to the log and the worker's hook."""
        task, error = claim.task, outcome.raised
        buried, queue, because = verdict
        if buried:
            where = f"goes to the error queue {queue} after attempt {task.attempts}"
            where += f" ({because})" if because else ""
            # A deliberate DeadLetter may name a cause; only that has a traceback of interest.
            cause = error.__cause__ if isinstance(error, DeadLetter) else error
            logger.error(
                "task %s of queue %s %s: %s",
                task.id,
                task.queue,
                where,
                in_short(error),
                exc_info=cause,
                extra=self._fields(claim),
            )
            error.add_note(f"task {task.id} of queue {task.queue} {where}")
            self._worker.on_task_failed(task, error, None)
            return
        delay = outcome.delay or timedelta()
        logger.warning(
            "task %s of queue %s failed in attempt %s, again in %.1f s: %s",
            task.id,
            task.queue,
            task.attempts,
            delay.total_seconds(),
            in_short(error),
            extra=self._fields(claim) | {"pause": delay.total_seconds()},
        )
        self._worker.on_task_failed(task, error, delay)

    def _fields(self, claim: Claim) -> dict[str, Any]:
        task = claim.task
        return {
            "queue": task.queue,
            "claimant": self._worker.name,
            "task_id": task.id,
            "attempt": task.attempts,
        }


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
