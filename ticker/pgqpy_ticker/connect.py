"""Connections that detect a dead peer, and sessions that do not depend on defaults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, LiteralString, TypeAlias

from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from pgqpy.session_settings import SETTINGS, with_defaults
from pgqpy_ticker.config import Database
from pgqpy_ticker.problem import Unanswered

Connection: TypeAlias = AsyncConnection[TupleRow]

_CONNECTION: dict[str, str | int] = {
    # `pgqpy doctor` compares the version with its own.
    "application_name": f"pgqpy ticker {version('pgqpy')}",
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    # Of several hosts, the primary; a lone host that has become a standby is as good as away.
    "target_session_attrs": "read-write",
}

_SESSION = {
    # The server's side of the same connection: if a leader's machine vanishes, the server must
    # release the leader's lock.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
    # A role or a database may have other values.
    **SETTINGS,
    # An operator in a schema on the path may fit better than PostgreSQL's, and would be called.
    "search_path": "pg_catalog, pg_temp",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
}

_CONFIGURE: LiteralString = """
    select pg_catalog.set_config(name, value, false)
    from rows from (
        pg_catalog.unnest(%s::text[]),
        pg_catalog.unnest(%s::text[])
    ) wanted (name, value)
"""


async def connect(database: Database, **settings: str) -> Connection:
    """Open an autocommit connection to ``database``. Its DSN wins over our defaults.

    ``settings`` are server parameters of this session; unitless times are milliseconds.
    """
    conninfo = with_defaults(database.dsn, {}, _CONNECTION)
    connection = await AsyncConnection.connect(conninfo, autocommit=True)
    try:
        wanted = _SESSION | settings
        await connection.execute(_CONFIGURE, (list(wanted), list(wanted.values())))
    except BaseException:
        await connection.close()
        raise
    return connection


async def fetch(
    connection: Connection, statement: LiteralString, *arguments: object
) -> list[tuple[Any, ...]]:
    """Return the rows of a statement."""
    return await (await connection.execute(statement, arguments)).fetchall()


@asynccontextmanager
async def answering(database: Database) -> AsyncIterator[None]:
    """Limit the wait for an answer to the session that leads, or wants to lead.

    Raises Unanswered if the answer takes longer than the server's own limit: then the server's
    process hangs.
    """
    limit = silence_limit(database)
    try:
        async with asyncio.timeout(limit):
            yield
    except TimeoutError:
        raise Unanswered(f"{limit:.3g}") from None


def silence_limit(database: Database) -> float:
    """Return the seconds of silence after which a session hangs: a statement may take
    `leader_timeout`, and a session may be idle for as long."""
    return 1.5 * database.leader_timeout


def milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
