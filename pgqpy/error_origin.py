"""What an error is about: which database, where a program works with more than one; which event."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg

from pgqpy.errors import PgqError

_ATTRIBUTE = "pgqpy_dsn"
_EVENT = "pgqpy_event_id"


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


def blame(event_id: int, error: BaseException) -> None:
    """Say that an event's processing has raised the error."""
    # Some errors take no attributes.
    with suppress(Exception):
        setattr(error, _EVENT, event_id)


def blamed(error: BaseException) -> int | None:
    """The id of the event whose processing has raised the error, if somebody has said so."""
    found: int | None = getattr(error, _EVENT, None)
    return found
