"""A executor of an `AsyncTableWorker`: a connection, and one transaction at a time.

One round trip ends a transaction, begins the next, and locks its rows.

A row that was locked by a transaction that did not commit bears its mark; see
`pgq_task.was_left`. An executor that finds such rows takes them one by one: it first writes,
and commits, the outcome of a row in case its attempt never ends, that is, the attempt counts, and
has failed. Then it works on the row in a transaction that begins by restoring the row; only one
executor of a worker does so at a time. So a row that ends its process is given up in the end, the
rows that were lost with it are not, and nothing has to be written for a row that was not left.
"""

from __future__ import annotations

import math
from time import monotonic
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.log import logger
from pgqpy.connection_async import async_connect_as
from pgqpy.errors import PERMANENT, InvalidTaskTable, is_transient, translate_errors
from pgqpy.retry import in_short
from pgqpy.tasks._outcome import TaskStats
from pgqpy.tasks._rows.columns import CURRENT, DESCRIBE, PLAN, PLANNED, WANT_QUIET, TaskTable
from pgqpy.tasks._rows.handler_async import (
    BEGIN,
    RELEASE,
    SAVEPOINT,
    AsyncRowConnection,
    AsyncTableHandler,
    NotCommittedError,
)
from pgqpy.tasks._rows.marks import TableMarks
from pgqpy.tasks._rows.row import RowOutcome, TableRow, read_infinity

if TYPE_CHECKING:
    from pgqpy.tasks._rows.worker_async import AsyncTableWorker

#: The seconds for which the triggers are silent after a want of quiet; see pgq_task.want_quiet().
QUIET = 0.05

#: Seconds until a executor asks again whether another one still works on a row that was left.
_TURN = 0.02

_CHAIN = b"commit and chain"
_COMMIT = b"commit"
_ROLLBACK = b"rollback"

Statement = tuple[bytes, Any]


