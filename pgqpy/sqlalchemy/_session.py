"""URLs, errors and sessions of SQLAlchemy, where psycopg's are wanted, or ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from pgqpy.connection import Connection
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import ConnectionFailed, PgqError, from_psycopg, is_transient, of_sqlstate


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
    if isinstance(error.orig, psycopg.Error):
        return from_psycopg(error.orig)
    # asyncpg's error is wrapped by one of SQLAlchemy's; psycopg2's diag holds the server's report.
    source: Any = error.orig.__cause__ or error.orig if error.orig is not None else error
    if error.connection_invalidated:
        return ConnectionFailed(str(source).strip())
    sqlstate = getattr(source, "sqlstate", None) or getattr(source, "pgcode", None)
    diag = getattr(source, "diag", None)
    return of_sqlstate(
        sqlstate,
        getattr(diag, "message_primary", None) or getattr(source, "message", None) or str(source),
        hint=getattr(diag, "message_hint", None) or getattr(source, "hint", None),
        detail=getattr(diag, "message_detail", None) or getattr(source, "detail", None),
    )


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
