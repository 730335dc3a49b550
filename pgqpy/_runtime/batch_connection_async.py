"""The connection on which batches are processed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from pgqpy.connection_async import AsyncConnection


class AsyncBatchConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A connection in autocommit whose batches are transactions that begin at the first statement.

    Many batches write nothing to the database; they need no BEGIN and COMMIT, which are two round
    trips of four.
    """

    _in_batch = False

    @asynccontextmanager
    async def batch(self) -> AsyncIterator[None]:
        """Run all statements inside as one transaction, which code inside cannot end."""
        await self.set_autocommit(False)
        self._in_batch = True
        try:
            yield
            self._in_batch = False
            await self.commit()
        finally:
            self._in_batch = False
            # The original error is raised anyway.
            with suppress(psycopg.Error):
                await self.rollback()
                await self.set_autocommit(True)

    async def forgo_transaction(self) -> None:
        """Let the next statement be the whole transaction, unless one was executed before it."""
        if not self._begun:
            self._in_batch = False
            await self.set_autocommit(True)

    @asynccontextmanager
    async def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncIterator[psycopg.AsyncTransaction]:
        """Start a transaction; inside a batch it is a savepoint."""
        if self._in_batch and not self._begun:
            await self.execute(b"")
        async with super().transaction(savepoint_name, force_rollback) as transaction:
            yield transaction

    async def commit(self) -> None:
        self._refuse_in_batch("commit()")
        await super().commit()

    async def rollback(self) -> None:
        self._refuse_in_batch("rollback()")
        await super().rollback()

    async def set_autocommit(self, value: bool) -> None:
        self._refuse_in_batch("autocommit")
        await super().set_autocommit(value)

    @property
    def _begun(self) -> bool:
        return self.info.transaction_status != TransactionStatus.IDLE

    def _refuse_in_batch(self, what: str) -> None:
        if self._in_batch:
            raise psycopg.ProgrammingError(
                f"{what} is not for this connection: what is written commits when the work is"
                " finished, and is rolled back if an error is raised"
            )


@asynccontextmanager
async def async_savepoint(conn: AsyncConnection) -> AsyncIterator[None]:
    """Start a savepoint; it is also rolled back if a failed statement was ignored inside.

    PostgreSQL could not release it, and no later statement would work. Raises
    InFailedSqlTransaction then.
    """
    async with conn.transaction():
        yield
        if conn.info.transaction_status == TransactionStatus.INERROR:
            raise swallowed_error()


def swallowed_error() -> psycopg.Error:
    """Return the error to raise if a failed statement was ignored."""
    return psycopg.errors.InFailedSqlTransaction(
        "a statement failed, and the program went on as if it had not; "
        "do what may fail in a block `with conn.transaction()`"
    )