class AsyncRowExecutor:
    """Works until nothing is due, or until the worker stops."""

    def __init__(self, worker: AsyncTableWorker, marks: TableMarks) -> None:
        self._worker = worker
        self._marks = marks
        self._handler = AsyncTableHandler(worker)
        self._conn: AsyncRowConnection | None = None
        self._table: TaskTable | None = None
        self._pauses = Backoff(worker.backoff_first, worker.backoff_cap)
        self._quiet_at = 0.0
        self._look_pause = worker.poll_interval
        #: The rows locked by the open transaction.
        self._rows: list[TableRow] = []
        #: The number of further looks that take one row each, since some were left.
        self._careful = 0
        #: A row that was left, in its old state, with the outcome written in advance.
        self._alone: tuple[TableRow, RowOutcome] | None = None
        #: The number of rows written by the last statement that ended a transaction, and, in case
        #: they were too few, the intended ones: keys, attempts and next_attempt.
        self._written = 0
        self._unwritten: set[tuple[tuple[str, ...], int, str]] = set()
        #: Whether the last transaction was committed without the connection reporting it.
        self._ended = False
        #: The reason why it could not be committed.
        self._blame: Exception | None = None
        #: Whether there was work, and when to poll again without a notification.
        self.worked = False
        self.look_at = 0.0
        self.free = True

    async def table(self) -> TaskTable:
        """Return the table's statements; connects if needed."""
        conn = await self._connection()
        if self._table is None:
            worker = self._worker
            with translate_errors():
                cursor = conn.cursor(row_factory=tuple_row)
                await cursor.execute(b"select to_regclass(%s) is null", (worker.table,))
                if (await cursor.fetchall())[0][0]:
                    raise InvalidTaskTable(
                        f"table {worker.table} does not exist",
                        hint="Give its name as SQL does: with its schema if that is not on the"
                        " search_path, quoted if it is not all lower case.",
                    )
                await cursor.execute(DESCRIBE, (worker.table, worker.columns.json()))
                ((name, keys, types, has_index, signal),) = await cursor.fetchall()
                await cursor.execute(CURRENT, (PLANNED,))
                settings = [setting for (setting,) in await cursor.fetchall()]
            if not has_index:
                logger.warning(
                    "table %s has no index on %s, so each look reads all of it;"
                    " pgq_task.table_index_sql() gives the statement that creates it",
                    name,
                    worker.columns.next_attempt,
                    extra=worker.fields,
                )
            self._table = TaskTable(worker.columns, name, keys, types, signal, settings)
        return self._table

    async def work(self) -> None:
        """Work until nothing is due. Raises errors that waiting does not cure."""
        self.worked = False
        try:
            while not self._worker.stopping:
                if not await self.step(more=True):
                    break
                self.worked = True
                self._pauses.reset()
            await self._let_go()
        except Exception as error:
            if not is_transient(error) and not isinstance(error, self._worker.outages):
                raise
            if self._worker.strict or isinstance(error, PERMANENT):
                raise
            await self._disturbed(error)
        finally:
            self.free = True

    async def step(self, *, more: bool = False) -> bool:
        """Run one transaction, with ``more`` to come. False if nothing is due."""
        table = await self.table()
        conn = await self._connection()
        with translate_errors():
            if self._alone:
                await self._work_alone(conn, table)
                return True
            if not self._rows:
                began = monotonic()
                self._rows = await self._look(conn, table)
                if not self._rows:
                    self.look_at = monotonic() + await self._pause(conn, table, began)
                    return False
            if len(self._rows) > 1 and any(row.left for row in self._rows):
                # Now all of them bear the mark.
                self._careful, self._rows = len(self._rows), []
                await conn.execute(_ROLLBACK)
                return await self.step()
            if self._rows[0].left:
                if not self._marks.alone.acquire(blocking=False):
                    # It keeps the mark, and is found again.
                    self._rows = []
                    await conn.execute(_ROLLBACK)
                    self.look_at = monotonic() + _TURN
                    return False
                await self._complete_in_advance(conn, table, self._rows[0])
                await self._work_alone(conn, table)
            else:
                await self._work(conn, table, more)
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
            logger.warning("table %s: %s", self._worker.table, in_short(error))

    async def close(self) -> None:
        """Close the connection; the next use opens another."""
        conn, self._conn, self._table = self._conn, None, None
        self._rows = []
        if conn is not None:
            await conn.close()

    # --- transactions

    async def _work(self, conn: AsyncRowConnection, table: TaskTable, more: bool) -> None:
        rows, self._rows = self._rows, []
        seen = {(row.key, row.attempts, row.next_attempt) for row in rows}
        if seen & self._unwritten:
            raise InvalidTaskTable(
                f"rows of table {table.name} stay as they are when they are done",
                hint="See whether a trigger, a rule or a policy of it stops updates.",
            )
        outcomes: list[RowOutcome] = []
        self._ended = False
        failure: psycopg.Error | None = None
        try:
            outcomes = await self._handler.handle(conn, rows)
            ended = await self._completed(conn, table, outcomes)
            look = self._marks.looks()[0] if more and not self._worker.stopping else None
            self._rows = await self._turn(conn, table, ended, look)
        except NotCommittedError as error:
            ended_by_hand = isinstance(error.cause, psycopg.errors.InvalidSavepointSpecification)
            if len(rows) == 1 and ended_by_hand:
                raise error.cause from None
            self._careful = len(rows)
            await self.close()
            return
        except psycopg.Error as error:
            failure = error
            if not self._ended:
                outcomes = []
        # The handler may have deleted it, too.
        self._unwritten = seen if self._written < len(outcomes) else set()
        await self._report(outcomes)
        if failure is not None:
            raise failure

    async def _complete_in_advance(
        self, conn: AsyncRowConnection, table: TaskTable, row: TableRow
    ) -> None:
        """Write that the attempt has failed, before it begins."""
        try:
            lost = self._handler.lost(row)
            self._rows = []
            await self._turn(conn, table, [(RELEASE, None), table.completed([lost])], None)
        except BaseException as error:
            self._marks.alone.release()
            if isinstance(error, NotCommittedError):
                raise error.cause from None
            raise
        self._alone = row, lost

    async def _work_alone(self, conn: AsyncRowConnection, table: TaskTable) -> None:
        """Work on one row alone: if it ends this process, no other row is blamed."""
        assert self._alone is not None
        row, lost = self._alone
        cursor = conn.cursor(row_factory=tuple_row)
        async with conn.pipeline():
            await conn.execute(BEGIN)
            await cursor.execute(*_restored(table, row, lost))
            await conn.execute(SAVEPOINT)
        outcomes: list[RowOutcome] = []
        try:
            if await cursor.fetchone():
                if self._blame is None:
                    outcomes = await self._handler.handle(conn, [row], restored=True)
                else:
                    outcomes = [await self._handler.failed(conn, row, self._blame)]
            await self._turn(conn, table, await self._completed(conn, table, outcomes), None)
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
                await self._worker.on_row_failed(*each.told)
        await self._worker.on_completed(_stats(outcomes))

    async def _completed(
        self, conn: AsyncRowConnection, table: TaskTable, outcomes: list[RowOutcome]
    ) -> list[Statement]:
        """Execute the remaining statements for outcomes. Raises NotCommittedError."""
        unwritten = outcomes
        statements: list[Statement] = [(RELEASE, None)]
        done = [each for each in outcomes if each.status == "succeeded"]
        if done and self._worker.delete_done:
            try:
                async with conn.pipeline():
                    await conn.execute(RELEASE)
                    deleted = await conn.execute(*table.deleted(done))
            except psycopg.Error as error:
                if conn.closed or is_transient(error):
                    raise
                raise NotCommittedError(error) from error
            statements = []
            # A trigger, or a policy, may have kept some.
            if deleted.rowcount == len(done):
                unwritten = [each for each in unwritten if each.status != "succeeded"]
        return [*statements, table.completed(unwritten)] if unwritten else statements

    async def _look(self, conn: AsyncRowConnection, table: TaskTable) -> list[TableRow]:
        """Lock due rows, the longest due first."""
        for look in self._marks.looks():
            if rows := await self._turn(conn, table, None, look):
                return rows
        await conn.execute(_COMMIT)
        return []

    async def _turn(
        self,
        conn: AsyncRowConnection,
        table: TaskTable,
        ended: list[Statement] | None,
        look: tuple[str, float] | None,
    ) -> list[TableRow]:
        """End the transaction with these statements; to look for rows, begin the next.

        Raises NotCommittedError if it failed for a reason other than circumstances.
        """
        began = monotonic()
        idle = conn.info.transaction_status == TransactionStatus.IDLE
        ending = conn.cursor()
        found = written = conn.cursor(row_factory=tuple_row)
        try:
            async with conn.pipeline():
                for statement, values in ended or ():
                    written = await conn.execute(statement, values)
                if look is None:
                    await ending.execute(_COMMIT)
                else:
                    await ending.execute(BEGIN if idle else _CHAIN)
                    if self.worked and table.signal is not None and began >= self._quiet_at:
                        await conn.execute(WANT_QUIET, (table.name, table.names.next_attempt))
                        self._quiet_at = began + QUIET
                    await conn.execute(PLAN)
                    most = 1 if self._careful else self._worker.batch_size
                    await found.execute(table.claim, (*look, most))
                    await conn.execute(SAVEPOINT)
        except psycopg.Error as error:
            self._ended = bool(ending.statusmessage)
            if ended is None or ending.statusmessage or conn.closed or is_transient(error):
                raise
            raise NotCommittedError(error) from error
        if ended:
            self._written = written.rowcount
        if look is None:
            return []
        rows = await self._read(found, table)
        self._careful = max(self._careful - 1, 0)
        first = rows[0].next_attempt if rows else None
        self._marks.looked(look[0], first, monotonic() - began)
        return rows

    async def _read(
        self, cursor: psycopg.AsyncCursor[tuple[Any, ...]], table: TaskTable
    ) -> list[TableRow]:
        width = len(table.keys)
        names = [column.name for column in cursor.description or ()][width + 4 :]
        try:
            return [_row(each, width, names) for each in await cursor.fetchall()]
        except Exception:
            rows = []
        # Python cannot represent some value.
        for number in range(cursor.rowcount):
            await cursor.scroll(number, mode="absolute")
            try:
                record = await cursor.fetchone()
                assert record is not None
                rows.append(_row(record, width, names))
            except Exception as error:
                rows.append(_unreadable(cursor, number, width, error))
        return rows

    async def _let_go(self) -> None:
        if self._conn is not None and self._conn.info.transaction_status != TransactionStatus.IDLE:
            await self._conn.execute(_COMMIT)
        self._rows, self._blame = [], None
        if self._alone:
            table, conn = await self.table(), await self._connection()
            await conn.execute(*_restored(table, *self._alone))
            self._alone = None
            self._marks.alone.release()

    # --- before and after

    async def _pause(self, conn: AsyncRowConnection, table: TaskTable, looked: float) -> float:
        """Return the seconds until the next look, after one at ``looked`` found no work."""
        if self.worked:
            # Since then it was not notified, and some rows may not be committed yet.
            self._look_pause = QUIET
            return QUIET
        self._look_pause = min(2 * self._look_pause, self._worker.poll_interval)
        cursor = conn.cursor(row_factory=tuple_row)
        # A row may have become due since then, or be locked by another session.
        await cursor.execute(table.due, (monotonic() - looked + QUIET,))
        found = await cursor.fetchall()
        due = max(found[0][0], QUIET / 10) if found else math.inf
        return min(due, self._look_pause)

    async def _disturbed(self, error: Exception) -> None:
        """Pause after all was rolled back; the rows are found again."""
        pause = self._pauses.pause()
        self.look_at = monotonic() + pause
        logger.warning(
            "table %s: %s; again in %.1f s",
            self._worker.table,
            in_short(error),
            pause,
            extra=self._worker.fields | {"pause": pause},
        )
        await self.close()
        await self._worker.on_error(error)

    async def _connection(self) -> AsyncRowConnection:
        if self._conn is None or self._conn.closed:
            worker = self._worker
            self._table, self._rows = None, []
            self._conn = await async_connect_as(
                AsyncRowConnection,
                worker.dsn,
                autocommit=True,
                prepare_threshold=worker.prepare_threshold,
                application_name=f"pgqpy {worker.table}"[:63],
            )
            read_infinity(self._conn.adapters)
            if worker.time_limit is not None:
                # The server frees the rows of a session that is idle for longer.
                await self._conn.execute(
                    "select set_config('idle_in_transaction_session_timeout', %s, false)",
                    (f"{worker.time_limit * 1000 + 1000:.0f}",),
                )
        return self._conn


