# WARNING: generated from pgqpy/_runtime/listener_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Notifications of ticks and tasks: LISTEN, on a connection that does nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import psycopg
from psycopg import Cursor, sql
from psycopg.rows import tuple_row

from pgqpy._runtime.acompat import Lock, Waker, Watch, shared
from pgqpy._runtime.notifications import Notifications, Receiver, TickReceiver
from pgqpy._wire.statements import call
from pgqpy.connection import Connection, connect
from pgqpy.errors import PgqError
from pgqpy.log import logger


class Subscriber(Receiver):
    """A receiver of notifications by LISTEN, if that is possible.

    It is not on a standby, nor behind a PgBouncer in transaction mode (where it may even seem to
    work). So a receiver must not rely on it, and also polls from time to time.
    """

    _listener: Listener

    def __init__(self, dsn: str, queue: str) -> None:
        self._listener = shared(Listener, dsn)
        super().__init__(queue)

    def channel(self, cursor: Cursor[Any]) -> str:
        """Return the channel to listen to; ``cursor`` is for queries that this needs."""
        raise NotImplementedError

    def open(self) -> bool:
        """Start to listen, unless that failed a short while ago; True if this is new."""
        if self.listening:
            return False
        self.listening = self._listener.add(self)
        return self.listening

    def wait(self, waker: Waker, seconds: float) -> None:
        """Wait for a notification, for ``waker``, until the timeout, or until `open` may be
        tried again."""
        if not self.listening:
            seconds = min(seconds, self._listener.seconds_to_next or seconds)
        if not self._news():
            self._waker = waker
            try:
                waker.wait(seconds, self._listener.fileno)
            finally:
                self._waker = None
        self._listener.drain()

    def close(self) -> None:
        if self.listening:
            self.listening = False
            self._forget()
            self._listener.remove(self)


class Subscription(TickReceiver, Subscriber):
    """A consumer's notifications of ticks in its queue."""

    def open(self) -> bool:
        if self._changed:
            self.close()
        return super().open()

    def channel(self, cursor: Cursor[Any]) -> str:
        cursor.execute(call("tick_channel", 1), (self.queue,))
        ((channel,),) = cursor.fetchall()
        return str(channel)


class Listener(Notifications):
    """The connection of subscriptions.

    At each commit that notifies, PostgreSQL wakes all sessions that listen to any channel. So
    asyncio's consumers share one in each event loop; others have one each.
    """

    _conn: Connection | None

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._lock = Lock()

    def add(self, subscription: Subscriber) -> bool:
        """Listen for it. False if that is impossible, or failed a short while ago."""
        with self._lock:
            if monotonic() < self._not_before:
                return False
            try:
                if self._conn is None:
                    self._conn = self._connect()
                with self._speaking(self._conn):
                    channel = self._listen(self._conn, subscription)
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

    def remove(self, subscription: Subscriber) -> None:
        """Stop listening for it, and altogether if it was the last."""
        with self._lock:
            for channel, subscriptions in list(self._channels.items()):
                subscriptions.discard(subscription)
                if not subscriptions:
                    del self._channels[channel]
                    self._unlisten(channel)

    def _connect(self) -> Connection:
        conn = connect(
            self._dsn,
            autocommit=True,
            prepare_threshold=None,
            application_name="pgqpy listen",
            # A consumer that waits here could be polling.
            connect_timeout=3,
        )
        conn.add_notify_handler(self._on_notify)
        return conn

    def _listen(self, conn: Connection, subscription: Subscriber) -> str:
        with conn.cursor(row_factory=tuple_row) as cursor:
            channel = subscription.channel(cursor)
            cursor.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
            # Heartbeats send no notification, so an idle queue would never prove that this works.
            cursor.execute("select pg_notify(%s, %s)", (channel, subscription.probe))
        return channel

    def _unlisten(self, channel: str) -> None:
        if self._conn is None:
            return
        if not self._channels:
            self._lose()
            return
        try:
            with self._speaking(self._conn):
                self._conn.execute(sql.SQL("unlisten {}").format(sql.Identifier(channel)))
        except psycopg.Error:
            pass  # The connection is gone, and its subscriptions know.

    @contextmanager
    def _speaking(self, conn: Connection) -> Iterator[None]:
        """Let psycopg watch the socket while statements are sent, and take its notifications."""
        self._unwatch()
        try:
            yield
        finally:
            if conn.closed:
                self._lose()
            else:
                self._watch = Watch(conn.fileno(), self.drain)
