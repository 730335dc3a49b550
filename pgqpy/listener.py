# WARNING: this file is generated from pgqpy/listener_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Hearing of ticks: LISTEN on queues' channels, on a connection that does nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import psycopg
from psycopg import Notify, sql
from psycopg.rows import tuple_row

from pgqpy.acompat import Lock, Waker, Watch, shared
from pgqpy.backoff import Backoff
from pgqpy.calls import call
from pgqpy.connection import Connection, connect
from pgqpy.errors import PgqError
from pgqpy.log import logger


class Subscription:
    """What a consumer hears of its queue's ticks, where that is possible.

    It is not on a standby, nor behind a PgBouncer in transaction mode (which may even pretend):
    nobody may rely on it, so who waits also looks from time to time.
    """

    def __init__(self, dsn: str, queue: str) -> None:
        self.queue = queue
        self._listener = shared(Listener, dsn)
        self._waker: Waker | None = None
        self._forget()

    def _forget(self) -> None:
        self.listening = False
        #: The newest tick heard of since it listens; 0: none.
        self.newest = 0
        self._known = 0

    @property
    def works(self) -> bool:
        """Whether ticks are known to be heard: LISTEN may only seem to work."""
        return self.listening and self._listener.works

    def open(self) -> bool:
        """Start to listen, unless that was impossible a short while ago; True if this is new."""
        if self.listening:
            return False
        self.listening = self._listener.add(self)
        return self.listening

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

    def wait(self, waker: Waker, seconds: float) -> None:
        """Wait for a tick not heard of when last `ask` was called, for ``waker``, or so long."""
        if self.newest == self._known:
            self._waker = waker
            try:
                waker.wait(seconds, self._listener.fileno)
            finally:
                self._waker = None
        self._listener.drain()

    def close(self) -> None:
        """Stop listening."""
        if self.listening:
            self._forget()
            self._listener.remove(self)

    def hear(self, tick: int) -> None:
        """There is a tick."""
        if tick > self.newest:
            self.newest = tick
            self._wake()

    def lose(self) -> None:
        """The connection is gone."""
        self._forget()
        self._wake()

    def _wake(self) -> None:
        if self._waker is not None:
            self._waker.wake()


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
        self._channels: dict[str, set[Subscription]] = {}
        self._pause = Backoff(1, 60)
        self._not_before = 0.0
        #: Whether the present connection is known to hear what comes unasked.
        self.works = False

    @property
    def fileno(self) -> int | None:
        """The socket that who waits must watch; None if there is none or the event loop does."""
        return None if self._watch is None else self._watch.fileno

    def add(self, subscription: Subscription) -> bool:
        """Listen to its queue's ticks. False if that is impossible, or was a short while ago."""
        with self._lock:
            if monotonic() < self._not_before:
                return False
            try:
                if self._conn is None:
                    self._conn = self._connect()
                with self._speaking(self._conn):
                    channel = self._listen(self._conn, subscription.queue)
            except (PgqError, psycopg.Error) as error:
                if not self._channels:
                    self._lose()
                pause = self._pause.pause()
                self._not_before = monotonic() + pause
                logger.info(
                    "cannot listen for ticks, polling instead: %s",
                    str(error).partition("\n")[0],
                    extra={"queue": subscription.queue, "pause": pause},
                )
                return False
            self._pause.reset()
            self._channels.setdefault(channel, set()).add(subscription)
        return True

    def remove(self, subscription: Subscription) -> None:
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
                self._hear(notice.relname.decode(), notice.extra)
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

    def _listen(self, conn: Connection, queue: str) -> str:
        with conn.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(call("tick_channel", 1), (queue,))
            ((channel,),) = cursor.fetchall()
            cursor.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
            # Heartbeats notify nobody, so an idle queue would never prove that this works.
            cursor.execute("select pg_notify(%s, '0')", (channel,))
        return str(channel)

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

    def _hear(self, channel: str, payload: str | bytes) -> None:
        if payload.isdigit():  # anybody may notify
            for subscription in self._channels.get(channel, ()):
                subscription.hear(int(payload))

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
