"""SQLAlchemy's errors, translated to ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy as sa

from pgqpy.errors import ConnectionFailed, PgqError, from_psycopg, of_sqlstate


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
