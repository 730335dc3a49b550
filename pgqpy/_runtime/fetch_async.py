"""Statements whose rows are fetched at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from pgqpy._wire.statements import checked, unencodable
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import translate_errors


def require_psycopg(owner: object, conn: object) -> None:
    """Raise TypeError if it is not a connection of psycopg, of the kind that ``owner`` needs."""
    if not isinstance(conn, psycopg.AsyncConnection):
        raise TypeError(
            f"{type(owner).__name__} takes psycopg's AsyncConnection, such as pgqpy.async_connect()"
            f" opens, not {conn!r:.80}"
        )


async def async_fetch(
    conn: AsyncConnection,
    statement: bytes,
    arguments: Iterable[Any] = (),
    rows: Any = tuple_row,
    *,
    binary: bool = False,
) -> list[Any]:
    """Execute a statement, and return its rows, whatever the connection's row factory.

    Raises PgqError, also for arguments that PostgreSQL cannot take.
    """
    with translate_errors():
        async with conn.cursor(row_factory=rows, binary=binary) as cursor:
            try:
                await cursor.execute(statement, checked(arguments))
            except UnicodeEncodeError as error:
                raise unencodable(error) from error
            return await cursor.fetchall()
