"""Working on locked rows: the handler, and the outcomes."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

from pgqpy._runtime.acompat import async_deadline
from pgqpy._runtime.batch_connection_async import swallowed_error
from pgqpy._runtime.failure import MAX_TRACEBACK, interval, storable
from pgqpy._runtime.log import logger
from pgqpy.errors import ConnectionFailed, is_transient
from pgqpy.retry import DeadLetter, Retry, in_short
from pgqpy.tasks._outcome import no_outcomes, outcomes_in
from pgqpy.tasks._rows.row import RowLost, RowOutcome, TableRow

if TYPE_CHECKING:
    from pgqpy.tasks._rows.worker_async import AsyncTableWorker

BEGIN = b"begin isolation level read committed"
SAVEPOINT = b"savepoint pgqpy_row"
RELEASE = b"release savepoint pgqpy_row"
_NEXT = RELEASE + b"; " + SAVEPOINT
_BACK = b"rollback to savepoint pgqpy_row"


class NotCommittedError(Exception):
    """A transaction could not be committed, or was ended. A row is the cause."""

    def __init__(self, cause: psycopg.Error) -> None:
        super().__init__(str(cause))
        self.cause = cause


class AsyncRowConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A connection whose transactions only the worker may end."""

    async def commit(self) -> None:
        self._refuse("commit()")

    async def rollback(self) -> None:
        self._refuse("rollback()")

    async def set_autocommit(self, value: bool) -> None:
        self._refuse("autocommit")

    def _refuse(self, what: str) -> None:
        raise psycopg.ProgrammingError(
            f"{what} is not for a row's connection: what is written commits when the row is done,"
            " and is rolled back when an error is raised"
        )


