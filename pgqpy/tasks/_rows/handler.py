# WARNING: generated from pgqpy/tasks/_rows/handler_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Working on locked rows by the handler."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus

from pgqpy._runtime.acompat import Interruptible, deadline
from pgqpy._runtime.failure import is_outage
from pgqpy.connection import Connection
from pgqpy.errors import ConnectionFailed
from pgqpy.tasks._outcome import TaskStats
from pgqpy.tasks._rows.outcomes import RowOutcomes, check_transaction, checked, ended
from pgqpy.tasks._rows.table import RowOutcome, TableRow
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


class RowHandler(RowOutcomes):
    """Calls the handler. The caller has locked the rows, and set a savepoint after that."""

    def __init__(self, settings: RowSettings, hooks: RowHooks) -> None:
        super().__init__(settings)
        self._hooks = hooks

    def handle(
        self, conn: RowConnection, rows: Sequence[TableRow], *, restored: bool = False
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
                _next(conn)
            outcomes += self._handle(conn, some, only)
        return outcomes

    # --- helpers

    def _handle(
        self, conn: RowConnection, rows: Sequence[TableRow], only: bool
    ) -> list[RowOutcome]:
        """Work on rows at once; if that fails their writes are undone, and each is tried alone."""
        try:
            with deadline(self._settings.time_limit):
                # A handler that raises a CancelledError of its own has failed.
                with Interruptible():
                    values = self._call(conn, rows)
                check_transaction(conn.info)
        except Exception as error:
            self._take_back(conn, error, only)
            if len(rows) == 1:
                return [self.failed(conn.info, rows[0], error)]
        else:
            return self.of_values(conn.info, rows, values)
        outcomes = []
        for row in rows:
            outcomes += self._handle(conn, [row], False)
            _next(conn)
        return outcomes

    def _call(self, conn: RowConnection, rows: Sequence[TableRow]) -> Sequence[Any]:
        if self._settings.whole_batches:
            values = self._hooks.process_batch(conn, [row.values for row in rows])
            return self.values_of_batch(values, len(rows))
        return checked([self._hooks.process_row(conn, rows[0].values)])

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
            raise NotCommittedError(ended()) from error


def _next(conn: RowConnection) -> None:
    try:
        conn.execute(_NEXT, prepare=False)
    except psycopg.errors.InvalidSavepointSpecification as error:
        raise NotCommittedError(error) from error
