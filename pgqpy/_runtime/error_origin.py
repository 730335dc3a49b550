"""The origin of an error: its database, in programs with several databases, and its event."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg

from pgqpy.errors import PgqError

_ATTRIBUTE = "pgqpy_dsn"
_EVENT = "pgqpy_event_id"


@contextmanager
def comes_from(dsn: str) -> Iterator[None]:
    """Mark errors inside the block as this database's; the innermost block wins."""
    try:
        yield
    except (psycopg.Error, PgqError) as error:
        if origin(error) is None:
            setattr(error, _ATTRIBUTE, dsn)
        raise


def origin(error: BaseException) -> str | None:
    """Return the connection string of the database that an error comes from, if it is marked."""
    found: str | None = getattr(error, _ATTRIBUTE, None)
    return found


def blame(event_id: int, error: BaseException) -> None:
    """Mark an error as raised by the processing of an event."""
    # Some errors take no attributes.
    with suppress(Exception):
        setattr(error, _EVENT, event_id)


def blamed(error: BaseException) -> int | None:
    """Return the id of the event whose processing raised the error, if it is marked."""
    found: int | None = getattr(error, _EVENT, None)
    return found