class AsyncTableHandler:
    """The handler of a worker. The caller has locked the rows, and set a savepoint after that."""

    def __init__(self, worker: AsyncTableWorker) -> None:
        self._worker = worker

    async def handle(
        self, conn: AsyncRowConnection, rows: Sequence[TableRow], *, restored: bool = False
    ) -> list[RowOutcome]:
        """Work on rows, or on one that this transaction has ``restored``.

        Raises errors that are not the fault of a row, and NotCommittedError.
        """
        unreadable = [await self.failed(conn, row, row.error) for row in rows if row.error]
        rows = [row for row in rows if row.error is None]
        if not rows:
            return unreadable
        # A restored row must be restored again.
        only = len(rows) == 1 and not restored
        if self._worker.whole_batches:
            return unreadable + await self._handle_batch(conn, rows, only)
        outcomes = unreadable
        for number, row in enumerate(rows):
            if number:
                await _next(conn)
            outcomes.append(await self._handle_row(conn, row, only))
        return outcomes

    async def failed(self, conn: AsyncRowConnection, row: TableRow, error: Exception) -> RowOutcome:
        """Return the outcome of a row for which this error was raised."""
        if isinstance(error, Retry):
            try:
                return RowOutcome(row.key, None, _delay(error.delay))
            except ValueError as worse:
                error = worse
        delay, error = self._after(row, error)
        reason = in_short(error)
        fields = self._worker.fields | {"key": row.key, "attempt": row.attempts + 1}
        if delay is None:
            logger.error("row %s failed for good: %s", row.key, reason, extra=fields)
        else:
            logger.warning("row %s failed, again in %s: %s", row.key, delay, reason, extra=fields)
        cause = error.__cause__ if isinstance(error, DeadLetter) else error
        if cause is not None:
            text = "".join(traceback.format_exception(cause)).rstrip()
            reason = f"{reason}\n\n{text[-MAX_TRACEBACK:]}"
        encoding = conn.info.parameter_status("server_encoding") or ""
        told = (row.values, error, delay)
        return RowOutcome(row.key, "failed", delay, storable(reason, encoding), told)

    def lost(self, row: TableRow) -> RowOutcome:
        """Return the outcome of a row that was left, in case this attempt, too, does not end."""
        lost = RowLost.after(row.values.get(self._worker.columns.last_error))
        delay, error = self._after(row, lost)
        if lost.times >= RowLost.MOST:
            delay = None
        fields = self._worker.fields | {"key": row.key, "attempt": row.attempts + 1}
        if delay is None:
            logger.warning(
                "row %s was left too often: this is its last attempt", row.key, extra=fields
            )
        else:
            logger.info("row %s was left: it is worked on alone", row.key, extra=fields)
        return RowOutcome(row.key, "failed", delay, in_short(error))

    # --- helpers

    async def _handle_row(self, conn: AsyncRowConnection, row: TableRow, only: bool) -> RowOutcome:
        """Work on one row; if it fails, its writes are undone."""
        try:
            async with async_deadline(self._worker.time_limit):
                value = await self._worker.work_on_row(conn, row.values)
                _check_outcomes([value])
                _check_transaction(conn)
        except Exception as error:
            await self._take_back(conn, error, only)
            return await self.failed(conn, row, error)
        return await self._outcome(conn, row, value)

    async def _handle_batch(
        self, conn: AsyncRowConnection, rows: Sequence[TableRow], only: bool
    ) -> list[RowOutcome]:
        """Work on a batch; if it fails, its rows are worked on one by one."""
        try:
            async with async_deadline(self._worker.time_limit):
                values = await self._worker.work_on_batch(conn, [row.values for row in rows])
                values = _outcomes(values, len(rows), self._worker.fields)
                if len(values) != len(rows):
                    raise ValueError(
                        f"process_batch has returned {len(values)} outcomes for {len(rows)} rows"
                    )
                _check_outcomes(values)
                _check_transaction(conn)
        except Exception as error:
            await self._take_back(conn, error, only)
            if len(rows) == 1:
                return [await self.failed(conn, rows[0], error)]
        else:
            pairs = zip(rows, values, strict=True)
            return [await self._outcome(conn, row, value) for row, value in pairs]
        outcomes = []
        for row in rows:
            outcomes += await self._handle_batch(conn, [row], False)
            await _next(conn)
        return outcomes

    async def _outcome(self, conn: AsyncRowConnection, row: TableRow, value: Any) -> RowOutcome:
        if isinstance(value, Retry):
            return RowOutcome(row.key, None, _delay(value.delay))
        if isinstance(value, DeadLetter):
            return await self.failed(conn, row, value)
        return RowOutcome(row.key, "succeeded")

    def _after(self, row: TableRow, error: Exception) -> tuple[timedelta | None, Exception]:
        """Return the delay of a failed row, or the policy's own error."""
        if isinstance(error, DeadLetter):
            return None, error
        try:
            given = self._worker.retry_policy(row.attempts + 1, error)
            return None if given is None else _delay(given), error
        except Exception as worse:
            logger.exception("a row failed, and the retry policy, too", extra=self._worker.fields)
            return timedelta(minutes=1), worse

    async def _take_back(self, conn: AsyncRowConnection, error: Exception, only: bool) -> None:
        """Undo the writes for rows, the ``only`` one or some of several.

        Raises an error that is not the rows' fault.
        """
        if conn.closed:
            raise ConnectionFailed("the connection was lost while a row was worked on") from error
        if is_transient(error) or isinstance(error, self._worker.outages):
            raise error
        if conn.info.transaction_status != TransactionStatus.IDLE:
            await conn.execute(_BACK)
        elif only:
            await conn.execute(BEGIN)
            await conn.execute(SAVEPOINT)
        else:
            # The writes for other rows are lost with it.
            raise NotCommittedError(_ended()) from error


async def _next(conn: AsyncRowConnection) -> None:
    try:
        await conn.execute(_NEXT, prepare=False)
    except psycopg.errors.InvalidSavepointSpecification as error:
        raise NotCommittedError(error) from error


def _ended() -> psycopg.Error:
    return psycopg.ProgrammingError(
        "the handler has ended the transaction; what it had committed may come twice"
    )


def _outcomes(values: Any, number: int, fields: dict[str, Any]) -> list[Any]:
    outcomes = outcomes_in(values)
    if outcomes is not None:
        return outcomes
    if values is None or isinstance(values, Retry | DeadLetter) or inspect.iscoroutine(values):
        return [values] * number
    # The result's error is no reason to repeat the work.
    logger.warning("rows are done, but %s", no_outcomes(values), extra=fields)
    return [None] * number


def _check_outcomes(values: Sequence[Any]) -> None:
    for value in values:
        if isinstance(value, Retry):
            _delay(value.delay)
        elif inspect.iscoroutine(value):
            value.close()
            raise DeadLetter("a coroutine was returned, which was not awaited")


def _check_transaction(conn: AsyncRowConnection) -> None:
    status = conn.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise swallowed_error()
    if status == TransactionStatus.IDLE:
        raise _ended()


def _delay(delay: float | timedelta) -> timedelta:
    delay = interval(delay, "the delay to retry after")
    if not timedelta() <= delay <= timedelta(days=36500):
        raise ValueError("the delay to retry after is negative, or more than a hundred years")
    return delay
