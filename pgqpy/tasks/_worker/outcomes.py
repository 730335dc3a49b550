"""The decisions on tasks that failed, were refused or were lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import Any, Protocol

from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.failure import is_outage
from pgqpy.errors import PgqError, TaskConflict
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
    outcome_of_error,
    without_result,
)
from pgqpy.tasks._settings import Settings
from pgqpy.tasks._values import Task
from pgqpy.tasks._worker.completion import Completion, lost_ids
from pgqpy.tasks._worker.leases import Claim, Leases
from pgqpy.telemetry._spans import trace_fields


class PlainHooks(Protocol):
    """The methods of every worker that do not await anything."""

    stopping: bool

    def policy_of(self, task: Task) -> RetryPolicy: ...

    def encode_result(self, value: Any) -> str | None: ...

    def on_task_lost(self, task: Task) -> None: ...

    def _stuck(self) -> Exception | None: ...

    def _hung(self) -> tuple[Task, Exception] | None: ...


class TaskOutcomes:
    """Decides on the outcomes of tasks, and on pauses in an outage."""

    def __init__(self, settings: Settings, hooks: PlainHooks) -> None:
        self._settings = settings
        self._hooks = hooks
        self.leases = Leases(settings.database, settings.lease, self.lost)
        #: Pauses after failures that are no task's fault.
        self._outage = Backoff(0.1, settings.reconnect_cap)
        self._outage_until = 0.0
        self.not_before = 0.0

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
