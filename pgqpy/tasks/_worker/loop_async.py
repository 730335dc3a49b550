"""A worker's run, from its first claim until it stops."""

from __future__ import annotations

import math
import random
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from psycopg import AsyncCursor
from psycopg.rows import tuple_row

from pgqpy._runtime.acompat import AsyncCrew, AsyncWaker
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.log import logger
from pgqpy.connection_async import AsyncConnection, async_connect, async_read_committed
from pgqpy.errors import (
    PERMANENT,
    PgqError,
    TaskConflict,
    TaskQueueNotFound,
    is_transient,
    translate_errors,
)
from pgqpy.retry import DeadLetter
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._jobs.due_async import LOOK, async_push_due
from pgqpy.tasks._outcome import Failed, Finished, Moved, Released, without_result
from pgqpy.tasks._values import Task
from pgqpy.tasks._worker.completer_async import AsyncCompleter, async_send
from pgqpy.tasks._worker.completion import Completion, Completions, lost_ids
from pgqpy.tasks._worker.executor_async import AsyncExecutor
from pgqpy.tasks._worker.leases import Claim
from pgqpy.tasks._worker.notifier_async import AsyncTaskNotifier

if TYPE_CHECKING:
    from pgqpy.tasks._worker.worker_async import AsyncTaskWorker

#: The maximum seconds until an outcome is reported, unless the next one takes longer.
_PROMPT = 0.02
#: The seconds that a batch should take: if it takes less, the next one is twice as large.
_QUICK, _SLOW = 0.1, 0.5
#: The first poll after a claim that found nothing: some uncommitted pushes send no notification.
_FIRST_LOOK = 0.05
_SWEEP = 1.0
_LOCK_NOT_AVAILABLE = "55P03"
#: The number of signals answered at once before they are folded, so that tasks that come once an
#: interval need not wait if one of them is a little early.
_AT_ONCE = 3


