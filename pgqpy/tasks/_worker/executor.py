"""Working on claimed tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Any

from psycopg.pq import TransactionStatus

from pgqpy._runtime.acompat import INTERRUPTIONS, AsyncWaker, Waker
from pgqpy._runtime.batch_connection_async import AsyncBatchConnection
from pgqpy._runtime.io import BATCH, Call
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
from pgqpy.tasks._worker.completer import Completer, Hooks
from pgqpy.tasks._worker.completion import Completion, Completions, lost_ids
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
        self, settings: Settings, hooks: Hooks, completer: Completer, waker: AsyncWaker | Waker
    ) -> None:
        self._settings = settings
        self._hooks = hooks
        self._io = hooks._io
        self._completer = completer
        self._leases = completer.leases
        self._waker = waker
        self._idle: list[AsyncBatchConnection] = []
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

    async def work(self, until: float | None = None) -> None:
        """Work on waiting tasks, until there are none, or outcomes must be sent."""
        waiting = self._leases.waiting
        with suppress(IndexError):
            while not (self._hooks.stopping or self.halted):
                claims = [waiting.popleft()]
                if self._settings.way == "process_batch":
                    with suppress(IndexError):
                        while len(claims) < self.batch_size:
                            claims.append(waiting.popleft())
                try:
                    now = monotonic()
                    if not self._is_news(claims, now):
                        await self._hear_of_cancelled(claims, now)
                        now = monotonic()
                    begun = self._begin(claims, now)
                except INTERRUPTIONS:
                    self._release(claims)
                    raise
                if begun and self._settings.way == "handle_task":
                    await self._handle(begun[0])
                elif begun:
                    await self._process(begun)
                if until is not None and self.ended and monotonic() > until:
                    return

    async def close(self) -> None:
        for conn in self._idle:
            await self._io.call(conn.close)

    def _begin(self, claims: list[Claim], now: float) -> list[Claim]:
        """Return the tasks to do: not cancelled, lease not ended, not too many workers lost."""
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

    async def _hear_of_cancelled(self, claims: list[Claim], came: float) -> None:
        """Ask which tasks were cancelled, unless another slot has asked since, or just before."""
        self._beginning.extend(claims)
        async with self._io.holding(self._asking):
            if self._is_news(claims, came):
                return
            asked = monotonic()
            ahead = _AHEAD * self._settings.concurrency
            others, self._beginning = self._beginning, []
            asks = [*claims, *others, *[*self._leases.waiting][:ahead]]
            claims_by_id = {claim.task.id: claim for claim in asks}
            try:
                conn = await self._connection()
                try:
                    asking = [self._settings.database.claimant, [*claims_by_id]]
                    (rows,) = await self._io.send(conn, [(sql.CANCELLED, asking)])
                finally:
                    await self._put_back(conn)
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

    async def _handle(self, claim: Claim) -> None:
        """Work on a task outside of any transaction."""
        outcome = None
        try:
            with self._io.interruptible() as block:
                claim.interruptible(block.interrupt)
                with processing_tasks("handle_task", [claim.task]):
                    # Not by `_io.call`: one coroutine more for each task takes time.
                    value = self._hooks.handle_task(claim.task)
                    if self._io.awaits:
                        value = await value
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

    async def _process(self, claims: list[Claim]) -> None:
        """Work on tasks in one transaction; if that fails, on each in one of its own."""
        done = None
        try:
            with self._io.interruptible() as block:
                for claim in claims:
                    claim.interruptible(block.interrupt)
                done = await self._transact(claims)
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
            await self._completer.report(*done)
            return
        left = [claim for claim in claims if not claim.lost]
        self._leases.keep(left)
        while left and not (self._hooks.stopping or self.halted):
            await self._process([left.pop(0)])
        self._release(left)

    def _release(self, claims: list[Claim]) -> None:
        for claim in claims:
            if not claim.lost:
                self._end(Completion(claim, Released(None)))

    async def _transact(self, claims: list[Claim]) -> tuple[Completions, list[list[Any]]]:
        """Process and finish; return the completions and the answers. Raises Lost, and any other
        error; then nothing was written."""
        conn = await self._connection()
        try:
            async with self._io.block(conn.batch()):
                outcomes = await self._call(conn, claims)
                completed = [Completion(*pair) for pair in zip(claims, outcomes, strict=True)]
                completions = await self._completer.prepare(conn, completed)
                if len(completions.calls()) == 1:
                    await self._io.call(conn.forgo_transaction)
                answers = await self._finish(conn, completions)
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
            await self._put_back(conn)
        return completions, answers

    async def _call(self, conn: AsyncBatchConnection, claims: list[Claim]) -> list[Outcome]:
        hooks = self._hooks
        if self._settings.way == "process_task":
            with processing_tasks("process_task", [claims[0].task]):
                value = await self._io.call(hooks.process_task, conn, claims[0].task)
            return [self._outcome_of(value)]
        tasks = [claim.task for claim in claims]
        with processing_tasks("process_batch", tasks):
            values = await self._io.call(hooks.process_batch, conn, tasks)
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

    async def _finish(
        self, conn: AsyncBatchConnection, completions: Completions
    ) -> list[list[Any]]:
        """Finish the tasks. Raises Lost, if some of them are."""
        if completions.may_be_refused():
            try:
                async with self._io.block(conn.transaction()):
                    return await self._send(conn, completions.calls())
            except (Lost, TaskConflict):
                raise
            except Exception as error:
                if conn.closed or is_transient(error):
                    raise
                completions.drop_results(error)
        return await self._send(conn, completions.calls())

    async def _send(self, conn: AsyncBatchConnection, calls: list[Call]) -> list[list[Any]]:
        try:
            return await self._io.send(conn, calls)
        except TaskConflict as error:
            if ids := lost_ids(error):
                raise Lost(ids) from error
            raise

    async def _put_back(self, conn: AsyncBatchConnection) -> None:
        idle = conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE
        if idle and not self.halted:
            self._idle.append(conn)
        else:
            # The interruption was quicker than the rollback, or the worker has ended.
            await self._io.call(conn.close)

    async def _connection(self) -> AsyncBatchConnection:
        with suppress(IndexError):
            while True:
                conn = self._idle.pop()
                if not conn.closed:
                    return conn
        database = self._settings.database
        try:
            return await self._io.connect(BATCH, database.dsn, **database.options)
        except ConnectionFailed as error:
            self._completer.wait_for_database(error)
            raise
