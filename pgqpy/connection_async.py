"""Connections: psycopg's, with settings that detect a dead peer and errors that name a remedy."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

from pgqpy import dsn as dsns
from pgqpy.errors import translate_errors
from pgqpy.session_settings import ENCODING, PIN

#: Any psycopg connection; rows may have any type.
AsyncConnection: TypeAlias = psycopg.AsyncConnection[Any]

C = TypeVar("C", bound=psycopg.AsyncConnection[tuple[Any, ...]])

#: Unless the connection string says otherwise. A dead peer is detected within a minute; the
#: system's default is two hours.
DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    "application_name": "pgqpy",
}


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
    dsn = dsns.resolve(dsn)
    told = dsns.parse(dsn) | settings
    defaults = {key: value for key, value in DEFAULTS.items() if key not in told}
    conninfo = make_conninfo(dsn, **defaults | settings | ENCODING)
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
