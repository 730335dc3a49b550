# WARNING: this file is generated from pgqpy/session_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""A consumer's connections, opened when needed and again after they broke."""

from __future__ import annotations

from time import monotonic

from psycopg import IsolationLevel

from pgqpy.acompat import Waker
from pgqpy.connection import Connection, connect
from pgqpy.listener import Listener

#: Polls are so much rarer while ticks are known to be heard.
_TRUST = 100


class Session:
    """Three connections: one for the transactions, one to read events, one to hear of ticks."""

    def __init__(
        self,
        dsn: str,
        listener: Listener | None,
        *,
        application_name: str,
        prepare_threshold: int | None,
        isolation_level: IsolationLevel,
    ) -> None:
        self._dsn = dsn
        self._listener = listener
        self._listen_at = 0.0
        self._application_name = application_name
        self._prepare_threshold = prepare_threshold
        self._isolation_level = isolation_level
        self._working: Connection | None = None
        self._reading: Connection | None = None

    def working(self) -> Connection:
        """The connection for the consumer's transactions (autocommit outside of them)."""
        if self._working is None or self._working.closed:
            self._working = self._connect()
            self._working.set_isolation_level(self._isolation_level)
        return self._working

    def reading(self) -> Connection:
        """The connection for the events."""
        if self._reading is None or self._reading.closed:
            self._reading = self._connect()
        return self._reading

    @property
    def lost(self) -> bool:
        """Whether a connection that was open broke."""
        return any(conn is not None and conn.closed for conn in (self._working, self._reading))

    def listen(self) -> bool:
        """Start to listen, unless that was impossible a short while ago; True if this is new."""
        if (
            self._listener is None
            or self._listener.fileno is not None
            or monotonic() < self._listen_at
        ):
            return False
        pause = self._listener.open()
        if pause is None:
            return True
        self._listen_at = monotonic() + pause
        return False

    def up_to_date(self, tick: int) -> bool:
        """Whether there is known to be nothing after ``tick``, for having listened since."""
        if self._listener is None:
            return False
        self._listener.drain()
        return 0 < self._listener.newest <= tick

    def wait(self, waker: Waker, seconds: float, *, for_tick: bool) -> None:
        """Wait for a tick, for `waker`, or so long.

        A hundred times as long if only a tick can end the wait and LISTEN is known to work: then
        polling is for the case that the connection dies unnoticed.
        """
        fileno = None
        if self._listener is not None:
            fileno = self._listener.fileno
            if for_tick and self._listener.works:
                seconds *= _TRUST
        if waker.wait(seconds, fileno) and self._listener is not None:
            self._listener.drain()

    def close(self) -> None:
        """Close all; the next use opens them again."""
        for conn in (self._working, self._reading):
            if conn is not None:
                conn.close()
        self._working = self._reading = None
        if self._listener is not None:
            self._listener.close()
            self._listen_at = 0.0

    def _connect(self) -> Connection:
        return connect(
            self._dsn,
            autocommit=True,
            prepare_threshold=self._prepare_threshold,
            application_name=self._application_name,
        )
