"""Outcomes of tasks: decided, and reported to the server, the log and the worker's hooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import Any, Protocol

from psycopg.pq import TransactionStatus

from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.failure import Failure, is_outage
from pgqpy._runtime.io import AsyncIo
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import PgqError, TaskConflict, is_transient
from pgqpy.log import logger
from pgqpy.retry import DeadLetter, RetryPolicy, in_short
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._outcome import (
    Failed,
    Finished,
    Moved,
    Outcome,
    Released,
    TaskLost,
    TaskStats,
    outcome_of_error,
    without_result,
)
from pgqpy.tasks._settings import Settings
from pgqpy.tasks._values import Task
from pgqpy.tasks._worker.completion import Completion, Completions, lost_ids
from pgqpy.tasks._worker.leases import Claim, Leases, know_versions
from pgqpy.telemetry._spans import trace_fields

_ONE_FINISHED = TaskStats(finished=1)


class Hooks(Protocol):
    """A worker, which describes these methods; `_io` calls those that it may have to await."""

    stopping: bool

    @property
    def _io(self) -> AsyncIo: ...

    def handle_task(self, task: Task) -> Any: ...

    def process_task(self, conn: Any, task: Task) -> Any: ...

    def process_batch(self, conn: Any, tasks: list[Task]) -> Any: ...

    def on_task_failed(
        self, task: Task, error: Exception, delay: float | timedelta | None
    ) -> Any: ...

    def on_completed(self, stats: TaskStats) -> Any: ...

    def on_error(self, error: Exception) -> Any: ...

    # What follows is never awaited.

    def policy_of(self, task: Task) -> RetryPolicy: ...

    def encode_result(self, value: Any) -> str | None: ...

    def on_task_lost(self, task: Task) -> None: ...

    def _stuck(self) -> Exception | None: ...

    def _hung(self) -> tuple[Task, Exception] | None: ...


class Completer:
    """Decides on outcomes, and reports them; the loop and all executors share it."""

    def __init__(self, settings: Settings, hooks: Hooks) -> None:
        self._settings = settings
        self._hooks = hooks
        self._io = hooks._io
        self.leases = Leases(settings.database, settings.lease, self.lost)
        #: Pauses after failures that are no task's fault.
        self._outage = Backoff(0.1, settings.reconnect_cap)
        self._outage_until = 0.0
        self.not_before = 0.0

    # --- to the server

    async def prepare(self, conn: AsyncConnection, completed: list[Completion]) -> Completions:
        """Return the statements for outcomes; stops renewing the leases of these tasks."""
        claims = [each.claim for each in completed]
        info = conn.info
        in_transaction = info.transaction_status != TransactionStatus.IDLE
        if self.leases.renewing.acquire(blocking=False):
            self.leases.drop(claims)
            self.leases.renewing.release()
        elif not in_transaction:
            async with self._io.holding(self.leases.renewing):
                self.leases.drop(claims)
        else:
            # Behind a pooler the renewal may wait for the very session of this transaction.
            self.leases.drop(claims)
            for claim in claims:
                claim.doubtful = True
        claimant = self._settings.database.claimant
        doubtful = [claim for claim in claims if claim.doubtful]
        if doubtful:
            ids = [claim.task.id for claim in doubtful]
            (rows,) = await self._io.send(conn, [(sql.LEASES, [claimant, ids, in_transaction])])
            know_versions(doubtful, rows)
        return Completions(claimant, info, completed)

    async def complete_each(self, conn: AsyncConnection, completed: list[Completion]) -> None:
        """Complete tasks one by one, and take them out of the list: the one refused has failed."""
        while completed:
            each = completed[0]
            completions = await self.prepare(conn, [each])
            try:
                answers = await self._io.send(conn, completions.calls())
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
            await self._io.call(self._hooks.on_completed, _ONE_FINISHED)
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
        stats = TaskStats(
            finished=counts[Finished],
            failed=counts[Failed],
            moved=counts[Moved],
            released=counts[Released],
            lost=len(lost),
        )
        await self._io.call(self._hooks.on_completed, stats)

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
        await self._io.call(self._hooks.on_task_failed, task, error, delay)

    # --- decisions

    def outcome_of_error(self, claim: Claim, error: Exception) -> Outcome:
        """Return the outcome of a task for which this error was raised."""
        task = claim.task
        # A conflict of its own `modify`: the next attempt sees the others' changes.
        conflict = isinstance(error, TaskConflict) and bool(lost_ids(error))
        if not (conflict or is_outage(error, self._settings.outages)):
            return self._decide(error, task)
        pause = self._outage_pause()
        logger.warning(
            "task %s is released, for no fault of its own, for %.1f s: %s",
            task.id,
            pause,
            in_short(error),
            extra=self._fields(claim) | {"pause": pause},
        )
        return Released(timedelta(seconds=pause))

    def taken_over(self, claim: Claim) -> Outcome | None:
        """Return the last outcome of a task that lost a worker; None if it is begun again."""
        task = claim.task
        before = replace(task, attempts=task.attempts - 1)
        outcome = self._decide(TaskLost(sql.LOST), before)
        if isinstance(outcome, Failed) and outcome.delay is None:
            return outcome
        logger.info(
            "task %s of queue %s is taken over, in attempt %s: %s",
            task.id,
            task.queue,
            task.attempts,
            sql.LOST,
            extra=self._fields(claim),
        )
        return None

    def _decide(self, error: Exception, task: Task) -> Outcome:
        def policy(attempt: int, error: Exception) -> float | timedelta | None:
            # Here, where its own error does no harm.
            return self._hooks.policy_of(task)(attempt, error)

        return outcome_of_error(error, task, policy)

    def wait_for_database(self, error: Exception) -> None:
        """Claim nothing for a while: nothing could be worked on."""
        self.not_before = monotonic() + self._outage_pause(error)

    def outage_is_over(self) -> None:
        """End an outage: something worked."""
        self._outage.reset()

    def _outage_pause(self, lost: Exception | None = None) -> float:
        """Return the seconds to wait; a failure before they are over does not prolong the pause."""
        now = monotonic()
        if now >= self._outage_until:
            self._outage_until = now + self._outage.pause(lost)
        return self._outage_until - now

    def instead_of_refused(self, refused: Completion, error: PgqError) -> Outcome | None:
        outcome = refused.outcome
        if isinstance(outcome, Finished) and outcome.result is not None:
            return without_result(error)
        if isinstance(outcome, Failed):
            return None
        # A move would be repeated, and end at the same place.
        why = DeadLetter(error) if isinstance(outcome, Moved) else error
        return self.outcome_of_error(refused.claim, why)

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
            self._hooks.on_task_lost(task)
        except Exception:
            logger.exception("on_task_lost failed", extra=self._fields(claim))
        if claim.interrupt is not None:
            claim.interrupt()

    def _fields(self, claim: Claim) -> dict[str, Any]:
        task = claim.task
        return {
            "queue": task.queue,
            "claimant": self._settings.database.claimant,
            "task_id": task.id,
            "attempt": task.attempts,
            **trace_fields(task),
        }
