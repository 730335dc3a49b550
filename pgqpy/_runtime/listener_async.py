"""Notifications of ticks and tasks: LISTEN, on a connection that does nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import psycopg
from psycopg import AsyncCursor, sql
from psycopg.rows import tuple_row

from pgqpy._runtime.acompat import AsyncLock, AsyncWaker, AsyncWatch, async_shared
from pgqpy._runtime.notifications import Notifications, Receiver, TickReceiver
from pgqpy._wire.statements import call
from pgqpy.connection_async import AsyncConnection, async_connect
from pgqpy.errors import PgqError
from pgqpy.log import logger


class AsyncSubscriber(Receiver):
    """A receiver of notifications by LISTEN, if that is possible.

    It is not on a standby, nor behind a PgBouncer in transaction mode (where it may even seem to
    work). So a receiver must not rely on it, and also polls from time to time.
    """

    _listener: AsyncListener

    def __init__(self, dsn: str, queue: str) -> None:
        self._listener = async_shared(AsyncListener, dsn)
        super().__init__(queue)

    async def channel(self, cursor: AsyncCursor[Any]) -> str:
        """Return the channel to listen to; ``cursor`` is for queries that this needs."""
        raise NotImplementedError

    async def open(self) -> bool:
        """Start to listen, unless that failed a short while ago; True if this is new."""
        if self.listening:
            return False
        self.listening = await self._listener.add(self)
        return self.listening

    async def wait(self, waker: AsyncWaker, seconds: float) -> None:
        """Wait for a notification, for ``waker``, until the timeout, or until `open` may be
        tried again."""
        if not self.listening:
            seconds = min(seconds, self._listener.seconds_to_next or seconds)
        if not self._news():
            self._waker = waker
            try:
                await waker.wait(seconds, self._listener.fileno)
            finally:
                self._waker = None
        self._listener.drain()

    async def close(self) -> None:
        if self.listening:
            self.listening = False
            self._forget()
            await self._listener.remove(self)


class AsyncSubscription(TickReceiver, AsyncSubscriber):
    """A consumer's notifications of ticks in its queue."""

    async def open(self) -> bool:
        if self._changed:
            await self.close()
        return await super().open()

    async def channel(self, cursor: AsyncCursor[Any]) -> str:
        await cursor.execute(call("tick_channel", 1), (self.queue,))
        ((channel,),) = await cursor.fetchall()
        return str(channel)


class AsyncListener(Notifications):
    """The connection of subscriptions.

    At each commit that notifies, PostgreSQL wakes all sessions that listen to any channel. So
    asyncio's consumers share one in each event loop; others have one each.
    """

    _conn: AsyncConnection | None

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._lock = AsyncLock()

    async def add(self, subscription: AsyncSubscriber) -> bool:
        """Listen for it. False if that is impossible, or failed a short while ago."""
        async with self._lock:
            if monotonic() < self._not_before:
                return False
            try:
                if self._conn is None:
                    self._conn = await self._connect()
                with self._speaking(self._conn):
                    channel = await self._listen(self._conn, subscription)
            except (PgqError, psycopg.Error) as error:
                if not self._channels:
                    self._lose()
                pause = self._pause.pause(error)
                self._not_before = monotonic() + pause
                logger.info(
                    "cannot listen for %s, polling instead: %s",
                    subscription.subject,
                    str(error).partition("\n")[0],
                    extra={"queue": subscription.queue, "pause": pause},
                )
                return False
            except BaseException:
                # It was cancelled: no subscription would close the connection.
                if not self._channels:
                    self._lose()
                raise
            self._pause.reset()
            self._channels.setdefault(channel, set()).add(subscription)
        return True

    async def remove(self, subscription: AsyncSubscriber) -> None:
        """Stop listening for it, and altogether if it was the last."""
        async with self._lock:
            for channel, subscriptions in list(self._channels.items()):
                subscriptions.discard(subscription)
                if not subscriptions:
                    del self._channels[channel]
                    await self._unlisten(channel)

    async def _connect(self) -> AsyncConnection:
        conn = await async_connect(
            self._dsn,
            autocommit=True,
            prepare_threshold=None,
            application_name="pgqpy listen",
            # A consumer that waits here could be polling.
            connect_timeout=3,
        )
        conn.add_notify_handler(self._on_notify)
        return conn

    async def _listen(self, conn: AsyncConnection, subscription: AsyncSubscriber) -> str:
        async with conn.cursor(row_factory=tuple_row) as cursor:
            channel = await subscription.channel(cursor)
            await cursor.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
            # Heartbeats send no notification, so an idle queue would never prove that this works.
            await cursor.execute("select pg_notify(%s, %s)", (channel, subscription.probe))
        return channel

    async def _unlisten(self, channel: str) -> None:
        if self._conn is None:
            return
        if not self._channels:
            self._lose()
            return
        try:
            with self._speaking(self._conn):
                await self._conn.execute(sql.SQL("unlisten {}").format(sql.Identifier(channel)))
        except psycopg.Error:
            pass  # The connection is gone, and its subscriptions know.

    @contextmanager
    def _speaking(self, conn: AsyncConnection) -> Iterator[None]:
        """Let psycopg watch the socket while statements are sent, and take its notifications."""
        self._unwatch()
        try:
            yield
        finally:
            if conn.closed:
                self._lose()
            else:
                self._watch = AsyncWatch(conn.fileno(), self.drain)
