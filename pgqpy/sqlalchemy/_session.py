"""URLs, errors and sessions of SQLAlchemy, where psycopg's are wanted, or ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from pgqpy._wire.statements import checked, from_text
from pgqpy.connection import Connection
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import ConnectionFailed, PgqError, from_driver, is_transient


def libpq_dsn(url: sa.URL | str) -> str:
    """Return the connection string, password included, for a `pgqpy.Consumer`.

    ``url`` is an engine's: ``libpq_dsn(engine.url)``. Its driver does not matter; parameters
    after the ``?`` must be libpq's, such as ``host`` and ``sslmode``.
    """
    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise a driver's errors inside the block as `PgqError`, with the original as the cause."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise _from_driver(error) from error.orig


def _from_driver(error: sa.exc.DBAPIError) -> PgqError:
    # asyncpg's error is wrapped by one of SQLAlchemy's.
    source: Any = error.orig.__cause__ or error.orig if error.orig is not None else error
    if isinstance(error.orig, psycopg.Error):
        source = error.orig
    elif error.connection_invalidated:
        return ConnectionFailed(str(source).strip())
    return from_driver(source)


def fetch(session: Any, statement: bytes, arguments: Sequence[Any]) -> Sequence[Any]:
    """Execute a statement of psycopg's, by any driver, and return its rows."""
    values = checked(arguments)
    named = {f"pgq_{number}": value for number, value in enumerate(values)}
    with translate_errors():
        result = session.execute(_text(statement, tuple(map(_type_of, values))), named)
        return list(result)


@lru_cache
def _text(statement: bytes, types: tuple[_Type | None, ...]) -> sa.TextClause:
    """Return a statement with SQLAlchemy's placeholders, which name the types of the values."""
    first, *rest = from_text(statement.decode()).split("%s")
    text = first + "".join(f"(:pgq_{number}){part}" for number, part in enumerate(rest))
    return sa.text(text).bindparams(
        *(
            sa.bindparam(f"pgq_{number}", type_=kind() if kind is not None else None)
            for number, kind in enumerate(types)
        )
    )


def _type_of(value: Any) -> _Type | None:
    """Return a value's type; None if PostgreSQL finds out, or psycopg, for instance for arrays."""
    return _TYPES.get(type(value))


def _time() -> sa.types.TypeEngine[Any]:
    return sa.DateTime(timezone=True)


_Type: TypeAlias = Callable[[], sa.types.TypeEngine[Any]]
_TYPES: dict[type, _Type] = {
    str: sa.Text,
    int: sa.BigInteger,
    timedelta: sa.Interval,
    datetime: _time,
}

__all__ = ["AsyncSession", "Session", "async_joined_session", "joined_session"]

_URL = "postgresql+psycopg://"

_engines: WeakKeyDictionary[Connection, sa.Engine] = WeakKeyDictionary()
_async_engines: WeakKeyDictionary[AsyncConnection, AsyncEngine] = WeakKeyDictionary()


@contextmanager
def joined_session(conn: Connection) -> Iterator[Session]:
    """Open a session in a savepoint of the transaction; pending changes are flushed at the end.

    Errors that are not the fault of the statements are raised as psycopg's.
    """
    engine = _engines.get(conn)
    if engine is None:
        engine = sa.create_engine(
            _URL, creator=lambda: conn, poolclass=StaticPool, pool_reset_on_return=None
        )
        _leave_transactions(engine.dialect)
        _engines[conn] = engine
    try:
        with (
            engine.connect() as connection,
            connection.begin(),
            Session(connection, join_transaction_mode="create_savepoint") as session,
        ):
            yield session
            session.commit()
    except sa.exc.DBAPIError as error:
        raise _cause(error) from error


@asynccontextmanager
async def async_joined_session(conn: AsyncConnection) -> AsyncIterator[AsyncSession]:
    """Open a session like `joined_session`, on an AsyncConnection."""
    engine = _async_engines.get(conn)
    if engine is None:

        async def creator() -> AsyncConnection:
            return conn

        engine = create_async_engine(
            _URL, async_creator=creator, poolclass=StaticPool, pool_reset_on_return=None
        )
        _leave_transactions(engine.dialect)
        _async_engines[conn] = engine
    try:
        async with (
            engine.connect() as connection,
            connection.begin(),
            AsyncSession(connection, join_transaction_mode="create_savepoint") as session,
        ):
            yield session
            await session.commit()
    except sa.exc.DBAPIError as error:
        raise _cause(error) from error


def _leave_transactions(dialect: sa.Dialect) -> None:
    for name in ("do_begin", "do_commit", "do_rollback", "do_close", "do_terminate"):
        setattr(dialect, name, lambda _connection: None)


def _cause(error: sa.exc.DBAPIError) -> Exception:
    if isinstance(error.orig, psycopg.Error) and is_transient(error.orig):
        return error.orig
    return error
