"""The state of a database: its revision, and foreign schemas."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.runtime.migration import MigrationContext

from pgqpy.schema.errors import SchemaError
from pgqpy.schema.revisions import history
from pgqpy.schema.session import driver_of

SCHEMAS = ("pgq", "pgq_ext", "pgq_coop", "pgq_task")
"""The schemas that clients use. PgQ installs extensions with these names."""
ALL_SCHEMAS = (
    *SCHEMAS,
    "pgq_ids",
    "pgq_slots",
    "pgq_task_queues",
    "pgq_staging",
)
VERSION_SCHEMA = "pgq"
VERSION_TABLE = "alembic_version"


# A table of this name owned by another role may be a view, which runs that role's code.
_TRUSTED = "relkind = 'r' and pg_catalog.pg_get_userbyid(relowner) = 'pgq_owner'"


def revision_of(connection: sa.Connection) -> str | None:
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
        connection,
        opts={"version_table": VERSION_TABLE, "version_table_schema": VERSION_SCHEMA},
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
        [list(SCHEMAS)],
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
        {"schemas": list(SCHEMAS), "schema": VERSION_SCHEMA, "table": VERSION_TABLE},
    ).fetchone()
    if foreign is not None and foreign[1] and foreign[0] != VERSION_SCHEMA:
        raise SchemaError(
            f"schema {foreign[0]} is left over: its schema {VERSION_SCHEMA} was dropped without it",
            hint="if its data is not needed: "
            f"drop schema if exists {', '.join(SCHEMAS[1:])} cascade",
        )
    if foreign is not None:
        raise SchemaError(
            f"there is a schema {foreign[0]} that was not installed by pgqpy",
            hint="choose another database, or drop or rename that schema",
        )
