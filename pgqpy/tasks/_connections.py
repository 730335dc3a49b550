"""Pushes into connections of other libraries; each is imported only for a connection of its own."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

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

#: Executes a statement of psycopg's with its values, and returns the rows.
Execute: TypeAlias = Callable[[Any, bytes, Sequence[Any]], Sequence[Any]]
AsyncExecute: TypeAlias = Callable[[Any, bytes, Sequence[Any]], Awaitable[Sequence[Any]]]


class Django(Protocol):
    """``django.db.connection``."""

    def ensure_connection(self) -> None: ...
    def cursor(self) -> Any: ...


class Asyncpg(Protocol):
    """A connection of asyncpg, also one of its pool."""

    def is_in_transaction(self) -> bool: ...
    async def fetch(self, query: str, /, *args: Any) -> Any: ...


def executor(conn: object) -> Execute | None:
    """Return what executes statements on a connection; None if it is psycopg's.

    Raises InvalidTask for other objects.
    """
    if isinstance(conn, psycopg.Connection):
        return None
    found = _foreign(conn)
    if isinstance(conn, psycopg.AsyncConnection) or found in (_asyncpg, _async_sqlalchemy):
        raise _refused(conn, "It is asynchronous: use AsyncTasks.")
    if found is None:
        raise _refused(conn, "Give a connection of psycopg or Django, or SQLAlchemy's Session.")
    return cast(Execute, found)


def async_executor(conn: object) -> AsyncExecute | None:
    """Return what executes statements on an asynchronous connection; None if it is psycopg's.

    Raises InvalidTask for other objects.
    """
    if isinstance(conn, psycopg.AsyncConnection):
        return None
    found = _foreign(conn)
    if isinstance(conn, psycopg.Connection) or found in (_django, _sqlalchemy):
        raise _refused(conn, "It is not asynchronous: use Tasks.")
    if found is None:
        raise _refused(
            conn, "Give a connection of psycopg or asyncpg, or SQLAlchemy's AsyncSession."
        )
    return cast(AsyncExecute, found)


def is_async(conn: object) -> bool:
    """Whether a connection is asynchronous."""
    return isinstance(conn, psycopg.AsyncConnection) or _foreign(conn) in (
        _asyncpg,
        _async_sqlalchemy,
    )


def _refused(conn: object, hint: str) -> InvalidTask:
    return InvalidTask(f"a task cannot be pushed into {conn!r:.80}", hint=hint)


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
