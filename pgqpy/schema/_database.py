"""A database's schema: its state, and the transaction that changes it alone, all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from pgqpy.connection import connect
from pgqpy.errors import PgqError, from_psycopg
from pgqpy.schema._sources import SchemaError, history

if TYPE_CHECKING:
    import sqlalchemy as sa

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
    import sqlalchemy as sa

    with _errors_of_ours():
        # READ COMMITTED, whatever the user's default: the changes of the previous holder of the
        # lock must be visible.
        engine = sa.create_engine(
            "postgresql+psycopg://",
            creator=lambda: _connected(dsn),
            poolclass=sa.NullPool,
            isolation_level="READ COMMITTED",
        )
        with engine.begin() as connection:
            connection.exec_driver_sql(LOCK)
            yield connection


def _connected(dsn: str) -> psycopg.Connection[Any]:
    conn = connect(dsn, autocommit=True)
    # Foreign objects on the user's path must not be called with the user's rights; SQLAlchemy has
    # queries of its own when it connects.
    conn.execute("set search_path = pg_catalog, pg_temp")
    conn.autocommit = False
    return conn


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
    import sqlalchemy as sa

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


SCHEMAS = ("pgq", "pgq_ext", "pgq_coop", "pgq_task")
"""The schemas that clients use. PgQ installs extensions with these names."""
ALL_SCHEMAS = (*SCHEMAS, "pgq_ids", "pgq_slots", "pgq_queue", "pgq_task_queues", "pgq_staging")
NODE_SCHEMA = "pgq_node"
"""The optional one. A database may have PgQ's instead."""
VERSION_SCHEMA = "pgq"
VERSION_TABLE = "alembic_version"


# A table of this name owned by another role may be a view, which runs that role's code.
_TRUSTED = "relkind = 'r' and pg_catalog.pg_get_userbyid(relowner) = 'pgq_owner'"


def has_node(driver: psycopg.Connection[Any]) -> bool:
    """Return whether the schema pgq_node is there, and ours."""
    found = driver.execute(
        "select from pg_catalog.pg_namespace"
        " where nspname = %s and pg_catalog.pg_get_userbyid(nspowner) = 'pgq_owner'",
        [NODE_SCHEMA],
    )
    return found.fetchone() is not None


def with_node(driver: psycopg.Connection[Any], schemas: Iterable[str]) -> list[str]:
    """Return the schemas, and pgq_node if it is ours."""
    return [*schemas, *([NODE_SCHEMA] if has_node(driver) else [])]


def revision_of(connection: sa.Connection) -> str | None:
    from alembic.runtime.migration import MigrationContext

    trusted = driver_of(connection).execute(
        f"""
        select
          from pg_catalog.pg_class
         where oid = pg_catalog.to_regclass(%s)
           and {_TRUSTED}
        """,
        [f"{VERSION_SCHEMA}.{VERSION_TABLE}"],
    )
    if trusted.fetchone() is None:
        return None
    context = MigrationContext.configure(
        connection, opts={"version_table": VERSION_TABLE, "version_table_schema": VERSION_SCHEMA}
    )
    at = context.get_current_revision()
    if at is not None and at not in {step.id for step in history()}:
        raise SchemaError(
            f"the database is at revision {at}, which this pgqpy does not know",
            hint="it was migrated by a newer one: upgrade pgqpy",
        )
    return at


def refuse_foreign_schema(connection: sa.Connection) -> None:
    """Refuse a schema that is not ours, or that something else manages."""
    driver = driver_of(connection)
    schemas = with_node(driver, SCHEMAS)
    _refuse_extension(driver, schemas)
    _refuse_others(driver, schemas)


def _refuse_extension(driver: psycopg.Connection[Any], schemas: list[str]) -> None:
    extension = driver.execute(
        """
        select e.extname, n.nspname
          from pg_catalog.pg_namespace as n
          join pg_catalog.pg_depend as d
            on d.classid = 'pg_catalog.pg_namespace'::regclass
           and d.objid = n.oid
           and d.refclassid = 'pg_catalog.pg_extension'::regclass
          join pg_catalog.pg_extension as e
            on e.oid = d.refobjid
         where n.nspname = any (%s)
         order by e.extname <> 'pgqpy', n.nspname
        """,
        [schemas],
    ).fetchone()
    if extension is not None:
        name, schema = extension
        if name == "pgqpy":
            raise SchemaError(
                "the schema was installed by CREATE EXTENSION pgqpy",
                hint="use ALTER EXTENSION pgqpy UPDATE and DROP EXTENSION pgqpy",
            )
        raise SchemaError(
            f"schema {schema} belongs to the extension {name}",
            hint="choose another database; both cannot live in one",
        )


def _refuse_others(driver: psycopg.Connection[Any], schemas: list[str]) -> None:
    # With our version table in schema pgq all are ours; without it they must be empty.
    foreign = driver.execute(
        f"""
        select n.nspname, pg_catalog.pg_get_userbyid(n.nspowner) = 'pgq_owner'
          from pg_catalog.pg_namespace as n
         where n.nspname = any (%(schemas)s)
           and (exists (select from pg_catalog.pg_class where relnamespace = n.oid)
                or exists (select from pg_catalog.pg_proc where pronamespace = n.oid))
           and case when n.nspname = %(schema)s
                    then not exists (
                        select
                          from pg_catalog.pg_class
                         where relnamespace = n.oid
                           and relname = %(table)s
                           and {_TRUSTED})
                    else pg_catalog.pg_get_userbyid(n.nspowner) <> 'pgq_owner'
                      or pg_catalog.to_regclass(%(schema)s || '.' || %(table)s) is null
               end
         order by n.nspname
        """,
        {"schemas": schemas, "schema": VERSION_SCHEMA, "table": VERSION_TABLE},
    ).fetchone()
    if foreign is not None and foreign[1] and foreign[0] != VERSION_SCHEMA:
        raise SchemaError(
            f"schema {foreign[0]} is left over: its schema {VERSION_SCHEMA} was dropped without it",
            hint="if its data is not needed: "
            f"drop schema if exists {', '.join(schemas[1:])} cascade",
        )
    if foreign is not None:
        raise SchemaError(
            f"there is a schema {foreign[0]} that was not installed by pgqpy",
            hint="choose another database, or drop or rename that schema; "
            "restore a dump as a superuser, or as a member of pgq_owner",
        )
