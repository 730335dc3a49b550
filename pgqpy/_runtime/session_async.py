"""A consumer's connections, opened when needed and reopened after they broke."""

from __future__ import annotations

import math
from typing import Any

import psycopg
from psycopg import IsolationLevel

from pgqpy._runtime.acompat import AsyncWaker
from pgqpy._runtime.batch_connection_async import AsyncBatchConnection
from pgqpy._runtime.listener_async import AsyncSubscription
from pgqpy.connection_async import AsyncConnection, C, async_connect_as

#: The factor by which polls are rarer while notifications of ticks are known to arrive.
_TRUST = 100


class AsyncSession:
    """Two connections, for the transactions and to read events, and the notifications of ticks."""

    def __init__(
        self,
        dsn: str,
        subscription: AsyncSubscription | None,
        *,
        application_name: str,
        prepare_threshold: int | None,
        isolation_level: IsolationLevel,
    ) -> None:
        self.dsn = dsn
        self._subscription = subscription
        self._application_name = application_name
        self._prepare_threshold = prepare_threshold
        self._isolation_level = isolation_level
        self._working: AsyncBatchConnection | None = None
        self._reading: AsyncConnection | None = None

    async def working(self) -> AsyncBatchConnection:
        """Return the connection for the consumer's transactions (autocommit outside of them)."""
        if self._working is None or self._working.closed:
            self._working = await self._connect(AsyncBatchConnection, self.dsn)
            await self._working.set_isolation_level(self._isolation_level)
        return self._working

    async def reading(self) -> AsyncConnection:
        if self._reading is None or self._reading.closed:
            self._reading = await self.connect_to_read(self.dsn)
        return self._reading

    async def connect_to_read(self, dsn: str) -> AsyncConnection:
        """Open a connection for events, there or to a copy of the server."""
        conn = await self._connect(psycopg.AsyncConnection[tuple[Any, ...]], dsn)
        if conn.info.parameter_status("server_encoding") == "SQL_ASCII":
            # The server would refuse to send text that is not UTF-8; see `UnreadableEvent`.
            await conn.execute(b"set client_encoding to SQL_ASCII", prepare=False)
        return conn

    @property
    def lost(self) -> bool:
        """Whether a connection that was open broke."""
        return any(conn is not None and conn.closed for conn in (self._working, self._reading))

    async def asking(self) -> AsyncConnection:
        """Return `working`'s connection for opening the next batch; later notifications are new."""
        conn = await self.working()
        if self._subscription is not None:
            self._subscription.ask()
        return conn

    async def listen(self) -> bool:
        """Start to listen, unless that failed a short while ago; True if this is new."""
        return self._subscription is not None and await self._subscription.open()

    def up_to_date(self, tick: int) -> bool:
        """Whether no tick after ``tick`` is known to exist: it has listened since."""
        return self._subscription is not None and self._subscription.up_to_date(tick)

    async def wait(
        self, waker: AsyncWaker, seconds: float, *, for_tick: bool, at_most: float = math.inf
    ) -> None:
        """Wait for a tick, for `waker`, or ``seconds``.

        It waits a hundred times as long, up to ``at_most``, if only a tick can end the wait and
        LISTEN is known to work: then polling only covers a connection that dies unnoticed.
        """
        if self._subscription is None:
            await waker.wait(seconds)
            return
        if for_tick and self._subscription.works:
            seconds = min(seconds * _TRUST, at_most)
        await self._subscription.wait(waker, seconds)

    async def close(self) -> None:
        """Close all connections; the next use opens them again."""
        for conn in (self._working, self._reading):
            if conn is not None:
                await conn.close()
        self._working = self._reading = None
        if self._subscription is not None:
            await self._subscription.close()

    async def move(self, dsn: str, subscription: AsyncSubscription | None) -> None:
        """Close all connections; the next use opens them in another database."""
        await self.close()
        self.dsn = dsn
        self._subscription = subscription

    async def _connect(self, kind: type[C], dsn: str) -> C:
        return await async_connect_as(
            kind,
            dsn,
            autocommit=True,
            prepare_threshold=self._prepare_threshold,
            application_name=self._application_name,
        )