def _stats(outcomes: list[RowOutcome]) -> TaskStats:
    finished = sum(1 for each in outcomes if each.status == "succeeded")
    failed = sum(1 for each in outcomes if each.status == "failed")
    return TaskStats(finished=finished, failed=failed, released=len(outcomes) - finished - failed)


def _restored(table: TaskTable, row: TableRow, lost: RowOutcome) -> Statement:
    names, was = table.names, row.values
    return table.restore, [
        *(was[names.status], row.next_attempt, was[names.attempts], was[names.last_error]),
        *(*row.key, row.attempts + 1, lost.error),
    ]


def _row(record: tuple[Any, ...], width: int, names: list[str]) -> TableRow:
    # After the keys come next_attempt, attempts, whether it was left, and the plan.
    return TableRow(
        record[:width],
        record[width],
        record[width + 1],
        record[width + 2],
        dict(zip(names, record[width + 4 :], strict=True)),
    )


def _unreadable(
    cursor: psycopg.AsyncCursor[Any], number: int, width: int, error: Exception
) -> TableRow:
    assert cursor.pgresult is not None
    texts = [
        (cursor.pgresult.get_value(number, column) or b"").decode() for column in range(width + 2)
    ]
    return TableRow(tuple(texts[:width]), texts[width], int(texts[width + 1]), False, {}, error)
