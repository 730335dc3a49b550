"""Sessions inside a psycopg transaction, which they can neither commit nor roll back."""

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
from pgqpy.errors import is_transient

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
        setattr(dialect, name, _nothing)


def _nothing(_connection: Any) -> None:
    pass


def _cause(error: sa.exc.DBAPIError) -> Exception:
    if isinstance(error.orig, psycopg.Error) and is_transient(error.orig):
        return error.orig
    return error
