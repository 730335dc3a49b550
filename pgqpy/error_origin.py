"""Which database an error is about, where a program works with more than one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from pgqpy.errors import PgqError

_ATTRIBUTE = "pgqpy_dsn"


@contextmanager
def comes_from(dsn: str) -> Iterator[None]:
    """Errors inside the block are about this database; the innermost block wins."""
    try:
        yield
    except (psycopg.Error, PgqError) as error:
        if origin(error) is None:
            setattr(error, _ATTRIBUTE, dsn)
        raise


def origin(error: BaseException) -> str | None:
    """The connection string of the database that an error is about, if somebody has said so."""
    found: str | None = getattr(error, _ATTRIBUTE, None)
    return found
