"""Receiving notifications: what needs no answer of the server."""

from __future__ import annotations

from time import monotonic
from typing import Any

from psycopg import Notify, OperationalError

from pgqpy._runtime.acompat import AsyncWaker, Waker
from pgqpy._runtime.backoff import Backoff

#: The payload for a change that concerns all consumers of a queue: see pgq.tick_channel().
_CHANGED = "changed"


class Receiver:
    """A base of what listens to a channel."""

    #: The payload of a notification without meaning, which tests whether notifications arrive.
    probe = "0"
    #: The word for the log.
    subject = "ticks"

    _listener: Notifications
    _waker: Waker | AsyncWaker | None = None
    listening = False

    def __init__(self, queue: str) -> None:
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


class TickReceiver(Receiver):
    """A base of what is notified of ticks."""

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


class Notifications:
    """A base of connections that listen for receivers."""

    _conn: Any = None
    _watch: Any = None

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._channels: dict[str, set[Any]] = {}
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
        except OperationalError:
            self._lose()

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
