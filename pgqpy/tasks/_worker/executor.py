# WARNING: generated from pgqpy/tasks/_worker/executor_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Working on claimed tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Any

from psycopg.pq import TransactionStatus

from pgqpy._runtime.acompat import INTERRUPTIONS, Interruptible, Waker, holding
from pgqpy._runtime.batch_connection import BatchConnection
from pgqpy.connection import connect_as
from pgqpy.errors import ConnectionFailed, PgqError, TaskConflict, is_transient
from pgqpy.log import logger
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._outcome import (
    Finished,
    Outcome,
    Released,
    no_outcomes,
    outcome_of,
    outcomes_in,
    without_result,
)
from pgqpy.tasks._settings import Settings
from pgqpy.tasks._worker.completer import Completer, Hooks, send
from pgqpy.tasks._worker.completion import Call, Completion, Completions, lost_ids
from pgqpy.tasks._worker.leases import Claim
from pgqpy.telemetry._spans import processing_tasks

#: The minimum seconds for which an answer counts as new; if the server answers slowly, as long as
#: ten looks take.
_NEWS = 0.002
#: The same for a worker that claims one task and begins it at once: nothing happens in between,
#: and on a busy machine a processor is longer away than that.
_NEWS_OF_ONE = 0.05
#: The waiting tasks to ask about, for each slot: about those that begin before the answer is old.
_AHEAD = 10


class Lost(Exception):
    """Roll back: another worker has these tasks now."""

    def __init__(self, ids: Sequence[int]) -> None:
        super().__init__()
        self.ids = ids


