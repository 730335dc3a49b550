"""Notifications of ticks and tasks: LISTEN, on a connection that does nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import psycopg
from psycopg import Notify, sql

from pgqpy._runtime.acompat import AsyncWaker, AsyncWatch
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.io import PLAIN, AsyncIo
from pgqpy._wire.statements import call
from pgqpy.connection_async import AsyncConnection
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

    _waker: AsyncWaker | None = None
    listening = False

    def __init__(self, io: AsyncIo, dsn: str, queue: str) -> None:
        self._io = io
        self._listener = io.shared(Listener, dsn)
        self.queue = queue
        self._forget()

    def _forget(self) -> None:
        """Forget what was received: its connection is gone."""

    def hear(self, payload: str) -> None:
        """Receive a notification. Any role may send one, with any payload."""
        raise NotImplementedError

    def _news(self) -> bool:
        """Whether there are unprocessed notifications."""
        raise NotImplementedError

    async def channel(self, conn: AsyncConnection) -> str:
        """Return the channel to listen to; ``conn`` is for queries that this needs."""
        raise NotImplementedError

    @property
    def works(self) -> bool:
        """Whether notifications are known to arrive: LISTEN may only seem to work."""
        return self.listening and self._listener.works

    def lose(self) -> None:
        """Forget the connection: it is gone."""
        self.listening = False
        self._forget()
        self._wake()

    def _wake(self) -> None:
        if self._waker is not None:
            self._waker.wake()

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
                await self._io.call(waker.wait, seconds, self._listener.fileno)
            finally:
                self._waker = None
        self._listener.drain()

    async def close(self) -> None:
        if self.listening:
            self.listening = False
            self._forget()
            await self._listener.remove(self)


class Subscription(Subscriber):
    """A consumer's notifications of ticks in its queue."""

    def _forget(self) -> None:
        #: The newest tick received since it listens; 0: none. Any role may have made it up.
        self.newest = 0
        self._heard = False
        #: Whether the queue may have another channel: it was dropped, and perhaps created again.
        self._changed = False

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

    async def open(self) -> bool:
        if self._changed:
            await self.close()
        return await super().open()

    async def channel(self, conn: AsyncConnection) -> str:
        ((channel,),) = await self._io.fetch(conn, call("tick_channel", 1), [self.queue])
        return str(channel)

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
    """The connection of subscribers.

    At each commit that notifies, PostgreSQL wakes all sessions that listen to any channel. So
    asyncio's consumers share one in each event loop; others have one each.
    """

    def __init__(self, io: AsyncIo, dsn: str) -> None:
        self._io = io
        self._dsn = dsn
        self._lock = io.lock()
        self._conn: AsyncConnection | None = None
        self._watch: AsyncWatch | None = None
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

    async def add(self, subscriber: Subscriber) -> bool:
        """Listen for it. False if that is impossible, or failed a short while ago."""
        async with self._lock:
            if monotonic() < self._not_before:
                return False
            try:
                if self._conn is None:
                    self._conn = await self._connect()
                with self._speaking(self._conn):
                    channel = await self._listen(self._conn, subscriber)
            except (PgqError, psycopg.Error) as error:
                if not self._channels:
                    self._lose()
                pause = self._pause.pause(error)
                self._not_before = monotonic() + pause
                logger.info(
                    "cannot listen for %s, polling instead: %s",
                    subscriber.subject,
                    str(error).partition("\n")[0],
                    extra={"queue": subscriber.queue, "pause": pause},
                )
                return False
            except BaseException:
                # It was cancelled: no subscriber would close the connection.
                if not self._channels:
                    self._lose()
                raise
            self._pause.reset()
            self._channels.setdefault(channel, set()).add(subscriber)
        return True

    async def remove(self, subscriber: Subscriber) -> None:
        """Stop listening for it, and altogether if it was the last."""
        async with self._lock:
            for channel, subscribers in list(self._channels.items()):
                subscribers.discard(subscriber)
                if not subscribers:
                    del self._channels[channel]
                    await self._unlisten(channel)

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

    async def _connect(self) -> AsyncConnection:
        conn = await self._io.connect(
            PLAIN,
            self._dsn,
            autocommit=True,
            prepare_threshold=None,
            application_name="pgqpy listen",
            # A consumer that waits here could be polling.
            connect_timeout=3,
        )
        conn.add_notify_handler(self._on_notify)
        return conn

    async def _listen(self, conn: AsyncConnection, subscriber: Subscriber) -> str:
        channel = await subscriber.channel(conn)
        listen = sql.SQL("listen {}").format(sql.Identifier(channel))
        await self._io.call(conn.execute, listen)
        # Heartbeats send no notification, so an idle queue would never prove that this works.
        await self._io.call(conn.execute, "select pg_notify(%s, %s)", (channel, subscriber.probe))
        return channel

    async def _unlisten(self, channel: str) -> None:
        if self._conn is None:
            return
        if not self._channels:
            self._lose()
            return
        try:
            with self._speaking(self._conn):
                unlisten = sql.SQL("unlisten {}").format(sql.Identifier(channel))
                await self._io.call(self._conn.execute, unlisten)
        except psycopg.Error:
            pass  # The connection is gone, and its subscribers know.

    def _on_notify(self, notice: Notify) -> None:
        """Receive a notification; a pooler passes on those with an answer, and may keep later
        ones."""
        self._hear(notice.channel, notice.payload)
        if self._conn is not None and notice.pid == self._conn.info.backend_pid:
            self.works = True

    def _hear(self, channel: str, payload: str) -> None:
        for subscriber in self._channels.get(channel, ()):
            subscriber.hear(payload)

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
                self._watch = self._io.watch(conn.fileno(), self.drain)

    def _lose(self) -> None:
        """Close the connection, without waiting: the event loop calls this."""
        self._unwatch()
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.pgconn.finish()
        self.works = False
        channels, self._channels = self._channels, {}
        for subscribers in channels.values():
            for subscriber in subscribers:
                subscriber.lose()

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
