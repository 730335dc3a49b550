"""Working on locked rows by the handler, and the outcomes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import psycopg
from psycopg import ConnectionInfo
from psycopg.pq import TransactionStatus

from pgqpy._runtime.batch_connection import swallowed_error
from pgqpy._runtime.failure import decide_anyway, delay_of, is_outage, storable
from pgqpy._runtime.io import AsyncIo
from pgqpy.errors import ConnectionFailed
from pgqpy.log import logger
from pgqpy.retry import DeadLetter, Retry
from pgqpy.tasks._outcome import TaskStats, no_outcomes, outcomes_in
from pgqpy.tasks._rows.table import RowLost, RowOutcome, TableRow
from pgqpy.tasks._rows.transactions import (
    BEGIN,
    RELEASE,
    SAVEPOINT,
    AsyncRowConnection,
    NotCommittedError,
)
from pgqpy.tasks._settings import RowSettings

_NEXT = RELEASE + b"; " + SAVEPOINT
_BACK = b"rollback to savepoint pgqpy_row"


class RowHooks(Protocol):
    """A worker, which describes these methods; `_io` calls them."""

    stopping: bool

    @property
    def _io(self) -> AsyncIo: ...

    def process_row(self, conn: Any, row: dict[str, Any]) -> Any: ...

    def process_batch(self, conn: Any, rows: list[dict[str, Any]]) -> Any: ...

    def on_row_failed(
        self, row: dict[str, Any], error: Exception, delay: timedelta | None
    ) -> Any: ...

    def on_completed(self, stats: TaskStats) -> Any: ...

    def on_error(self, error: Exception) -> Any: ...


class RowHandler:
    """Calls the handler. The caller has locked the rows, and set a savepoint after that."""

    def __init__(self, settings: RowSettings, hooks: RowHooks) -> None:
        self._settings = settings
        self._hooks = hooks
        self._io = hooks._io

    async def handle(
        self, conn: AsyncRowConnection, rows: Sequence[TableRow], *, restored: bool = False
    ) -> list[RowOutcome]:
        """Work on rows, or on one that this transaction has ``restored``.

        Raises errors that are not the fault of a row, and NotCommittedError.
        """
        unreadable = [self.failed(conn.info, row, row.error) for row in rows if row.error]
        rows = [row for row in rows if row.error is None]
        if not rows:
            return unreadable
        # A restored row must be restored again.
        only = len(rows) == 1 and not restored
        outcomes = unreadable
        for number, some in enumerate([rows] if self._settings.whole_batches else zip(rows)):
            if number:
                await self._next(conn)
            outcomes += await self._handle(conn, some, only)
        return outcomes

    # --- helpers

    async def _handle(
        self, conn: AsyncRowConnection, rows: Sequence[TableRow], only: bool
    ) -> list[RowOutcome]:
        """Work on rows at once; if that fails their writes are undone, and each is tried alone."""
        try:
            async with self._io.deadline(self._settings.time_limit):
                # A handler that raises a CancelledError of its own has failed.
                with self._io.interruptible():
                    values = await self._call(conn, rows)
                _check_transaction(conn.info)
        except Exception as error:
            await self._take_back(conn, error, only)
            if len(rows) == 1:
                return [self.failed(conn.info, rows[0], error)]
        else:
            return self._of_values(conn.info, rows, values)
        outcomes = []
        for row in rows:
            outcomes += await self._handle(conn, [row], False)
            await self._next(conn)
        return outcomes

    async def _call(self, conn: AsyncRowConnection, rows: Sequence[TableRow]) -> Sequence[Any]:
        if self._settings.whole_batches:
            values = await self._io.call(
                self._hooks.process_batch, conn, [row.values for row in rows]
            )
            return self._values_of_batch(values, len(rows))
        return _checked([await self._io.call(self._hooks.process_row, conn, rows[0].values)])

    async def _take_back(self, conn: AsyncRowConnection, error: Exception, only: bool) -> None:
        """Undo the writes for rows, the ``only`` one or some of several.

        Raises an error that is not the rows' fault.
        """
        if conn.closed:
            raise ConnectionFailed("the connection was lost while a row was worked on") from error
        if is_outage(error, self._settings.outages):
            raise error
        if conn.info.transaction_status != TransactionStatus.IDLE:
            await self._io.call(conn.execute, _BACK)
        elif only:
            await self._io.call(conn.execute, BEGIN)
            await self._io.call(conn.execute, SAVEPOINT)
        else:
            # The writes for other rows are lost with it.
            raise NotCommittedError(_ended()) from error

    async def _next(self, conn: AsyncRowConnection) -> None:
        try:
            await self._io.call(conn.execute, _NEXT, prepare=False)
        except psycopg.errors.InvalidSavepointSpecification as error:
            raise NotCommittedError(error) from error

    # --- outcomes

    def failed(self, info: ConnectionInfo, row: TableRow, error: Exception) -> RowOutcome:
        """Return the outcome of a row for which this error was raised."""
        attempt = row.attempts + 1
        what = f"row {row.key}"
        failure = decide_anyway(error, attempt, self._settings.retry_policy, what)
        if not failure.counts:
            return RowOutcome(row.key, None, failure.delay)
        failure.log(what, attempt, self._fields(row), end="failed for good")
        encoding = info.parameter_status("server_encoding") or ""
        text = storable(failure.described(), encoding)
        told = (row.values, failure.error, failure.delay)
        return RowOutcome(row.key, "failed", failure.delay, text, told)

    def lost(self, row: TableRow) -> RowOutcome:
        """Return the outcome of a row that was left, in case this attempt, too, does not end."""
        lost = RowLost.after(row.values.get(self._settings.columns.last_error))
        policy = self._settings.retry_policy
        failure = decide_anyway(lost, row.attempts + 1, policy, f"row {row.key}")
        delay = failure.delay if lost.times < RowLost.MOST else None
        if delay is None:
            said = "row %s was left too often: this is its last attempt"
            logger.warning(said, row.key, extra=self._fields(row))
        else:
            said = "row %s was left: it is worked on alone"
            logger.info(said, row.key, extra=self._fields(row))
        return RowOutcome(row.key, "failed", delay, failure.reason)

    def _of_values(
        self, info: ConnectionInfo, rows: Sequence[TableRow], values: Sequence[Any]
    ) -> list[RowOutcome]:
        """Return the outcomes for the values that the handler has returned."""
        return [
            self.failed(info, row, value)
            if isinstance(value, Retry | DeadLetter)
            else RowOutcome(row.key, "succeeded")
            for row, value in zip(rows, values, strict=True)
        ]

    def _values_of_batch(self, given: Any, number: int) -> list[Any]:
        """Return a value for each row of a batch. Raises ValueError, DeadLetter."""
        values = outcomes_in(given)
        if values is None:
            values = [given] * number
            if not (
                given is None or isinstance(given, Retry | DeadLetter) or inspect.iscoroutine(given)
            ):
                # The result's error is no reason to repeat the work.
                logger.warning(
                    "rows are done, but %s", no_outcomes(given), extra=self._settings.fields
                )
                values = [None] * number
        if len(values) != number:
            raise ValueError(f"process_batch has returned {len(values)} outcomes for {number} rows")
        return _checked(values)

    def _fields(self, row: TableRow) -> dict[str, Any]:
        return self._settings.fields | {"key": row.key, "attempt": row.attempts + 1}


def _checked(values: list[Any]) -> list[Any]:
    """Return the values for rows. Raises ValueError for an invalid delay, DeadLetter."""
    for value in values:
        if isinstance(value, Retry):
            delay_of(value.delay)
        elif inspect.iscoroutine(value):
            value.close()
            raise DeadLetter("a coroutine was returned, which was not awaited")
    return values


def _check_transaction(info: ConnectionInfo) -> None:
    """Raise an error if the handler has left no transaction to commit."""
    if info.transaction_status == TransactionStatus.INERROR:
        raise swallowed_error()
    if info.transaction_status == TransactionStatus.IDLE:
        raise _ended()


def _ended() -> psycopg.Error:
    """Return the error for a transaction that the handler has ended."""
    return psycopg.ProgrammingError(
        "the handler has ended the transaction; what it had committed may come twice"
    )
