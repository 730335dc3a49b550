"""Pushes into connections of other libraries; each is imported only for a connection of its own."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import psycopg

from pgqpy._wire.statements import from_text
from pgqpy.errors import InvalidTask, from_driver

if TYPE_CHECKING:
    import sqlalchemy as sa
    from sqlalchemy.ext import asyncio as sa_asyncio
    from sqlalchemy.orm import Session, scoped_session

    ForeignConnection: TypeAlias = Session | scoped_session[Any] | sa.Connection | "Django"
    AsyncForeignConnection: TypeAlias = (
        sa_asyncio.AsyncSession
        | sa_asyncio.async_scoped_session[Any]
        | sa_asyncio.AsyncConnection
        | "Asyncpg"
    )


class Django(Protocol):
    """``django.db.connection``."""

    def ensure_connection(self) -> None: ...
    def cursor(self) -> Any: ...


class Asyncpg(Protocol):
    """A connection of asyncpg, also one of its pool."""

    def is_in_transaction(self) -> bool: ...
    async def fetch(self, query: str, /, *args: Any) -> Any: ...


def executor(conn: object, *, awaited: bool) -> Any:
    """Return the function that executes a statement of psycopg's with its values on a connection,
    and returns the rows; None if the connection is psycopg's.

    Raises InvalidTask for other objects, and for a connection that is asynchronous if it is not
    ``awaited``, or the other way round.
    """
    if isinstance(conn, psycopg.AsyncConnection if awaited else psycopg.Connection):
        return None
    found = _foreign(conn)
    if found is None and not isinstance(conn, psycopg.Connection | psycopg.AsyncConnection):
        ours = "asyncpg" if awaited else "Django"
        session = "AsyncSession" if awaited else "Session"
        hint = f"Give a connection of psycopg or {ours}, or SQLAlchemy's {session}."
    elif is_async(conn) is not awaited:
        hint = (
            "It is not asynchronous: use Tasks."
            if awaited
            else "It is asynchronous: use AsyncTasks."
        )
    else:
        return found
    raise InvalidTask(f"a task cannot be pushed into {conn!r:.80}", hint=hint)


def is_async(conn: object) -> bool:
    """Whether a connection is asynchronous."""
    return isinstance(conn, psycopg.AsyncConnection) or _foreign(conn) in (
        _asyncpg,
        _async_sqlalchemy,
    )


def _foreign(conn: object) -> Any:
    """Find the function for a connection by the packages of its classes; None if there is none."""
    packages = {kind.__module__.partition(".")[0] for kind in type(conn).__mro__}
    # The attributes are those that engines and pools lack.
    if "sqlalchemy" in packages and hasattr(conn, "begin_nested"):
        is_async = inspect.iscoroutinefunction(getattr(conn, "execute", None))
        return _async_sqlalchemy if is_async else _sqlalchemy
    if "asyncpg" in packages and hasattr(conn, "is_in_transaction"):
        return _asyncpg
    if "django" in packages and hasattr(conn, "ensure_connection"):
        return _django
    return None


def _sqlalchemy(session: Any, statement: bytes, values: Sequence[Any]) -> Sequence[Any]:
    from pgqpy.sqlalchemy._session import fetch

    return fetch(session, statement, values)


async def _async_sqlalchemy(session: Any, statement: bytes, values: Sequence[Any]) -> Sequence[Any]:
    # A scoped session is called for the current one.
    real = session if hasattr(session, "run_sync") else session()
    rows: Sequence[Any] = await real.run_sync(_sqlalchemy, statement, values)
    return rows


async def _asyncpg(conn: Any, statement: bytes, values: Sequence[Any]) -> Sequence[Any]:
    import asyncpg

    try:
        rows: Sequence[Any] = await conn.fetch(_numbered(statement), *values)
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise from_driver(error) from error
    return rows


@lru_cache
def _numbered(statement: bytes) -> str:
    """Return a statement with asyncpg's placeholders."""
    first, *rest = from_text(statement.decode()).split("%s")
    return first + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))


def _django(conn: Any, statement: bytes, values: Sequence[Any]) -> Sequence[Any]:
    from django.db import Error

    try:
        with conn.cursor() as cursor:
            cursor.execute(statement.decode(), [_plain_list(value) for value in values])
            rows: Sequence[Any] = cursor.fetchall()
    except Error as error:
        # The driver's error is its cause, which has the report.
        raise from_driver(error.__cause__ or error) from error.__cause__
    return rows


def _plain_list(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value
