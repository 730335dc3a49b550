"""Of all tickers of a database, one leads: the holder of an advisory lock of the session it
ticks on.

The lock and the ticks share one connection, so whoever lost the lock cannot tick. The lock ends
with the session: a stop or a crash ends it at once, a vanished machine after the keepalives
(about 10 s), a process that hangs after `leader_timeout`, when the server closes the session as
idle.

Standing by polls. Waiting inside pg_advisory_lock() would be told at once, but is a statement
that never ends: it would hold back vacuum in the whole database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import LiteralString

from pgqpy_ticker.config import Database
from pgqpy_ticker.connect import Connection, connect
from pgqpy_ticker.logs import Log
from pgqpy_ticker.trouble import Pooled, SchemaMissing

LOCK = (0x70677170, 1)
"""In pg_locks: classid 1885827440 (the letters pgqp), objid 1 (the ticker), objsubid 2."""

_PROBE = 3.0
"""Seconds that a pooler may take to answer while another connection is in a transaction."""

_PID: LiteralString = "select pg_catalog.pg_backend_pid()"
_TRY: LiteralString = "select pg_catalog.pg_try_advisory_lock(%s, %s), pg_catalog.pg_backend_pid()"
_HOLDER: LiteralString = """
    select pid from pg_catalog.pg_locks
    where locktype = 'advisory' and classid = %s and objid = %s and objsubid = 2 and granted
      and database = (select oid from pg_catalog.pg_database
                      where datname = pg_catalog.current_database())
"""
_EXISTS: LiteralString = "select pg_catalog.to_regprocedure(%s) is not null"
_ROUND: LiteralString = "pgq.ticker_round(boolean, integer, integer[], bigint[])"


async def check_schema(connection: Connection) -> None:
    """Raises SchemaMissing unless this database has our ticker's functions."""
    row = await (await connection.execute(_EXISTS, (_ROUND,))).fetchone()
    if row != (True,):
        raise SchemaMissing(f"there is no function {_ROUND}")


async def check_session(connection: Connection, database: Database) -> None:
    """Raises Pooled if a pooler would keep our lock on a session that it lends to others too.

    A pooler is there if the server's process is not the one that the connection was told of. In
    transaction mode, somebody else's transaction is then given the process that served us last.
    """
    pid = await _server_pid(connection)
    if pid == connection.info.backend_pid:
        return
    other = await connect(database)
    try:
        async with other.transaction(), asyncio.timeout(_PROBE):
            await _server_pid(other)
            if await _server_pid(connection) != pid:
                raise Pooled
    except TimeoutError:
        # The pool has one session, and the other one's transaction holds it.
        raise Pooled from None
    finally:
        await other.close()


async def _server_pid(connection: Connection) -> int:
    row = await (await connection.execute(_PID)).fetchone()
    assert row is not None
    return int(row[0])


async def win(
    connection: Connection,
    database: Callable[[], Database],
    log: Log,
    standing_by: Callable[[], None],
) -> int:
    """Return when this session leads, with its process id on the server.

    ``standing_by`` is called after each attempt that another ticker's lead made vain.
    """
    told = False
    pid: int | None = None
    while True:
        row = await (await connection.execute(_TRY, LOCK)).fetchone()
        assert row is not None
        if pid is not None and pid != row[1]:
            raise Pooled
        won, pid = row
        if won:
            return int(row[1])
        if not told:
            holder = await (await connection.execute(_HOLDER, LOCK)).fetchone()
            log.info("standing by", extra={"leader_pid": holder and holder[0]})
            told = True
        standing_by()
        await asyncio.sleep(database().standby_period)
