# WARNING: generated from pgqpy/connection_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Connections: psycopg's, with settings that detect a dead peer and errors that name a remedy."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import psycopg

from pgqpy import dsn as dsns
from pgqpy.errors import translate_errors
from pgqpy.session_settings import PIN, with_defaults

#: Any psycopg connection; rows may have any type.
Connection: TypeAlias = psycopg.Connection[Any]

C = TypeVar("C", bound=psycopg.Connection[tuple[Any, ...]])


def connect(
    dsn: str | None = None,
    *,
    autocommit: bool = False,
    prepare_threshold: int | None = 5,
    **settings: Any,
) -> psycopg.Connection[tuple[Any, ...]]:
    """Open a psycopg connection; ``dsn`` is read by `pgqpy.dsn.resolve`.

    ``settings`` are libpq's; they win over the DSN. ``prepare_threshold=None`` prepares no
    statements, for a PgBouncer without support for them.

    Raises InvalidDsn, ConnectionFailed; neither shows the password.
    """
    return connect_as(
        psycopg.Connection[tuple[Any, ...]],
        dsn,
        autocommit=autocommit,
        prepare_threshold=prepare_threshold,
        **settings,
    )


def connect_as(
    kind: type[C],
    dsn: str | None,
    *,
    autocommit: bool,
    prepare_threshold: int | None,
    **settings: Any,
) -> C:
    """Open a connection of this class; otherwise like `connect`."""
    conninfo = with_defaults(dsns.resolve(dsn), settings)
    with translate_errors():
        conn = kind.connect(conninfo, autocommit=True, prepare_threshold=prepare_threshold)
        try:
            conn.execute(PIN, prepare=False)
            if not autocommit:
                conn.set_autocommit(False)
        except BaseException:
            conn.close()
            raise
    return conn


def read_committed(conn: psycopg.Connection[Any]) -> None:
    """Use READ COMMITTED, whatever the default of the database or the role."""
    with translate_errors():
        cursor = conn.execute(b"show default_transaction_isolation", prepare=False)
        if cursor.fetchone() != ("read committed",):
            conn.execute(b"set default_transaction_isolation to 'read committed'", prepare=False)
