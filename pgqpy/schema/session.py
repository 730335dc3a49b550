"""The transaction that changes a schema: alone, all or nothing, and repeated on conflicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from pgqpy.connection import connect
from pgqpy.errors import PgqError, from_psycopg
from pgqpy.schema.errors import SchemaError

# Any constant number: "pgqpy" in ASCII.
LOCK = f"select pg_catalog.pg_advisory_xact_lock({int.from_bytes(b'pgqpy')})"

# Internal error ("tuple concurrently updated"), serialization failure, deadlock.
MET_ANOTHER = {"XX000", "40001", "40P01"}
MEETINGS = 5

NEEDED_RIGHTS = (
    "connect as a superuser, or as a role that may create roles and schemas: "
    "alter role NAME createrole; grant create on database DATABASE to NAME. "
    "Where the roles exist already: grant pgq_owner to NAME"
)


@contextmanager
def transaction(dsn: str) -> Iterator[sa.Connection]:
    """Open a transaction in which no other session migrates this database."""
    with _errors_of_ours():
        # READ COMMITTED, whatever the user's default: the changes of the previous holder of the
        # lock must be visible.
        engine = sa.create_engine(
            "postgresql+psycopg://",
            creator=lambda: connect(dsn),
            poolclass=NullPool,
            isolation_level="READ COMMITTED",
        )
        with engine.begin() as connection:
            # Foreign objects on the user's path must not be called with the user's rights.
            connection.exec_driver_sql("set local search_path = pg_catalog, pg_temp")
            connection.exec_driver_sql(LOCK)
            yield connection


def undisturbed(change: Callable[[], None]) -> None:
    """Repeat a change that conflicts with another session's: it is one transaction, so nothing is
    half done.

    GRANT and CREATE OR REPLACE lock nothing: if another session changes the same catalog row at the
    same time, they fail with an internal error.
    """
    for _ in range(MEETINGS):
        try:
            return change()
        except PgqError as error:
            if error.sqlstate not in MET_ANOTHER:
                raise
    return change()


def driver_of(connection: sa.Connection) -> psycopg.Connection[Any]:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


@contextmanager
def _errors_of_ours() -> Iterator[None]:
    """Translate errors like `pgqpy.errors.translate_errors`, also in SQLAlchemy's wrappers."""
    try:
        yield
    except (psycopg.Error, sa.exc.DBAPIError) as error:
        cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
        if not isinstance(cause, psycopg.Error):
            raise
        if isinstance(cause, psycopg.errors.InsufficientPrivilege):
            raise SchemaError(str(cause).strip(), hint=NEEDED_RIGHTS) from cause
        if isinstance(cause, psycopg.errors.DuplicateSchema):
            raise SchemaError(
                str(cause.diag.message_primary), hint=cause.diag.message_hint
            ) from cause
        raise from_psycopg(cause) from cause
