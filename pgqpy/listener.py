# WARNING: this file is generated from pgqpy/listener_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Hearing of ticks: LISTEN on a queue's channel, on a connection that does nothing else."""

from __future__ import annotations

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from pgqpy.backoff import Backoff
from pgqpy.calls import call
from pgqpy.connection import Connection, connect
from pgqpy.errors import PgqError
from pgqpy.log import logger


class Listener:
    """Hears the ticks of a queue, where that is possible.

    It is not on a standby, nor behind a PgBouncer in transaction mode (which may even pretend):
    nobody may rely on it, so who waits also looks from time to time.
    """

    def __init__(self, dsn: str, queue: str) -> None:
        self._dsn = dsn
        self._queue = queue
        self._conn: Connection | None = None
        self._pause = Backoff(1, 60)
        #: Whether anything was heard on the present connection: it may only seem to work.
        self.works = False
        #: The newest tick heard of on it; 0: none.
        self.newest = 0

    @property
    def fileno(self) -> int | None:
        """The socket that becomes readable; None while nothing can be heard."""
        return None if self._conn is None else self._conn.fileno()

    def open(self) -> float | None:
        """Try to listen; the seconds to leave it alone if that failed, else None."""
        self.works, self.newest = False, 0
        try:
            conn = connect(
                self._dsn,
                autocommit=True,
                prepare_threshold=None,
                application_name="pgqpy listen",
                # Whoever waits here could be polling.
                connect_timeout=3,
            )
            try:
                conn.add_notify_handler(lambda notice: self._hear(notice.payload))
                with conn.cursor(row_factory=tuple_row) as cursor:
                    cursor.execute(call("tick_channel", 1), (self._queue,))
                    ((channel,),) = cursor.fetchall()
                    cursor.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
                    # Heartbeats notify nobody, so an idle queue would never prove that this works.
                    cursor.execute("select pg_notify(%s, '0')", (channel,))
            except BaseException:
                conn.close()
                raise
        except (PgqError, psycopg.Error) as error:
            pause = self._pause.pause()
            logger.info(
                "cannot listen for ticks, polling instead: %s",
                str(error).partition("\n")[0],
                extra={"queue": self._queue, "pause": pause},
            )
            return pause
        self._conn = conn
        self._pause.reset()
        return None

    def drain(self) -> None:
        """Take what has arrived; it does not wait."""
        if self._conn is None:
            return
        try:
            self._conn.pgconn.consume_input()
            while notice := self._conn.pgconn.notifies():
                self._hear(notice.extra)
        except psycopg.OperationalError:
            self.close()

    def _hear(self, payload: str | bytes) -> None:
        if payload.isdigit():  # anybody may notify
            self.works = True
            self.newest = max(self.newest, int(payload))

    def close(self) -> None:
        """Stop listening."""
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()
