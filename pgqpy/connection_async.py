"""Connections: psycopg's, with settings that notice a dead peer and errors that say what to do."""

from __future__ import annotations

from typing import Any, TypeAlias

import psycopg
from psycopg.conninfo import make_conninfo

from pgqpy import dsn as dsns
from pgqpy.errors import translate_errors

#: Any psycopg connection; rows may have any type.
AsyncConnection: TypeAlias = psycopg.AsyncConnection[Any]

#: Unless the connection string says otherwise. A peer whose machine is gone is noticed within a
#: minute and not, as the system would have it, after two hours.
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
    """Open a psycopg connection; ``dsn`` as for `pgqpy.dsn.resolve`.

    ``settings`` are libpq's; they win over the DSN. ``prepare_threshold=None`` prepares no
    statements, for a PgBouncer that does not know them.

    Raises InvalidDsn, ConnectionFailed; neither shows the password.
    """
    dsn = dsns.resolve(dsn)
    told = dsns.parse(dsn) | settings
    defaults = {key: value for key, value in DEFAULTS.items() if key not in told}
    # Text is Unicode here, whatever the environment or the role says.
    conninfo = make_conninfo(dsn, **defaults, **settings, client_encoding="UTF8")
    with translate_errors():
        return await psycopg.AsyncConnection.connect(
            conninfo, autocommit=autocommit, prepare_threshold=prepare_threshold
        )
