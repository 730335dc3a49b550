"""The leader among a database's tickers: it holds an advisory lock of the session it ticks on.

The lock and the ticks share one connection, so a ticker that lost the lock cannot tick. The lock
ends with the session: a stop or a crash ends it at once, a vanished machine after the keepalives
(about 10 s), a process that hangs after `leader_timeout`, when the server closes the session as
idle. If it is the server's process that hangs, the server does nothing: then a ticker that stands
by ends it, or reports that it cannot.

Standing by polls. Waiting inside pg_advisory_lock() would be notified at once, but is a statement
that never ends: it would hold back vacuum in the whole database.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import LiteralString

from psycopg import errors

from pgqpy_ticker.config import Database
from pgqpy_ticker.connect import Connection, answering, connect, fetch, silence_limit
from pgqpy_ticker.foreign import LEAD, ForeignLocks
from pgqpy_ticker.logs import one_line
from pgqpy_ticker.problem import NotAllowed, Pooled, SchemaPlanted
from pgqpy_ticker.served import Operation, Served

LOCK = (0x70677170, 1)
"""In pg_locks: classid 1885827440 (the letters pgqp), objid 1 (the ticker), objsubid 2."""

_LEAD: Operation = ("lead", None)

_LOOKS = 12
"""The number of looks at a leader before it counts as hanging."""

_PROBE = 3.0
"""Seconds that a pooler may take to answer while another connection is in a transaction."""

_PID: LiteralString = "select pg_catalog.pg_backend_pid()"
_TRY: LiteralString = "select pg_catalog.pg_try_advisory_lock(%s, %s), pg_catalog.pg_backend_pid()"
# A working session shows another query, or state, each time. Sessions of other roles show that
# only to members of pg_read_all_stats, and none does if track_activities is off.
_HOLDER: LiteralString = """
    select l.pid,
           case when a.state <> 'disabled'
                then pg_catalog.concat_ws(' ', a.backend_start, a.query_start, a.state_change)
           end as sign
    from pg_catalog.pg_locks l
    left join pg_catalog.pg_stat_activity a on a.pid = l.pid
    where locktype = 'advisory' and classid = %s and objid = %s and objsubid = 2 and granted
      and database = (select oid from pg_catalog.pg_database
                      where datname = pg_catalog.current_database())
"""
_END: LiteralString = "select pg_catalog.pg_terminate_backend(%s)"
_OWNER: LiteralString = """
    select r.rolname, r.rolsuper or r.rolname = 'pgq_owner',
           pg_catalog.has_function_privilege(p.oid, 'execute'),
           pg_catalog.quote_ident(current_user)
    from pg_catalog.pg_proc p
    join pg_catalog.pg_namespace n on n.oid = p.pronamespace
    join pg_catalog.pg_roles r on r.oid = n.nspowner
    where p.oid = pg_catalog.to_regprocedure(%s)
"""
_ROUND: LiteralString = "pgq.ticker_round(boolean, integer, integer[], bigint[])"


async def check_schema(connection: Connection) -> None:
    """Raise UndefinedFunction unless this database has our ticker's functions, SchemaPlanted if a
    role that may create schemas here has made a schema of that name: its code would run as our
    role; NotAllowed if our role may not tick: a standby would notice only when it leads."""
    rows = await fetch(connection, _OWNER, _ROUND)
    if not rows:
        raise errors.UndefinedFunction(f"there is no function {_ROUND}")
    [(owner, ours, allowed, role)] = rows
    if not ours:
        raise SchemaPlanted(owner)
    if not allowed:
        raise NotAllowed(role)


async def check_session(connection: Connection, database: Database) -> None:
    """Raise Pooled if a pooler would keep our lock on a session that it also lends to others.

    A pooler is there if the server's process is not the one that the connection was told of. In
    transaction mode, the process that served us last is then given to another transaction.
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
        # The pool has one session, and the other connection's transaction holds it.
        raise Pooled from None
    finally:
        await other.close()


async def _server_pid(connection: Connection) -> int:
    [(pid,)] = await fetch(connection, _PID)
    return int(pid)


class Lead:
    """The lead of a database, and the session that has it, as a ticker that stands by sees it.

    That session works as long as any of its values on the server change: a leader polls every few
    seconds, and none of its statements may last long. Time counts only while we have looked, so
    that a machine that slept, or a clock that was set, is not held against it.
    """

    def __init__(self, connection: Connection, served: Served, foreign: ForeignLocks) -> None:
        self._connection = connection
        self._served = served
        self._log = served.log()
        self._foreign = foreign
        self._seen: tuple[int, str] | None = None
        self._looked = -math.inf
        self._silent = 0.0
        self._ended = False
        self._told = False

    async def win(self, standing_by: Callable[[], Awaitable[None]]) -> int:
        """Return when this session leads, with its process id on the server.

        ``standing_by`` is called after each attempt that failed because another ticker leads. A
        leader that hangs and cannot be ended, and a lead that is no ticker's, are failures.
        """
        pid = None
        while True:
            database = self._served.database
            async with answering(database):
                before = pid
                [(won, pid)] = await fetch(self._connection, _TRY, *LOCK)
                if before not in (None, pid):
                    raise Pooled
                if won:
                    self._works(mended=True)
                    return int(pid)
                await self._watch(silence_limit(database), time.monotonic())
            await standing_by()
            await asyncio.sleep(self._served.database.standby_period)

    async def _watch(self, limit: float, now: float) -> None:
        """Look at it, if it is time; end it if it has been silent for ``limit`` seconds."""
        pause = limit / _LOOKS
        if now - self._looked < pause:
            return
        foreign = [lock for lock in await self._foreign.look(self._connection) if lock.lock == LEAD]
        holders = await fetch(self._connection, _HOLDER, *LOCK)
        elapsed, self._looked = now - self._looked, now
        if not holders:
            return
        pid, sign = holders[0]
        if not self._told:
            self._log.info("standing by", extra={"leader_pid": pid})
            self._told = True
        problem = "; ".join(f"{lock}: {lock.remedy}" for lock in foreign)
        if foreign and self._served.failing.get(_LEAD) != problem:
            self._served.fail(_LEAD, problem)
        if sign is None or (pid, sign) != self._seen:
            self._works(mended=not foreign)
            self._seen = None if sign is None else (pid, sign)
        else:
            self._silent += min(elapsed, 2 * pause)
            if self._silent >= limit:
                await self._end(pid)

    def _works(self, *, mended: bool) -> None:
        """Note that it works, or that another session holds the lead."""
        self._silent = 0.0
        self._ended = False
        if mended:
            self._served.mend(_LEAD)

    async def _end(self, pid: int) -> None:
        told = {"leader_pid": pid, "silent_for": round(self._silent, 1)}
        if not self._ended:
            self._ended = True
            self._log.warning("the leader's session hangs: ending it", extra=told)
            try:
                await self._connection.execute(_END, (pid,))
                return
            except errors.InsufficientPrivilege as error:
                reason = one_line(error)
        elif _LEAD not in self._served.failing:
            reason = "it does not react"
        else:
            return
        problem = f"the leader's session hangs, and cannot be ended: {reason}; no ticker works"
        hint = f"end or continue process {pid} on the server's host (kill -CONT {pid})"
        self._served.fail(_LEAD, f"{problem}: {hint}")
        self._log.error(problem, extra=told | {"hint": hint})
