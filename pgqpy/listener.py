# WARNING: generated from pgqpy/listener_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Hearing of ticks and tasks: LISTEN, on a connection that does nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import psycopg
from psycopg import Cursor, Notify, sql
from psycopg.rows import tuple_row

from pgqpy.acompat import Lock, Waker, Watch, shared
from pgqpy.backoff import Backoff
from pgqpy.calls import call
from pgqpy.connection import Connection, connect
from pgqpy.errors import PgqError
from pgqpy.log import logger

#: The payload of what concerns all consumers of a queue and is no tick: see pgq.tick_channel().
_CHANGED = "changed"


class Subscriber:
    """Who hears of something by LISTEN, where that is possible.

    It is not on a standby, nor behind a PgBouncer in transaction mode (which may even pretend):
    nobody may rely on it, so who waits also looks from time to time.
    """

    #: A notice that tells nobody anything, to see whether notices come.
    probe = "0"
    #: For the log.
    subject = "ticks"

    def __init__(self, dsn: str, queue: str) -> None:
        self.queue = queue
        self._listener = shared(Listener, dsn)
        self._waker: Waker | None = None
        self.listening = False
        self._forget()

    def _forget(self) -> None:
        """What was heard was heard on a connection that is gone."""

    def channel(self, cursor: Cursor[Any]) -> str:
        """The channel to listen to; ``cursor`` is for whoever has to ask."""
        raise NotImplementedError

    def hear(self, payload: str) -> None:
        """There is a notice. Anybody may notify, with anything."""
        raise NotImplementedError

    def _news(self) -> bool:
        """Whether something was heard that nobody has looked after yet."""
        raise NotImplementedError

    @property
    def works(self) -> bool:
        """Whether notices are known to be heard: LISTEN may only seem to work."""
        return self.listening and self._listener.works

    def open(self) -> bool:
        """Start to listen, unless that was impossible a short while ago; True if this is new."""
        if self.listening:
            return False
        self.listening = self._listener.add(self)
        return self.listening

    def wait(self, waker: Waker, seconds: float) -> None:
        """Wait for news, for ``waker``, or so long."""
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
        """The connection is gone."""
        self.listening = False
        self._forget()
        self._wake()

    def _wake(self) -> None:
        if self._waker is not None:
            self._waker.wake()


class Subscription(Subscriber):
    """What a consumer hears of its queue's ticks."""

    def _forget(self) -> None:
        #: The newest tick heard of since it listens; 0: none.
        self.newest = 0
        self._known = 0
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
        if tick > self.newest:
            self.newest = tick
            self._wake()

    def _news(self) -> bool:
        return self._changed or self.newest != self._known

    def ask(self) -> None:
        """The server is about to be asked for all ticks heard of so far."""
        self._known = self.newest

    def up_to_date(self, tick: int) -> bool:
        """Whether there is known to be nothing after ``tick``, for having listened since."""
        self._listener.drain()
        if not 0 < self.newest <= tick:
            return False
        self.ask()
        return True


class Listener:
    """The connection of subscriptions.

    At each commit that notifies anybody PostgreSQL wakes all sessions that listen to anything. So
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
        #: Whether the present connection is known to hear what comes unasked.
        self.works = False

    @property
    def fileno(self) -> int | None:
        """The socket that who waits must watch; None if there is none or the event loop does."""
        return None if self._watch is None else self._watch.fileno

    def add(self, subscription: Subscriber) -> bool:
        """Listen for it. False if that is impossible, or was a short while ago."""
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
                pause = self._pause.pause()
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
        """Take what has arrived; it does not wait."""
        if self._conn is None or self._watch is None:
            return
        pgconn = self._conn.pgconn
        try:
            pgconn.consume_input()
            while notice := pgconn.notifies():
                self._hear(notice.relname.decode(), notice.extra.decode(errors="replace"))
                # Nobody had asked anything.
                self.works = True
        except psycopg.OperationalError:
            self._lose()

    def _connect(self) -> Connection:
        conn = connect(
            self._dsn,
            autocommit=True,
            prepare_threshold=None,
            application_name="pgqpy listen",
            # Whoever waits here could be polling.
            connect_timeout=3,
        )
        conn.add_notify_handler(self._on_notify)
        return conn

    def _listen(self, conn: Connection, subscription: Subscriber) -> str:
        with conn.cursor(row_factory=tuple_row) as cursor:
            channel = subscription.channel(cursor)
            cursor.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
            # Heartbeats notify nobody, so an idle queue would never prove that this works.
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
        """While statements are sent psycopg watches the socket, and hands on what it hears."""
        self._unwatch()
        try:
            yield
        finally:
            if conn.closed:
                self._lose()
            else:
                self._watch = Watch(conn.fileno(), self.drain)

    def _on_notify(self, notice: Notify) -> None:
        """A pooler hands on what comes with an answer, and may keep what comes later."""
        self._hear(notice.channel, notice.payload)
        if self._conn is not None and notice.pid == self._conn.info.backend_pid:
            self.works = True

    def _hear(self, channel: str, payload: str) -> None:
        for subscription in self._channels.get(channel, ()):
            subscription.hear(payload)

    def _lose(self) -> None:
        """Close the connection. Not waiting: this is called by the event loop."""
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
