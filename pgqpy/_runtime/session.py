"""Connections of a consumer to a database, opened when needed and reopened after they broke."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from psycopg import IsolationLevel

from pgqpy._runtime.batch_connection_async import AsyncBatchConnection
from pgqpy._runtime.io import BATCH, PLAIN, AsyncIo
from pgqpy.connection_async import AsyncConnection, C


@dataclass(slots=True)
class Session:
    """Two connections, for the transactions and to read events."""

    io: AsyncIo
    dsn: str
    application_name: str
    prepare_threshold: int | None
    isolation_level: IsolationLevel
    _working: AsyncBatchConnection | None = field(default=None, init=False)
    _reading: AsyncConnection | None = field(default=None, init=False)

    async def working(self) -> AsyncBatchConnection:
        """Return the connection for the consumer's transactions (autocommit outside of them)."""
        if self._working is None or self._working.closed:
            self._working = await self._connect(BATCH, self.dsn)
            await self.io.call(self._working.set_isolation_level, self.isolation_level)
        return self._working

    async def reading(self) -> AsyncConnection:
        if self._reading is None or self._reading.closed:
            self._reading = await self.connect_to_read(self.dsn)
        return self._reading

    async def connect_to_read(self, dsn: str) -> AsyncConnection:
        """Open a connection for events, there or to a copy of the server."""
        conn = await self._connect(PLAIN, dsn)
        if conn.info.parameter_status("server_encoding") == "SQL_ASCII":
            # The server would refuse to send text that is not UTF-8; see `UnreadableEvent`.
            await self.io.call(conn.execute, b"set client_encoding to SQL_ASCII", prepare=False)
        return conn

    @property
    def lost(self) -> bool:
        """Whether a connection that was open broke."""
        return any(conn is not None and conn.closed for conn in (self._working, self._reading))

    async def close(self) -> None:
        """Close all connections; the next use opens them again."""
        for conn in (self._working, self._reading):
            if conn is not None:
                await self.io.call(conn.close)
        self._working = self._reading = None

    async def _connect(self, kind: tuple[type[C], type[Any]], dsn: str) -> C:
        conn = await self.io.connect(
            kind,
            dsn,
            autocommit=True,
            prepare_threshold=self.prepare_threshold,
            application_name=self.application_name,
        )
        # Workers that start, or switch partitions, at the same time would not get on otherwise.
        await self.io.read_committed(conn)
        return conn
