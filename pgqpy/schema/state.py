"""What a database holds: which revision, somebody else's schema, queues that would be lost."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.runtime.migration import MigrationContext

from pgqpy.schema.errors import SchemaError
from pgqpy.schema.revisions import history
from pgqpy.schema.session import driver_of

VERSION_SCHEMA = "pgq"
VERSION_TABLE = "alembic_version"


def revision_of(connection: sa.Connection) -> str | None:
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
    """Never touch a schema that is not ours, or that something else takes care of."""
    driver = driver_of(connection)
    extension = driver.execute(
        """
        select e.extname
          from pg_catalog.pg_namespace as n
          join pg_catalog.pg_depend as d
            on d.classid = 'pg_catalog.pg_namespace'::regclass
           and d.objid = n.oid
           and d.refclassid = 'pg_catalog.pg_extension'::regclass
          join pg_catalog.pg_extension as e
            on e.oid = d.refobjid
         where n.nspname = %s
        """,
        [VERSION_SCHEMA],
    ).fetchone()
    if extension == ("pgqpy",):
        raise SchemaError(
            "the schema was installed by CREATE EXTENSION pgqpy",
            hint="use ALTER EXTENSION pgqpy UPDATE and DROP EXTENSION pgqpy",
        )
    if extension is not None:
        raise SchemaError(
            f"schema {VERSION_SCHEMA} belongs to the extension {extension[0]}",
            hint="choose another database; both cannot live in one",
        )
    unknown = driver.execute(
        """
        select exists (select from pg_catalog.pg_class where relnamespace = n.oid)
            or exists (select from pg_catalog.pg_proc where pronamespace = n.oid)
          from pg_catalog.pg_namespace as n
         where n.nspname = %(schema)s
           and not exists (
               select
                 from pg_catalog.pg_class
                where relnamespace = n.oid
                  and relname = %(table)s
           )
        """,
        {"schema": VERSION_SCHEMA, "table": VERSION_TABLE},
    ).fetchone()
    if unknown == (True,):
        raise SchemaError(
            f"there is a schema {VERSION_SCHEMA} that was not installed by pgqpy",
            hint="choose another database, or drop or rename that schema",
        )


def what_is_lost_with(connection: sa.Connection) -> str | None:
    """Queues, who is subscribed to them, and the triggers that go with the functions."""
    driver = driver_of(connection)
    queues = driver.execute("select queue_name from pgq.queue order by 1").fetchall()
    if not queues:
        return None
    consumers = driver.execute("select count(*) from pgq.subscription").fetchone()
    triggers = driver.execute(
        """
        select distinct t.tgrelid::regclass::text
          from pg_catalog.pg_trigger as t
          join pg_catalog.pg_proc as p
            on p.oid = t.tgfoid
          join pg_catalog.pg_class as c
            on c.oid = t.tgrelid
         where p.pronamespace = %(schema)s::regnamespace
           and c.relnamespace <> %(schema)s::regnamespace
         order by 1
        """,
        {"schema": VERSION_SCHEMA},
    ).fetchall()
    assert consumers is not None
    lost = f"{len(queues)} queue(s) ({_names(queues)}) with {consumers[0]} subscription(s)"
    if triggers:
        lost += f", and the triggers that feed them from {_names(triggers)}"
    return lost


def _names(rows: list[tuple[Any, ...]], most: int = 10) -> str:
    shown = ", ".join(str(name) for (name,) in rows[:most])
    return shown if len(rows) <= most else f"{shown}, ..."
