# WARNING: generated from pgqpy/tasks/_rows/handler_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Working on locked rows: the handler, and the outcomes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus

from pgqpy._runtime.acompat import deadline
from pgqpy._runtime.batch_connection import swallowed_error
from pgqpy._runtime.failure import decide_anyway, delay_of, is_outage, storable
from pgqpy.connection import Connection
from pgqpy.errors import ConnectionFailed
from pgqpy.log import logger
from pgqpy.retry import DeadLetter, Retry
from pgqpy.tasks._outcome import TaskStats, no_outcomes, outcomes_in
from pgqpy.tasks._rows.table import RowLost, RowOutcome, TableRow
from pgqpy.tasks._rows.transactions import (
    BEGIN,
    RELEASE,
    SAVEPOINT,
    NotCommittedError,
    RowConnection,
)
from pgqpy.tasks._settings import RowSettings

_NEXT = RELEASE + b"; " + SAVEPOINT
_BACK = b"rollback to savepoint pgqpy_row"


class RowHooks(Protocol):
    """An `TableWorker`, which describes these methods."""

    stopping: bool

    def process_row(self, conn: Connection, row: dict[str, Any]) -> Any: ...

    def process_batch(
        self, conn: Connection, rows: list[dict[str, Any]]
    ) -> Sequence[Any] | None: ...

    def on_row_failed(
        self, row: dict[str, Any], error: Exception, delay: timedelta | None
    ) -> None: ...

    def on_completed(self, stats: TaskStats) -> None: ...

    def on_error(self, error: Exception) -> None: ...


class RowHandler:
    """Calls the handler. The caller has locked the rows, and set a savepoint after that."""

    def __init__(self, settings: RowSettings, hooks: RowHooks) -> None:
        self._settings = settings
        self._hooks = hooks

    def handle(
        self, conn: RowConnection, rows: Sequence[TableRow], *, restored: bool = False
    ) -> list[RowOutcome]:
        """Work on rows, or on one that this transaction has ``restored``.

        Raises errors that are not the fault of a row, and NotCommittedError.
        """
        unreadable = [self.failed(conn, row, row.error) for row in rows if row.error]
        rows = [row for row in rows if row.error is None]
        if not rows:
            return unreadable
        # A restored row must be restored again.
        only = len(rows) == 1 and not restored
        outcomes = unreadable
        for number, some in enumerate([rows] if self._settings.whole_batches else zip(rows)):
            if number:
                _next(conn)
            outcomes += self._handle(conn, some, only)
        return outcomes

    def failed(self, conn: RowConnection, row: TableRow, error: Exception) -> RowOutcome:
        """Return the outcome of a row for which this error was raised."""
        attempt = row.attempts + 1
        what = f"row {row.key}"
        failure = decide_anyway(error, attempt, self._settings.retry_policy, what)
        if not failure.counts:
            return RowOutcome(row.key, None, failure.delay)
        failure.log(what, attempt, self._fields(row), end="failed for good")
        encoding = conn.info.parameter_status("server_encoding") or ""
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

    # --- helpers

    def _handle(
        self, conn: RowConnection, rows: Sequence[TableRow], only: bool
    ) -> list[RowOutcome]:
        """Work on rows at once; if that fails their writes are undone, and each is tried alone."""
        try:
            with deadline(self._settings.time_limit):
                values = self._call(conn, rows)
                _check_outcomes(values)
                _check_transaction(conn)
        except Exception as error:
            self._take_back(conn, error, only)
            if len(rows) == 1:
                return [self.failed(conn, rows[0], error)]
        else:
            return [
                self.failed(conn, row, value)
                if isinstance(value, Retry | DeadLetter)
                else RowOutcome(row.key, "succeeded")
                for row, value in zip(rows, values, strict=True)
            ]
        outcomes = []
        for row in rows:
            outcomes += self._handle(conn, [row], False)
            _next(conn)
        return outcomes

    def _call(self, conn: RowConnection, rows: Sequence[TableRow]) -> Sequence[Any]:
        if not self._settings.whole_batches:
            return [self._hooks.process_row(conn, rows[0].values)]
        values = self._hooks.process_batch(conn, [row.values for row in rows])
        outcomes = _outcomes(values, len(rows), self._settings.fields)
        if len(outcomes) != len(rows):
            raise ValueError(
                f"process_batch has returned {len(outcomes)} outcomes for {len(rows)} rows"
            )
        return outcomes

    def _take_back(self, conn: RowConnection, error: Exception, only: bool) -> None:
        """Undo the writes for rows, the ``only`` one or some of several.

        Raises an error that is not the rows' fault.
        """
        if conn.closed:
            raise ConnectionFailed("the connection was lost while a row was worked on") from error
        if is_outage(error, self._settings.outages):
            raise error
        if conn.info.transaction_status != TransactionStatus.IDLE:
            conn.execute(_BACK)
        elif only:
            conn.execute(BEGIN)
            conn.execute(SAVEPOINT)
        else:
            # The writes for other rows are lost with it.
            raise NotCommittedError(_ended()) from error

    def _fields(self, row: TableRow) -> dict[str, Any]:
        return self._settings.fields | {"key": row.key, "attempt": row.attempts + 1}


def _next(conn: RowConnection) -> None:
    try:
        conn.execute(_NEXT, prepare=False)
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
            delay_of(value.delay)
        elif inspect.iscoroutine(value):
            value.close()
            raise DeadLetter("a coroutine was returned, which was not awaited")


def _check_transaction(conn: RowConnection) -> None:
    status = conn.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise swallowed_error()
    if status == TransactionStatus.IDLE:
        raise _ended()