class AsyncLoop:
    """The loop: report outcomes and claim the next tasks, in one round trip; work on them."""

    def __init__(self, worker: AsyncTaskWorker, waker: AsyncWaker, *, until_empty: bool) -> None:
        self._until_empty = until_empty
        self._worker = worker
        self._waker = waker
        self._all_queues = sql.queue_names(worker.queues)
        #: Without those that were dropped meanwhile.
        self._queues = self._all_queues
        self._has_claimed = False
        self._lease = sql.duration(worker.lease, "lease")
        self._completer = AsyncCompleter(worker)
        self._executor = AsyncExecutor(worker, self._completer, waker)
        self.leases = self._completer.leases
        self._notifier = (
            AsyncTaskNotifier(worker.listen_dsn, self._queues) if worker.listen else None
        )
        self._crew = AsyncCrew(worker.concurrency, waker.wake)
        self._conn: AsyncConnection | None = None
        self._cursor: AsyncCursor[Any] | None = None
        #: Outcomes that the server may not know yet.
        self._uncompleted: list[Completion] = []
        #: The number of tasks to claim at once.
        self._size = worker.concurrency
        self._claimed_at = 0.0
        self._completed_at = 0.0
        #: A claimed task that begins after all waiting tasks are given back: if it ends this
        #: process, no other task loses an attempt.
        self._suspect: Claim | None = None
        #: A task that may end this process: while it is worked on no other one begins.
        self._dangerous: Claim | None = None
        #: Whether the last claim got fewer tasks than it could.
        self._dry = False
        #: Whether it got none while no task was worked on: there was nothing to do.
        self._done = False
        self._look_at = 0.0
        self._look_pause = _FIRST_LOOK
        self._sweep_at = 0.0
        self._push_at = 0.0 if worker.pushes_periodic() else math.inf
        #: The time to answer a signal that arrives earlier; and the time by which all answers so
        #: far would have been given, had there been an interval between them.
        self._answer_at = 0.0
        self._answers_until = 0.0
        #: The number of consecutive signals that were answered in vain.
        self._vain = 0
        #: The number of tasks of the last claim.
        self._found = 0
        self._away = Backoff(0.1, worker.reconnect_cap)

    async def run(self) -> None:
        """Work until the worker stops, or until there is nothing to do."""
        worker = self._worker
        try:
            await self._connection()
            logger.info("worker %s started", worker.name, extra=worker.fields)
            while not worker.stopping:
                self._crew.check()
                try:
                    if not await self._turn():
                        break
                except PgqError as error:
                    if isinstance(error, TaskQueueNotFound) and await self._go_on_without():
                        continue
                    if self._until_empty or isinstance(error, PERMANENT):
                        raise
                    await self._database_away(error)
            await self._leave()
            logger.info("worker %s stopped", worker.name, extra=worker.fields)
        finally:
            self._executor.halted = True
            await self._crew.close()
            # After an error: report the outcomes that can be reported at once.
            try:
                with suppress(Exception):
                    await self._leave()
            finally:
                self.leases.close()
                await self._executor.close()
                if self._conn is not None:
                    await self._conn.close()
                if self._notifier is not None:
                    await self._notifier.close()

    # --- the loop

    async def _turn(self) -> bool:
        """Run one round. False if there is nothing to do."""
        if self.leases.waiting:
            await self._set_to_work()
            if self._worker.stopping:
                return True
        now = monotonic()
        if now >= max(self._push_at, self._completer.not_before):
            await self._push_periodic()
        answering = self._heard and now >= self._answer_at
        looking = now >= self._completer.not_before and (
            answering
            or not self._dry
            or now >= self._look_at
            # Finished tasks may have pushed others.
            or (
                self._until_empty and (bool(self._executor.ended) or not (self._done or self._crew))
            )
        )
        room = self._room() if looking else 0
        if room or self._completion_is_due(now):
            await self._exchange(room)
            if room and answering:
                self._answered(now)
            await self._sweep()
        elif self._until_empty and self._done and not (self._crew or self.leases.waiting):
            return False
        else:
            await self._wait(now)
        return True

    async def _set_to_work(self) -> None:
        if self._worker.concurrency == 1:
            await self._executor.work(until=monotonic() + _PROMPT)
            return
        for _ in range(min(len(self.leases.waiting), self._worker.concurrency - len(self._crew))):
            self._crew.start(self._executor.work)

    def _room(self) -> int:
        """Return the number of tasks to claim now."""
        if self._dangerous is not None and self._dangerous.task in self.leases:
            return 0
        if self._worker.concurrency == 1:
            return 0 if self.leases.waiting else self._size
        room = self._size - len(self.leases) + len(self._executor.ended)
        if not self.leases.waiting:
            # An idle thread gets a task, however many the others have.
            return max(room, self._worker.concurrency - len(self._crew))
        return room if room * 2 >= self._size else 0

    def _completion_is_due(self, now: float) -> bool:
        if not (self._executor.ended or self._uncompleted):
            return False
        return not (self._crew and self.leases.waiting) or now >= self._completed_at + _PROMPT

    async def _wait(self, now: float) -> None:
        """Wait for a task, for the end of one, or until it is time to poll."""
        until = max(self._look_at, self._completer.not_before) if self._room() else now + 60
        if self._executor.ended:
            until = min(until, self._completed_at + _PROMPT)
        until = min(until, max(self._push_at, self._completer.not_before))
        # Otherwise a signal could not be answered.
        able = bool(self._room()) and now >= self._completer.not_before
        if able and self._heard:
            until = min(until, self._answer_at)
        seconds = max(until - now, 0.001)
        if self._notifier is None or self._heard or not able:
            await self._waker.wait(seconds)
        # Tasks before the first LISTEN were not notified: poll once more.
        elif await self._notifier.open():
            self._look_at = 0.0
        else:
            await self._notifier.wait(self._waker, seconds)

    @property
    def _heard(self) -> bool:
        return self._notifier is not None and self._notifier.heard

    def _answered(self, now: float) -> None:
        """Record the answer to a signal; those of a stream are folded, into one an interval."""
        fold = self._worker.fold_interval
        self._vain = 0 if self._found else min(self._vain + 1, 10)
        if self._vain:
            # Other workers were quicker, and may be so again.
            self._answer_at = now + random.uniform(0, min(fold, 0.001 * 2**self._vain))
        else:
            self._answers_until = max(self._answers_until, now) + fold
            self._answer_at = self._answers_until - (_AT_ONCE - 1) * fold

    async def _leave(self) -> None:
        """Give back waiting tasks, wait for the running ones, and report their outcomes."""
        worker = self._worker
        away = Backoff(0.1, 2)
        failures = 0
        while True:
            for claim in self.leases.take_waiting():
                self._executor.ended.append(Completion(claim, Released(None)))
            if not self._executor.ended and not self._uncompleted:
                if not self._crew:
                    break
                await self._waker.wait(1)
                continue
            try:
                await self._exchange(0)
            except PgqError as error:
                failures += 1
                if isinstance(error, PERMANENT) or failures > 5 or not worker.stopping:
                    raise
                await self._waker.wait(away.pause())
        self._crew.check()

    async def _go_on_without(self) -> bool:
        """Whether some queues are left, of those that were all there when the worker began."""
        left = await self._existing()
        gone = [queue for queue in self._queues if queue not in left]
        if not (self._has_claimed and left and gone):
            return False
        logger.warning(
            "worker %s goes on without what was dropped: %s",
            self._worker.name,
            ", ".join(gone),
            extra=self._worker.fields,
        )
        self._queues = left
        return True

    async def _existing(self) -> list[str]:
        conn = await self._connection()
        existing = []
        for queue in self._all_queues:
            try:
                await async_send(conn, [(sql.QUEUE_EXISTS, [queue])])
            except TaskQueueNotFound:
                continue
            existing.append(queue)
        return existing

    async def _database_away(self, error: PgqError) -> None:
        """Reconnect, after a pause."""
        pause = self._away.pause()
        logger.warning(
            "worker %s lost the database: %s; again in %.1f s",
            self._worker.name,
            str(error).partition("\n")[0],
            pause,
            extra=self._worker.fields | {"pause": pause},
        )
        if self._conn is not None:
            await self._conn.close()
        await self._worker.on_error(error)
        if not self._worker.stopping:
            await self._waker.wait(pause)

    # --- exchange with the server

    async def _exchange(self, room: int) -> None:
        """Report outcomes, and claim ``room`` tasks, in one round trip and one transaction."""
        while self._executor.ended:
            self._uncompleted.append(self._executor.ended.popleft())
        if self._notifier is not None and room:
            self._notifier.heard = False
        busy = bool(self._crew)
        conn = await self._connection()
        completions = await self._completer.prepare(conn, self._uncompleted)
        again = bool(room) and self._dry
        arm = again and not self._until_empty
        # A claim misses tasks that a sweep has yet to bring forward, some of which this worker's
        # tasks may have pushed or unblocked.
        last = again and self._until_empty and not (busy or completions.all)
        try:
            told, due, rows = await self._ask(conn, completions, room, arm, last)
        except PgqError as error:
            if last and error.sqlstate == _LOCK_NOT_AVAILABLE:
                # The next round tries again.
                return
            if not self._uncompleted or is_transient(error) or conn.closed:
                raise
            await self._complete_each(conn)
            return
        self._away.reset()
        self._uncompleted = []
        self._completed_at = monotonic()
        if room:
            self._has_claimed = True
            self._done = last and not rows
            self._take_up(room, rows, due)
        if completions.all:
            await self._completer.report(completions, told)
        if self._suspect is not None:
            suspect, self._suspect = self._suspect, None
            try:
                await self._exchange(0)
            finally:
                self._add([suspect])

    async def _ask(
        self, conn: AsyncConnection, completions: Completions, room: int, arm: bool, last: bool
    ) -> tuple[list[list[Any]], float | None, list[Any]]:
        """Return the answers to outcomes, the seconds until a task is due, and claimed rows."""
        worker = self._worker
        one = completions.one_finished
        if one is not None and room == len(self._queues) == 1 and not arm:
            claim, result = one
            finish = [worker.name, claim.task.id, claim.version, *self._queues, result]
            rows = await self._finish_and_claim(conn, [*finish, self._lease, worker.random])
            return [[]], None, rows
        calls = completions.calls()
        kinds = len(calls)
        if arm:
            calls.append((sql.SET_WAITING, [self._queues]))
        if last:
            calls.append((sql.CATCH_UP, [self._queues]))
        if room:
            arguments = [self._queues, worker.name, self._lease, room, worker.random]
            calls.append((sql.CLAIM_FOR_WORKER, arguments))
        answers = await async_send(conn, calls)
        due = answers[kinds][0][0] if arm else None
        return (
            answers[:kinds],
            None if due is None else due.total_seconds(),
            answers[-1] if room else [],
        )

    async def _finish_and_claim(self, conn: AsyncConnection, arguments: list[Any]) -> list[Any]:
        """Use always the same cursor: a new one must find out how values are sent and loaded, which
        takes longer than all the rest."""
        if self._cursor is None or self._cursor.connection is not conn:
            self._cursor = conn.cursor(row_factory=tuple_row, binary=True)
        with translate_errors():
            await self._cursor.execute(sql.FINISH_AND_CLAIM_FOR_WORKER, arguments)
            return await self._cursor.fetchall()

    async def _complete_each(self, conn: AsyncConnection) -> None:
        """Report outcomes one by one, since one was refused: that task has failed then."""
        while self._uncompleted:
            each = self._uncompleted[0]
            completions = await self._completer.prepare(conn, [each])
            try:
                answers = await async_send(conn, completions.calls())
            except PgqError as error:
                if is_transient(error) or conn.closed:
                    raise
                if isinstance(error, TaskConflict) and lost_ids(error):
                    self._completer.lost(each.claim)
                elif isinstance(each.outcome, Finished) and each.outcome.result is not None:
                    each.outcome = without_result(error)
                    continue
                elif isinstance(each.outcome, Moved):
                    # It would be repeated, and moved to the same place.
                    given_up = DeadLetter(error)
                    each.outcome = self._completer.outcome_of_error(each.claim, given_up)
                    continue
                elif not isinstance(each.outcome, Failed):
                    each.outcome = self._completer.outcome_of_error(each.claim, error)
                    continue
                else:
                    logger.exception(
                        "the server takes nothing of what became of task %s",
                        each.claim.task.id,
                        extra=self._worker.fields | {"task_id": each.claim.task.id},
                    )
            else:
                await self._completer.report(completions, answers)
            self._uncompleted.pop(0)

    def _take_up(self, room: int, rows: list[Any], due: float | None) -> None:
        """Take the claimed tasks, or note that there were none."""
        now = self._completed_at
        self._found = len(rows)
        armed, self._dry = self._dry, len(rows) < room
        if not rows:
            # A claim before the unnotified tasks were committed has missed them.
            pause = self._look_pause if due is None else min(self._look_pause, due)
            armed = armed or self._until_empty
            self._look_at = now + pause if armed else 0.0
            if armed:
                self._look_pause = min(self._look_pause * 2, self._worker.poll_interval)
            return
        self._look_at = 0.0
        self._look_pause = min(_FIRST_LOOK, self._worker.poll_interval)
        if not self._dry:
            if now - self._claimed_at < _QUICK:
                self._size = min(self._size * 2, self._worker.batch_size)
            elif now - self._claimed_at > _SLOW:
                self._size = self._size // 2
            self._size = max(self._size, self._worker.concurrency)
        self._claimed_at = now
        self._executor.batch_size = -(-self._size // self._worker.concurrency)
        claims = [Claim(Task(*row[:-1]), row[1], row[-1], now + row[-1], now) for row in rows]
        suspect = next((claim for claim in claims if claim.suspect), None)
        if suspect is not None and suspect.dangerous:
            self._dangerous = suspect
        if suspect is None or len(claims) + len(self.leases.waiting) == 1:
            self._add(claims)
            return
        self._size = self._worker.concurrency
        self._suspect = suspect
        for claim in [*self.leases.take_waiting(), *claims]:
            if claim is not suspect:
                self._executor.ended.append(Completion(claim, Released(None)))

    def _add(self, claims: list[Claim]) -> None:
        for claim in self.leases.add(claims):
            # Its lease had ended, and this worker has it again.
            self._completer.lost(claim)

    async def _sweep(self) -> None:
        """Sweep the queues now and then; any worker may do it."""
        if monotonic() >= self._sweep_at:
            conn = await self._connection()
            self._sweep_at = monotonic() + _SWEEP
            try:
                (((swept,),),) = await async_send(conn, [(sql.SWEEP, [])])
            except PgqError as error:
                if error.sqlstate != _LOCK_NOT_AVAILABLE:
                    raise
                # Another session has locked what it needs; the next sweep begins anew.
                return
            if len(self._queues) < len(self._all_queues):
                self._queues = await self._existing()
            if swept:
                # It may have made tasks visible that claims did not find.
                self._look_at = 0.0

    async def _push_periodic(self) -> None:
        """Push periodic tasks: the program that made them may run no workers."""
        try:
            seconds = await async_push_due(await self._connection())
        except ImportError as error:
            self._push_at = math.inf
            logger.warning(
                "worker %s pushes no periodic tasks: %s",
                self._worker.name,
                error,
                extra=self._worker.fields,
            )
            return
        self._push_at = monotonic() + (LOOK if seconds is None else min(seconds, LOOK))

    async def _connection(self) -> AsyncConnection:
        if self._conn is None or self._conn.closed:
            self._conn = await async_connect(self._worker.dsn, **self._completer.connecting)
            await async_read_committed(self._conn)
        return self._conn
