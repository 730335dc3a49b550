"""A chore's connection: opened when first needed, and reopened after it broke."""

from __future__ import annotations

from collections.abc import Callable

from pgqpy_ticker.config import Database
from pgqpy_ticker.connect import Connection, connect, milliseconds


class Link:
    """A chore's own connection, so that a long operation does not delay the ticks and a refused
    connection does not end the lead."""

    def __init__(self, database: Callable[[], Database]) -> None:
        self._database = database
        self._connection: Connection | None = None

    async def connection(self) -> Connection:
        if self._connection is None or self._connection.closed:
            database = self._database()
            self._connection = await connect(
                database,
                application_name="pgqpy ticker chores",
                lock_timeout=milliseconds(database.maintenance_lock_timeout),
            )
        return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
