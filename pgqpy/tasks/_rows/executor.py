"""A concurrency slot of a `TableWorker`: it works on one transaction's rows at a time.

A row that was locked by a transaction that did not commit bears its mark; see
`pgq_task.was_left`. An executor that finds such rows takes them one by one: it first writes,
and commits, the outcome of a row in case its attempt never ends, that is, the attempt counts, and
has failed. Then it works on the row in a transaction that begins by restoring the row; only one
executor of a worker does so at a time. So a row that ends its process is given up in the end, the
rows that were lost with it are not, and nothing has to be written for a row that was not left.
"""

from __future__ import annotations

import math
from collections import Counter
from time import monotonic

import psycopg

from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.failure import is_outage, soon
from pgqpy.errors import PERMANENT, InvalidTaskTable, is_transient, translate_errors
from pgqpy.log import logger
from pgqpy.retry import in_short
from pgqpy.tasks._outcome import TaskStats
from pgqpy.tasks._rows.handler import RowHandler, RowHooks
from pgqpy.tasks._rows.table import RowOutcome, TableMarks, TableRow, TaskTable
from pgqpy.tasks._rows.transactions import (
    QUIET,
    RELEASE,
    NotCommittedError,
    RowTransactions,
)
from pgqpy.tasks._settings import RowSettings

#: Seconds until an executor asks again whether another one still works on a row that was left.
_TURN = 0.02


