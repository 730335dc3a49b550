# WARNING: generated from pgqpy/_runtime/session_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Connections of a consumer to a database, opened when needed and reopened after they broke."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import IsolationLevel

from pgqpy._runtime.batch_connection import BatchConnection
from pgqpy.connection import C, Connection, connect_as, read_committed


@dataclass(slots=True)
class Session:
    """Two connections, for the transactions and to read events."""

    dsn: str
    application_name: str
    prepare_threshold: int | None
    isolation_level: IsolationLevel
    _working: BatchConnection | None = field(default=None, init=False)
    _reading: Connection | None = field(default=None, init=False)

    def working(self) -> BatchConnection:
        """Return the connection for the consumer's transactions (autocommit outside of them)."""
        if self._working is None or self._working.closed:
            self._working = self._connect(BatchConnection, self.dsn)
            self._working.set_isolation_level(self.isolation_level)
        return self._working

    def reading(self) -> Connection:
        if self._reading is None or self._reading.closed:
            self._reading = self.connect_to_read(self.dsn)
        return self._reading

    def connect_to_read(self, dsn: str) -> Connection:
        """Open a connection for events, there or to a copy of the server."""
        conn = self._connect(psycopg.Connection[tuple[Any, ...]], dsn)
        if conn.info.parameter_status("server_encoding") == "SQL_ASCII":
            # The server would refuse to send text that is not UTF-8; see `UnreadableEvent`.
            conn.execute(b"set client_encoding to SQL_ASCII", prepare=False)
        return conn

    @property
    def lost(self) -> bool:
        """Whether a connection that was open broke."""
        return any(conn is not None and conn.closed for conn in (self._working, self._reading))

    def close(self) -> None:
        """Close all connections; the next use opens them again."""
        for conn in (self._working, self._reading):
            if conn is not None:
                conn.close()
        self._working = self._reading = None

    def _connect(self, kind: type[C], dsn: str) -> C:
        conn = connect_as(
            kind,
            dsn,
            autocommit=True,
            prepare_threshold=self.prepare_threshold,
            application_name=self.application_name,
        )
        # Workers that start, or switch partitions, at the same time would not get on otherwise.
        read_committed(conn)
        return conn
