# WARNING: generated from pgqpy/_runtime/batch_connection_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""The connection on which batches are processed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from pgqpy.connection import Connection


class BatchConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection in autocommit whose batches are transactions that begin at the first statement.

    Many batches write nothing to the database; they need no BEGIN and COMMIT, which are two round
    trips of four.
    """

    _in_batch = False

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Run all statements inside as one transaction, which code inside cannot end."""
        self.set_autocommit(False)
        self._in_batch = True
        try:
            yield
            self._in_batch = False
            self.commit()
        finally:
            self._in_batch = False
            # The original error is raised anyway.
            with suppress(psycopg.Error):
                self.rollback()
                self.set_autocommit(True)

    def forgo_transaction(self) -> None:
        """Let the next statement be the whole transaction, unless one was executed before it."""
        if not self._begun:
            self._in_batch = False
            self.set_autocommit(True)

    @contextmanager
    def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> Iterator[psycopg.Transaction]:
        """Start a transaction; inside a batch it is a savepoint."""
        if self._in_batch and not self._begun:
            self.execute(b"")
        with super().transaction(savepoint_name, force_rollback) as transaction:
            yield transaction

    def commit(self) -> None:
        self._refuse_in_batch("commit()")
        super().commit()

    def rollback(self) -> None:
        self._refuse_in_batch("rollback()")
        super().rollback()

    def set_autocommit(self, value: bool) -> None:
        self._refuse_in_batch("autocommit")
        super().set_autocommit(value)

    @property
    def _begun(self) -> bool:
        return self.info.transaction_status != TransactionStatus.IDLE

    def _refuse_in_batch(self, what: str) -> None:
        if self._in_batch:
            raise psycopg.ProgrammingError(
                f"{what} is not for this connection: what is written commits when the work is"
                " finished, and is rolled back if an error is raised"
            )


@contextmanager
def savepoint(conn: Connection) -> Iterator[None]:
    """Start a savepoint; it is also rolled back if a failed statement was ignored inside.

    PostgreSQL could not release it, and no later statement would work. Raises
    InFailedSqlTransaction then.
    """
    with conn.transaction():
        yield
        if conn.info.transaction_status == TransactionStatus.INERROR:
            raise swallowed_error()


def swallowed_error() -> psycopg.Error:
    """Return the error to raise if a failed statement was ignored."""
    return psycopg.errors.InFailedSqlTransaction(
        "a statement failed, and the program went on as if it had not; "
        "do what may fail in a block `with conn.transaction()`"
    )