class Executor:
    """Calls the handler of claimed tasks; `work` runs once in each concurrency slot."""

    def __init__(
        self, settings: Settings, hooks: Hooks, completer: Completer, waker: Waker
    ) -> None:
        self._settings = settings
        self._hooks = hooks
        self._completer = completer
        self._leases = completer.leases
        self._waker = waker
        self._idle: list[BatchConnection] = []
        self._asking = Lock()
        #: The tasks that slots are about to begin, since the last answer.
        self._beginning: list[Claim] = []
        self._alone = settings.batch_size == settings.concurrency == 1
        self._news = _NEWS_OF_ONE if self._alone else _NEWS
        #: Outcomes that the server must be told.
        self.ended: deque[Completion] = deque()
        #: The number of tasks that `process_batch` gets at once.
        self.batch_size = 1
        #: Whether to begin no more tasks.
        self.halted = False

    def work(self, until: float | None = None) -> None:
        """Work on waiting tasks, until there are none, or outcomes must be sent."""
        waiting = self._leases.waiting
        with suppress(IndexError):
            while not (self._hooks.stopping or self.halted):
                self._attempt(waiting.popleft())
                if until is not None and self.ended and monotonic() > until:
                    return

    def close(self) -> None:
        for conn in self._idle:
            conn.close()

    def _attempt(self, claim: Claim) -> None:
        claims = [claim]
        if self._settings.way == "process_batch":
            with suppress(IndexError):
                while len(claims) < self.batch_size:
                    claims.append(self._leases.waiting.popleft())
        try:
            begun = self._begin(claims)
        except INTERRUPTIONS:
            self._release(claims)
            raise
        if begun and self._settings.way == "handle_task":
            self._handle(claim)
        elif begun:
            self._process(begun)

    def _begin(self, claims: list[Claim]) -> list[Claim]:
        """Return the tasks to do: not cancelled, lease not ended, not too many workers lost."""
        now = monotonic()
        if not self._is_news(claims, now):
            self._hear_of_cancelled(claims, now)
            now = monotonic()
        begun = []
        for claim in claims:
            if claim.cancelled or claim.end <= now:
                self._end(Completion(claim, Released(None)))
            elif claim.suspect and (outcome := self._completer.taken_over(claim)):
                self._end(Completion(claim, outcome))
            elif (unread := claim.unread) is not None:
                self._end(Completion(claim, self._completer.outcome_of_error(claim, unread)))
            else:
                begun.append(claim)
        return begun

    def _is_news(self, claims: list[Claim], now: float) -> bool:
        """Whether it is known which tasks were cancelled: a claim tells that, too."""
        return min([claim.asked for claim in claims]) >= now - self._news

    def _hear_of_cancelled(self, claims: list[Claim], came: float) -> None:
        """Ask which tasks were cancelled, unless another slot has asked since, or just before."""
        self._beginning.extend(claims)
        with holding(self._asking):
            if self._is_news(claims, came):
                return
            asked = monotonic()
            ahead = _AHEAD * self._settings.concurrency
            others, self._beginning = self._beginning, []
            asks = [*claims, *others, *[*self._leases.waiting][:ahead]]
            claims_by_id = {claim.task.id: claim for claim in asks}
            try:
                conn = self._connection()
                try:
                    asking = [self._settings.database.claimant, [*claims_by_id]]
                    (rows,) = send(conn, [(sql.CANCELLED, asking)])
                finally:
                    self._put_back(conn)
            except PgqError as error:
                # The task will meet the same error.
                logger.debug("it is not known whether tasks were cancelled: %s", error)
                return
        if not self._alone:
            self._news = min(max(10 * (monotonic() - asked), _NEWS), _NEWS_OF_ONE)
        for claim in claims_by_id.values():
            claim.asked = asked
        for task_id, reason in rows:
            if not claims_by_id[task_id].cancelled:
                claims_by_id[task_id].cancelled = True
                logger.info("task %s is cancelled: %s", task_id, reason)

    def _end(self, completed: Completion) -> None:
        first = self._settings.in_slots and not self.ended
        self.ended.append(completed)
        if first:
            self._waker.wake()

    def _handle(self, claim: Claim) -> None:
        """Work on a task outside of any transaction."""
        outcome = None
        try:
            with Interruptible() as block:
                claim.interruptible(block.interrupt)
                with processing_tasks("handle_task", [claim.task]):
                    value = self._hooks.handle_task(claim.task)
                outcome = self._outcome_of(value)
                self._completer.outage_is_over()
        except Exception as error:
            if not claim.lost:
                outcome = self._completer.outcome_of_error(claim, error)
        except INTERRUPTIONS:
            self._release([claim])
            raise
        claim.interrupt = None
        if outcome is not None and not claim.lost:
            self._end(Completion(claim, outcome))

    def _process(self, claims: list[Claim]) -> None:
        """Work on tasks in one transaction; if that fails, on each in one of its own."""
        done = None
        try:
            with Interruptible() as block:
                for claim in claims:
                    claim.interruptible(block.interrupt)
                done = self._transact(claims)
        except Lost as error:
            for claim in claims:
                if claim.task.id in error.ids:
                    self._completer.lost(claim)
        except Exception as error:
            if len(claims) == 1 or is_transient(error):
                for claim in claims:
                    if not claim.lost:
                        outcome = self._completer.outcome_of_error(claim, error)
                        self._end(Completion(claim, outcome))
                return
        except INTERRUPTIONS:
            self._release(claims)
            raise
        finally:
            for claim in claims:
                claim.interrupt = None
        if done is not None:
            self._completer.outage_is_over()
            self._completer.report(*done)
            return
        left = [claim for claim in claims if not claim.lost]
        self._leases.keep(left)
        while left and not (self._hooks.stopping or self.halted):
            self._process([left.pop(0)])
        self._release(left)

    def _release(self, claims: list[Claim]) -> None:
        for claim in claims:
            if not claim.lost:
                self._end(Completion(claim, Released(None)))

    def _transact(self, claims: list[Claim]) -> tuple[Completions, list[list[Any]]]:
        """Process and finish; return the completions and the answers. Raises Lost, and any other
        error; then nothing was written."""
        conn = self._connection()
        try:
            with conn.batch():
                outcomes = self._call(conn, claims)
                completed = [Completion(*pair) for pair in zip(claims, outcomes, strict=True)]
                completions = self._completer.prepare(conn, completed)
                if len(completions.calls()) == 1:
                    conn.forgo_transaction()
                answers = self._finish(conn, completions)
                lost = [each.claim.task.id for each in completions.lost(answers)]
                if lost and not conn.autocommit:
                    raise Lost(lost)
        except Exception as error:
            if conn.closed and not conn.broken:
                raise RuntimeError(f"{self._settings.way} closed its connection") from error
            if conn.closed:
                # The task is not the one that has to wait.
                self._completer.wait_for_database(error)
            raise
        finally:
            self._put_back(conn)
        return completions, answers

    def _call(self, conn: BatchConnection, claims: list[Claim]) -> list[Outcome]:
        hooks = self._hooks
        if self._settings.way == "process_task":
            with processing_tasks("process_task", [claims[0].task]):
                value = hooks.process_task(conn, claims[0].task)
            return [self._outcome_of(value)]
        tasks = [claim.task for claim in claims]
        with processing_tasks("process_batch", tasks):
            values = hooks.process_batch(conn, tasks)
        if values is None:
            return [Finished(None)] * len(claims)
        outcomes = outcomes_in(values)
        if outcomes is None:
            outcome = self._outcome_of(values)
            if isinstance(outcome, Finished):
                outcome = without_result(no_outcomes(values))
            return [outcome] * len(claims)
        if len(outcomes) != len(claims):
            raise ValueError(
                f"process_batch returned {len(outcomes)} outcomes of {len(claims)} tasks"
            )
        return [self._outcome_of(value) for value in outcomes]

    def _outcome_of(self, value: Any) -> Outcome:
        return outcome_of(value, self._hooks.encode_result)

    def _finish(self, conn: BatchConnection, completions: Completions) -> list[list[Any]]:
        """Finish the tasks. Raises Lost, if some of them are."""
        if completions.may_be_refused():
            try:
                with conn.transaction():
                    return self._send(conn, completions.calls())
            except (Lost, TaskConflict):
                raise
            except Exception as error:
                if conn.closed or is_transient(error):
                    raise
                completions.drop_results(error)
        return self._send(conn, completions.calls())

    def _send(self, conn: BatchConnection, calls: list[Call]) -> list[list[Any]]:
        try:
            return send(conn, calls)
        except TaskConflict as error:
            if ids := lost_ids(error):
                raise Lost(ids) from error
            raise

    def _put_back(self, conn: BatchConnection) -> None:
        idle = conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE
        if idle and not self.halted:
            self._idle.append(conn)
        else:
            # The interruption was quicker than the rollback, or the worker has ended.
            conn.close()

    def _connection(self) -> BatchConnection:
        with suppress(IndexError):
            while True:
                conn = self._idle.pop()
                if not conn.closed:
                    return conn
        database = self._settings.database
        try:
            return connect_as(BatchConnection, database.dsn, **database.options)
        except ConnectionFailed as error:
            self._completer.wait_for_database(error)
            raise