class RowExecutor:
    """Works until nothing is due, or until the worker stops."""

    def __init__(self, settings: RowSettings, hooks: RowHooks, marks: TableMarks) -> None:
        self._settings = settings
        self._hooks = hooks
        self._io = hooks._io
        self._marks = marks
        self._handler = RowHandler(settings, hooks)
        self._transactions = RowTransactions(settings, marks, self._io)
        self._pauses = Backoff(settings.backoff_first, settings.backoff_cap)
        self._look_pause = settings.poll_interval
        #: The rows locked by the open transaction.
        self._rows: list[TableRow] = []
        #: A row that was left, in its old state, with the outcome written in advance.
        self._alone: tuple[TableRow, RowOutcome] | None = None
        #: The rows of a transaction that wrote too few: keys, attempts and next_attempt.
        self._unwritten: set[tuple[tuple[str, ...], int, str]] = set()
        #: The reason why the transaction of the row that was left could not be committed.
        self._blame: Exception | None = None
        #: Whether there was work, and when to poll again without a notification.
        self.worked = False
        self.look_at = 0.0
        self.free = True

    async def table(self) -> TaskTable:
        """Return the table; connects if needed."""
        _, table = await self._transactions.open()
        return table

    async def work(self) -> None:
        """Work until nothing is due. Raises errors that waiting does not cure."""
        self.worked = False
        try:
            while not self._hooks.stopping:
                if not await self.step(more=True):
                    break
                self.worked = True
                self._pauses.reset()
            await self._let_go()
        except Exception as error:
            lasting = self._settings.until_empty or isinstance(error, PERMANENT)
            if lasting or not is_outage(error, self._settings.outages):
                raise
            await self._pause(error)
        finally:
            self.free = True

    async def step(self, *, more: bool = False) -> bool:
        """Run one transaction, with ``more`` to come. False if nothing is due."""
        if not self._transactions.connected:
            self._rows = []
        await self._transactions.open()
        with translate_errors():
            if self._alone:
                await self._work_alone()
                return True
            if not self._rows:
                began = monotonic()
                self._rows = await self._transactions.look(quiet=self.worked)
                if not self._rows:
                    self.look_at = monotonic() + await self._until_next_look(began)
                    return False
            if len(self._rows) > 1 and any(row.left for row in self._rows):
                # Now all of them bear the mark.
                self._transactions.careful, self._rows = len(self._rows), []
                await self._transactions.roll_back()
                return await self.step()
            if self._rows[0].left:
                if not self._marks.alone.acquire(blocking=False):
                    # It keeps the mark, and is found again.
                    self._rows = []
                    await self._transactions.roll_back()
                    self.look_at = monotonic() + _TURN
                    return False
                await self._complete_in_advance(self._rows[0])
                await self._work_alone()
            else:
                await self._work(more)
        return True

    @property
    def unfinished(self) -> bool:
        """Whether an outcome was written in advance for a row that is still to be worked on."""
        return self._alone is not None

    async def leave(self) -> None:
        """Stop: restore unfinished rows, if possible."""
        try:
            with translate_errors():
                await self._let_go()
        except Exception as error:
            if not is_transient(error):
                raise
            logger.warning("table %s: %s", self._settings.table, in_short(error))

    async def close(self) -> None:
        """Close the connection; the next use opens another."""
        self._rows = []
        await self._transactions.close()

    # --- transactions

    async def _work(self, more: bool) -> None:
        rows, self._rows = self._rows, []
        conn, table = self._transactions.current
        seen = {(row.key, row.attempts, row.next_attempt) for row in rows}
        if seen & self._unwritten:
            raise InvalidTaskTable(
                f"rows of table {table.name} stay as they are when they are done",
                hint="See whether a trigger, a rule or a policy of it stops updates.",
            )
        outcomes: list[RowOutcome] = []
        self._transactions.ended = False
        failure: psycopg.Error | None = None
        try:
            outcomes = await self._handler.handle(conn, rows)
            left = await self._transactions.complete(outcomes)
            where = self._marks.looks()[0] if more and not self._hooks.stopping else None
            self._rows = await self._transactions.turn(left, where, quiet=self.worked)
        except NotCommittedError as error:
            ended_by_hand = isinstance(error.cause, psycopg.errors.InvalidSavepointSpecification)
            if len(rows) == 1 and ended_by_hand:
                raise error.cause from None
            self._transactions.careful = len(rows)
            await self.close()
            return
        except psycopg.Error as error:
            failure = error
            if not self._transactions.ended:
                outcomes = []
        # The handler may have deleted it, too.
        self._unwritten = seen if self._transactions.written < len(outcomes) else set()
        await self._report(outcomes)
        if failure is not None:
            raise failure

    async def _complete_in_advance(self, row: TableRow) -> None:
        """Write that the attempt has failed, before it begins."""
        try:
            _, table = self._transactions.current
            lost = self._handler.lost(row)
            self._rows = []
            await self._transactions.turn([(RELEASE, None), table.completed([lost])], None)
        except BaseException as error:
            self._marks.alone.release()
            if isinstance(error, NotCommittedError):
                raise error.cause from None
            raise
        self._alone = row, lost

    async def _work_alone(self) -> None:
        """Work on one row alone: if it ends this process, no other row is blamed."""
        assert self._alone is not None
        row, lost = self._alone
        outcomes: list[RowOutcome] = []
        restored = await self._transactions.begin_restored(row, lost)
        conn, _ = self._transactions.current
        try:
            if restored and self._blame is None:
                outcomes = await self._handler.handle(conn, [row], restored=True)
            elif restored and self._blame is not None:
                outcomes = [self._handler.failed(conn.info, row, self._blame)]
            await self._transactions.turn(await self._transactions.complete(outcomes), None)
        except NotCommittedError as error:
            if self._blame is not None:
                raise error.cause from None
            self._blame = error.cause
            await self.close()
            return
        self._blame = self._alone = None
        self._marks.alone.release()
        if outcomes:
            await self._report(outcomes)

    async def _report(self, outcomes: list[RowOutcome]) -> None:
        """Report committed outcomes: an error of a hook undoes nothing."""
        for each in outcomes:
            if each.told is not None:
                await self._io.call(self._hooks.on_row_failed, *each.told)
        ends = Counter(each.status for each in outcomes)
        stats = TaskStats(finished=ends["succeeded"], failed=ends["failed"], released=ends[None])
        await self._io.call(self._hooks.on_completed, stats)

    # --- pauses

    async def _let_go(self) -> None:
        await self._transactions.commit_if_begun()
        self._rows, self._blame = [], None
        if self._alone:
            await self._transactions.restore(*self._alone)
            self._alone = None
            self._marks.alone.release()

    async def _until_next_look(self, looked: float) -> float:
        """Return the seconds until the next look, after one at ``looked`` found no work."""
        if self.worked:
            # Since then it was not notified, and some rows may not be committed yet.
            self._look_pause = QUIET
            return QUIET
        self._look_pause = min(2 * self._look_pause, self._settings.poll_interval)
        due = await self._transactions.seconds_until_due(looked)
        return min(math.inf if due is None else max(due, QUIET / 10), self._look_pause)

    async def _pause(self, error: Exception) -> None:
        """Pause after all was rolled back; the rows are found again."""
        pause = self._pauses.pause(error)
        self.look_at = monotonic() + pause
        logger.log(
            self._pauses.level,
            "table %s: %s; again %s",
            self._settings.table,
            in_short(error),
            soon(pause),
            extra=self._settings.fields | {"pause": pause},
        )
        await self.close()
        await self._io.call(self._hooks.on_error, error)
