# WARNING: generated from pgqpy/_runtime/listener_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Notifications of ticks and tasks: LISTEN, on a connection that does nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import psycopg
from psycopg import Cursor, Notify, sql
from psycopg.rows import tuple_row

from pgqpy._runtime.acompat import Lock, Waker, Watch, shared
from pgqpy._runtime.backoff import Backoff
from pgqpy._wire.statements import call
from pgqpy.connection import Connection, connect
from pgqpy.errors import PgqError
from pgqpy.log import logger

#: The payload for a change that concerns all consumers of a queue: see pgq.tick_channel().
_CHANGED = "changed"


class Subscriber:
    """A receiver of notifications by LISTEN, if that is possible.

    It is not on a standby, nor behind a PgBouncer in transaction mode (where it may even seem to
    work). So a receiver must not rely on it, and also polls from time to time.
    """

    #: The payload of a notification without meaning, which tests whether notifications arrive.
    probe = "0"
    #: The word for the log.
    subject = "ticks"

    def __init__(self, dsn: str, queue: str) -> None:
        self.queue = queue
        self._listener = shared(Listener, dsn)
        self._waker: Waker | None = None
        self.listening = False
        self._forget()

    def _forget(self) -> None:
        """Forget what was received: its connection is gone."""

    def channel(self, cursor: Cursor[Any]) -> str:
        """Return the channel to listen to; ``cursor`` is for queries that this needs."""
        raise NotImplementedError

    def hear(self, payload: str) -> None:
        """Receive a notification. Any role may send one, with any payload."""
        raise NotImplementedError

    def _news(self) -> bool:
        """Whether there are unprocessed notifications."""
        raise NotImplementedError

    @property
    def works(self) -> bool:
        """Whether notifications are known to arrive: LISTEN may only seem to work."""
        return self.listening and self._listener.works

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
        """Stop listening."""
        if self.listening:
            self.listening = False
            self._forget()
            self._listener.remove(self)

    def lose(self) -> None:
        """Forget the connection: it is gone."""
        self.listening = False
        self._forget()
        self._wake()

    def _wake(self) -> None:
        if self._waker is not None:
            self._waker.wake()


class Subscription(Subscriber):
    """A consumer's notifications of ticks in its queue."""

    def _forget(self) -> None:
        #: The newest tick received since it listens; 0: none. Any role may have made it up.
        self.newest = 0
        self._heard = False
        #: Whether the queue may have another channel: it was dropped, and perhaps created again.
        self._changed = False

    def open(self) -> bool:
        if self._changed:
            self.close()
        return super().open()

    def channel(self, cursor: Cursor[Any]) -> str:
        cursor.execute(call("tick_channel", 1), (self.queue,))
        ((channel,),) = cursor.fetchall()
        return str(channel)

    def hear(self, payload: str) -> None:
        if payload == _CHANGED:
            self.newest = 0
            self._changed = True
            self._wake()
            return
        tick = int(payload) if payload.isascii() and payload.isdigit() and len(payload) < 20 else 0
        if tick:
            self.newest = max(self.newest, tick)
            self._heard = True
            self._wake()

    def _news(self) -> bool:
        return self._changed or self._heard

    def ask(self) -> None:
        """Note that the server is about to be asked for all ticks received so far."""
        self._heard = False

    def up_to_date(self, tick: int) -> bool:
        """Whether no tick after ``tick`` is known to exist: it has listened since."""
        self._listener.drain()
        if not 0 < self.newest <= tick:
            return False
        self.ask()
        return True


class Listener:
    """The connection of subscriptions.

    At each commit that notifies, PostgreSQL wakes all sessions that listen to any channel. So
    asyncio's consumers share one in each event loop; others have one each.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._conn: Connection | None = None
        self._watch: Watch | None = None
        self._lock = Lock()
        self._channels: dict[str, set[Subscriber]] = {}
        self._pause = Backoff(1, 60)
        self._not_before = 0.0
        #: Whether the present connection is known to receive unsolicited notifications.
        self.works = False

    @property
    def fileno(self) -> int | None:
        """The socket to watch while waiting; None if there is none, or the event loop watches
        it."""
        return None if self._watch is None else self._watch.fileno

    @property
    def seconds_to_next(self) -> float:
        """The seconds until it tries again to listen; 0 if that did not fail a short while ago."""
        return max(self._not_before - monotonic(), 0.0)

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

    def drain(self) -> None:
        """Take the notifications that have arrived, without waiting."""
        if self._conn is None or self._watch is None:
            return
        pgconn = self._conn.pgconn
        try:
            pgconn.consume_input()
            while notice := pgconn.notifies():
                self._hear(notice.relname.decode(), notice.extra.decode(errors="replace"))
                # No query was under way.
                self.works = True
        except psycopg.OperationalError:
            self._lose()

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

    def _on_notify(self, notice: Notify) -> None:
        """Receive a notification; a pooler passes on those with an answer, and may keep later
        ones."""
        self._hear(notice.channel, notice.payload)
        if self._conn is not None and notice.pid == self._conn.info.backend_pid:
            self.works = True

    def _hear(self, channel: str, payload: str) -> None:
        for subscription in self._channels.get(channel, ()):
            subscription.hear(payload)

    def _lose(self) -> None:
        """Close the connection, without waiting: the event loop calls this."""
        self._unwatch()
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.pgconn.finish()
        self.works = False
        channels, self._channels = self._channels, {}
        for subscriptions in channels.values():
            for subscription in subscriptions:
                subscription.lose()

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
