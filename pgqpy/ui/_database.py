"""The console's one database session: each visit is a transaction in the role of the viewer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import psycopg
from psycopg import IsolationLevel
from psycopg.rows import dict_row
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import set_json_loads

from pgqpy._runtime.planted import OURS, PLANTED, planted_schema
from pgqpy.connection import Connection, connect
from pgqpy.doctor._readings import may_read
from pgqpy.errors import ConnectionFailed, PermissionDenied, PgqError, translate_errors
from pgqpy.ui._mask import read_flat_json

T = TypeVar("T")

# The session may be older than a schema that another role has planted.
BEGIN = f"""
select planted.*, pg_catalog.current_database(), session_user::text, pg_catalog.pg_is_in_recovery(),
       pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
       pg_catalog.set_config('statement_timeout', %s, true),
       -- To compile a query takes longer than any query of a page should.
       pg_catalog.set_config('jit', 'off', true)
  from (values (1)) one
  left join ({PLANTED}) planted on true
"""
#: The times that Python knows.
FIRST = datetime(1, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
# Returns what the role has of the needs of views. To name what is in a schema takes a right on it.
ACT_AS = """
select case when %(role)s::text is not null then set_config('role', %(role)s, true) end,
       array(select name
               from coalesce(%(role)s, current_user) role,
                    unnest(%(needs)s::text[]) name,
                    to_regnamespace(split_part(name, '.', 1)) schema
              where case when not has_schema_privilege(role, schema, 'usage') then false
                         when name like '%%(%%'
                         then has_function_privilege(role, to_regprocedure(name), 'execute')
                         else has_table_privilege(role, to_regclass(name), 'select') end)
"""


class _Time(TimestamptzLoader):
    """Reads times; one that Python does not know is the first or the last one that it knows."""

    def load(self, data: bytes | bytearray | memoryview) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            text = bytes(data)
            is_past = text.endswith(b"BC") or text.startswith(b"-")
            return FIRST if is_past else LAST


class ReadOnly(PgqError):
    """The console changes nothing here."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A transaction: its connection, and as which role it acts."""

    conn: Connection
    database: str
    role: str
    read_only: bool
    #: What it has of the needs of views.
    has: Collection[str] = ()

    def may(self, name: str) -> bool:
        """Whether the role may read a relation, or call a function, named with its arguments'
        types."""
        return may_read(self.conn, name)

    def may_change_by(self, function: str) -> bool:
        """Whether what calls this function is offered."""
        return not self.read_only and self.may(function)

    def rows(
        self, statement: str, arguments: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[dict[str, Any]]:
        """Return the rows of a statement, by column."""
        with self.conn.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(statement.encode(), arguments).fetchall()


class Database:
    """One session, used by one thread; visits wait for each other.

    Of each role one visit at most is in that queue, so that no role can fill it.
    """

    def __init__(
        self,
        dsn: str | None,
        *,
        statement_timeout: float,
        read_only: bool,
        needs: Collection[str] = (),
    ) -> None:
        self._dsn = dsn
        self._needs = list(needs)
        self._timeout = f"{statement_timeout * 1000:.0f}"
        self._read_only = read_only
        self._conn: Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pgqpy-ui")
        self._turns: WeakValueDictionary[str | None, asyncio.Lock] = WeakValueDictionary()

    async def visit(
        self, role: str | None, work: Callable[[Visit], T], *, change: bool = False
    ) -> T:
        """Run ``work`` in a transaction of a role, None: of the session's; READ ONLY unless
        ``change``.

        Raises PermissionDenied if the session may not act as that role, ReadOnly, and PgqError.
        """
        loop = asyncio.get_running_loop()
        turn = self._turns.setdefault(role, asyncio.Lock())
        async with turn:
            return await loop.run_in_executor(self._thread, self._visit, role, work, change)

    async def close(self) -> None:
        """Close the session; the next visit opens it again."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)

    def _visit(self, role: str | None, work: Callable[[Visit], T], change: bool) -> T:
        used = self._conn is not None
        try:
            return self._transact(role, work, change)
        except _NotBegun as error:
            if not used or not isinstance(error.cause, ConnectionFailed):
                raise error.cause from None
        # The session was lost since the visit before: nothing has been done in a new one.
        try:
            return self._transact(role, work, change)
        except _NotBegun as error:
            raise error.cause from None

    def _transact(self, role: str | None, work: Callable[[Visit], T], change: bool) -> T:
        begun = False
        try:
            with translate_errors():
                conn = self._connected()
                conn.read_only = not change
                # What a page shows is of one moment. The functions that change take no other level.
                conn.isolation_level = (
                    IsolationLevel.READ_COMMITTED if change else IsolationLevel.REPEATABLE_READ
                )
                with conn.transaction():
                    visit = self._begin(conn, role)
                    if change and visit.read_only:
                        raise ReadOnly("the console is read-only here")
                    begun = True
                    return work(visit)
        except PgqError as error:
            if self._conn is not None and self._conn.closed:
                self._close()
            if begun:
                raise
            raise _NotBegun(error) from error

    def _begin(self, conn: Connection, role: str | None) -> Visit:
        [row] = conn.execute(BEGIN, [self._timeout, OURS]).fetchall()
        schema, owner, database, session, standby, *_ = row
        if schema is not None:
            raise planted_schema(schema, owner)
        try:
            # PostgreSQL takes this name for no role at all, and psycopg takes no zero byte.
            if role is not None and (role.lower() == "none" or "\0" in role):
                raise psycopg.errors.InvalidParameterValue("no role has this name")
            given = {"role": role, "needs": self._needs}
            [(_, has)] = conn.execute(ACT_AS, given).fetchall()
        except (
            psycopg.errors.InsufficientPrivilege,
            psycopg.errors.InvalidParameterValue,
            psycopg.errors.UndefinedObject,
        ):
            raise PermissionDenied(
                f"the console may not act as role {role!r}",
                hint=f'grant "{role}" to "{session}", if both are roles of this server',
            ) from None
        return Visit(conn, database, role or session, self._read_only or standby, has)

    def _connected(self) -> Connection:
        if self._conn is None or self._conn.closed:
            self._conn = connect(
                self._dsn, autocommit=True, prepare_threshold=None, application_name="pgqpy ui"
            )
            [(pid,)] = self._conn.execute("select pg_catalog.pg_backend_pid()").fetchall()
            # A pooler may lend another session to each transaction: then nothing is prepared.
            if pid == self._conn.info.backend_pid:
                self._conn.prepare_threshold = 3
            # One value of a role must not keep others from all that is on its page.
            set_json_loads(read_flat_json, self._conn)
            self._conn.adapters.register_loader("timestamptz", _Time)
        return self._conn

    def _close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


class _NotBegun(Exception):
    def __init__(self, cause: PgqError) -> None:
        super().__init__(cause)
        self.cause = cause
