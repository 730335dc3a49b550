"""The outcomes of rows."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import ConnectionInfo
from psycopg.pq import TransactionStatus

from pgqpy._runtime.batch_connection import swallowed_error
from pgqpy._runtime.failure import decide_anyway, delay_of, storable
from pgqpy.log import logger
from pgqpy.retry import DeadLetter, Retry
from pgqpy.tasks._outcome import no_outcomes, outcomes_in
from pgqpy.tasks._rows.table import RowLost, RowOutcome, TableRow
from pgqpy.tasks._settings import RowSettings


class RowOutcomes:
    """Decides on the outcomes of rows."""

    def __init__(self, settings: RowSettings) -> None:
        self._settings = settings

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

    def of_values(
        self, info: ConnectionInfo, rows: Sequence[TableRow], values: Sequence[Any]
    ) -> list[RowOutcome]:
        """Return the outcomes for the values that the handler has returned."""
        return [
            self.failed(info, row, value)
            if isinstance(value, Retry | DeadLetter)
            else RowOutcome(row.key, "succeeded")
            for row, value in zip(rows, values, strict=True)
        ]

    def values_of_batch(self, given: Any, number: int) -> list[Any]:
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
        return checked(values)

    def _fields(self, row: TableRow) -> dict[str, Any]:
        return self._settings.fields | {"key": row.key, "attempt": row.attempts + 1}


def checked(values: list[Any]) -> list[Any]:
    """Return the values for rows. Raises ValueError for an invalid delay, DeadLetter."""
    for value in values:
        if isinstance(value, Retry):
            delay_of(value.delay)
        elif inspect.iscoroutine(value):
            value.close()
            raise DeadLetter("a coroutine was returned, which was not awaited")
    return values


def check_transaction(info: ConnectionInfo) -> None:
    """Raise an error if the handler has left no transaction to commit."""
    if info.transaction_status == TransactionStatus.INERROR:
        raise swallowed_error()
    if info.transaction_status == TransactionStatus.IDLE:
        raise ended()


def ended() -> psycopg.Error:
    """Return the error for a transaction that the handler has ended."""
    return psycopg.ProgrammingError(
        "the handler has ended the transaction; what it had committed may come twice"
    )
