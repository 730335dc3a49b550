"""The driver's session: the only one of all queries that may move a stream's consumer.

It lives in the process that Spark runs the stream's reader in, one for each run of a query, and
ends with it, however that ends. Executors do not use it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep
from typing import Any, LiteralString, TypeVar

import psycopg

import pgqpy
from pgqpy.errors import ConnectionFailed, ConsumerInUse, translate_errors
from pgqpy.retry import Backoff
from pgqpy_consumers.spark._options import StreamOptions

T = TypeVar("T")

LOCK = 0x70677173
"""In pg_locks: classid 1885827443 (the letters pgqs), objsubid 2; objid is a hash of the names."""

NOTICED = 20.0
"""Seconds until the server ends the session of a driver whose machine or network is gone."""

PATIENCE = NOTICED + 10.0
"""Seconds to wait for the lock: a driver that is gone may still hold it."""

RECONNECT = 60.0
"""Seconds that a server may take to come back."""

# Keepalives detect that nothing answers; the timeout, that sent data is not acknowledged.
_SETTINGS: LiteralString = """
select pg_catalog.set_config(s.name, s.value, false)
  from (values ('tcp_keepalives_idle', '10'),
               ('tcp_keepalives_interval', '5'),
               ('tcp_keepalives_count', '2'),
               ('tcp_user_timeout', '20s'),
               ('idle_session_timeout', '0')) s (name, value)
  join pg_catalog.pg_settings known on known.name = s.name
"""
_ME: LiteralString = """
select pid, backend_start
  from pg_catalog.pg_stat_activity
 where pid = pg_catalog.pg_backend_pid()
"""
_END: LiteralString = """
select pg_catalog.pg_terminate_backend(pid)
  from pg_catalog.pg_stat_activity
 where pid = %s
   and backend_start = %s
"""
_WAIT: LiteralString = "select pg_catalog.set_config('lock_timeout', %s, true)"
_TAKE: LiteralString = "select pg_catalog.pg_advisory_lock(%s, pg_catalog.hashtext(%s))"
_HOLDER: LiteralString = """
select l.pid,
       coalesce('on ' || pg_catalog.host(a.client_addr), 'on the server''s machine'),
       pg_catalog.to_char(a.backend_start, 'YYYY-MM-DD HH24:MI:SS TZ')
  from pg_catalog.pg_locks l
  left join pg_catalog.pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'advisory'
   and l.classid = %s
   and l.objid::int8 = pg_catalog.hashtext(%s)::int8 & 4294967295
   and l.objsubid = 2
   and l.granted
   and l.database = (select oid from pg_catalog.pg_database
                      where datname = pg_catalog.current_database())
"""


class DriverSession:
    """The right to move a consumer, for as long as this process has its session.

    The lock reports conflicts early. The protection of two queries with one consumer against
    losing events is pgq.advance_consumer(), which refuses the one that is behind.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._key = (LOCK, repr((options.queue, options.consumer)))
        self._conn: pgqpy.Connection | None = None
        self._last: tuple[Any, ...] | None = None
        """The last session that had the lock: pid and start time."""

    def run(self, work: Callable[[pgqpy.Connection], T]) -> T:
        """Call a repeatable function with the session's connection.

        If the server went away since the last call, or goes away during this one, wait until
        it is back, and call again. Not for a shard that others need not wait for.

        Raises ConsumerInUse if another query has the consumer; ConnectionFailed.
        """
        backoff = Backoff(0.1, 2.0)
        waits = self._conn is not None and not self._options.waits
        end = monotonic() + (RECONNECT if waits else 0.0)
        while True:
            try:
                with translate_errors():
                    return work(self._connection())
            except ConnectionFailed as error:
                self.close()
                if monotonic() >= end:
                    raise
                sleep(backoff.pause(error))

    def close(self) -> None:
        """Release the lock. The next call of `run` takes it again."""
        if self._conn is not None:
            self._conn.close()
        self._conn = None

    def _connection(self) -> pgqpy.Connection:
        if self._conn is None:
            conn = self._options.connect(f"pgqpy {self._options.consumer} stream")
            try:
                self._take(conn)
            except BaseException:
                conn.close()
                raise
            self._conn = conn
        return self._conn

    def _take(self, conn: pgqpy.Connection) -> None:
        me = conn.execute(_ME).fetchone()
        if me is None or me[0] != conn.info.backend_pid:
            # A pooler: the lock would stay on a session that it lends to others.
            return
        conn.execute(_SETTINGS)
        if self._last is not None:
            # The connection was lost, and the server may not have noticed.
            conn.execute(_END, self._last)
        try:
            # The timeout ends with the transaction, the lock with the session.
            with conn.transaction():
                conn.execute(_WAIT, [f"{PATIENCE * 1000:.0f}ms"])
                conn.execute(_TAKE, self._key)
        except psycopg.errors.LockNotAvailable:
            raise self._in_use(conn) from None
        self._last = me

    def _in_use(self, conn: pgqpy.Connection) -> ConsumerInUse:
        gone = ("?", "gone now", "?")
        pid, where, since = conn.execute(_HOLDER, self._key).fetchone() or gone
        return ConsumerInUse(
            f"another query streams from queue {self._options.queue!r} as consumer"
            f" {self._options.consumer!r}; its driver is {where}, session {pid} since {since};"
            f" {PATIENCE:g} seconds were not enough for it to end",
            hint="Give each query a consumer of its own. A server that is told so by its network"
            f" ends the session of a dead driver within {NOTICED:g} seconds; you do at once with:"
            f" select pg_terminate_backend({pid}).",
        )
