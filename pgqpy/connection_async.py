"""Connections: psycopg's, with settings that detect a dead peer and errors that name a remedy."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import psycopg

from pgqpy import dsn as dsns
from pgqpy.errors import translate_errors
from pgqpy.session_settings import PIN, with_defaults

#: Any psycopg connection; rows may have any type.
AsyncConnection: TypeAlias = psycopg.AsyncConnection[Any]

C = TypeVar("C", bound=psycopg.AsyncConnection[tuple[Any, ...]])


async def async_connect(
    dsn: str | None = None,
    *,
    autocommit: bool = False,
    prepare_threshold: int | None = 5,
    **settings: Any,
) -> psycopg.AsyncConnection[tuple[Any, ...]]:
    """Open a psycopg connection; ``dsn`` is read by `pgqpy.dsn.resolve`.

    ``settings`` are libpq's; they win over the DSN. ``prepare_threshold=None`` prepares no
    statements, for a PgBouncer without support for them.

    Raises InvalidDsn, ConnectionFailed; neither shows the password.
    """
    return await async_connect_as(
        psycopg.AsyncConnection[tuple[Any, ...]],
        dsn,
        autocommit=autocommit,
        prepare_threshold=prepare_threshold,
        **settings,
    )


async def async_connect_as(
    kind: type[C],
    dsn: str | None,
    *,
    autocommit: bool,
    prepare_threshold: int | None,
    **settings: Any,
) -> C:
    """Open a connection of this class; otherwise like `async_connect`."""
    conninfo = with_defaults(dsns.resolve(dsn), settings)
    with translate_errors():
        conn = await kind.connect(conninfo, autocommit=True, prepare_threshold=prepare_threshold)
        try:
            await conn.execute(PIN, prepare=False)
            if not autocommit:
                await conn.set_autocommit(False)
        except BaseException:
            await conn.close()
            raise
    return conn


async def async_read_committed(conn: psycopg.AsyncConnection[Any]) -> None:
    """Use READ COMMITTED, whatever the default of the database or the role."""
    with translate_errors():
        cursor = await conn.execute(b"show default_transaction_isolation", prepare=False)
        if await cursor.fetchone() != ("read committed",):
            await conn.execute(
                b"set default_transaction_isolation to 'read committed'", prepare=False
            )
