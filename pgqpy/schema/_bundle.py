"""The whole schema as files, for installation without Python."""

from __future__ import annotations

import pgqpy
from pgqpy.schema._database import SCHEMAS, VERSION_SCHEMA, VERSION_TABLE
from pgqpy.schema._sources import Manifest, history

EXTENSION = "pgqpy"

ALREADY_THERE = """\
do $$
begin
    if pg_catalog.to_regnamespace('pgq') is not null then
        raise exception 'there is a schema pgq already'
            using errcode = 'duplicate_schema',
                  hint = 'To upgrade it, run: pgqpy migrate --dsn DSN';
    end if;
end;
$$;
"""

# A dump must hold the rows that CREATE EXTENSION does not create. Rows that it does create would be
# duplicated, so the tables that it fills are left out.
DUMP_DATA = f"""\
do $$
declare
    r regclass;
begin
    for r in
        select c.oid
          from pg_catalog.pg_class as c
         where c.relnamespace in ({", ".join(f"'{schema}'::regnamespace" for schema in SCHEMAS)})
           and c.relkind in ('r', 'p', 'S')
           and c.relname <> 'alembic_version'
         order by c.oid::regclass::text
    loop
        perform pg_catalog.pg_extension_config_dump(r, '');
    end loop;
end;
$$;
"""


def schema_sql() -> str:
    """Return all SQL of a fresh installation, to be run in one transaction.

    It leaves the database at the newest revision, for `migrate` to go on from.
    """
    manifest = Manifest.load()
    return "\n".join(
        (
            manifest.sql("base"),
            _version_table(),
            manifest.sql("structure", "functions", "grants", "end"),
        )
    )


def single_file() -> str:
    """Return ``pgq.sql``: install with ``psql -f pgq.sql``, all or nothing."""
    return "\n".join(
        (
            f"-- pgqpy {pgqpy.__version__}: the schema in one file, generated from sql/.",
            "-- Install it with: psql -f pgq.sql DATABASE",
            "",
            "\\set ON_ERROR_STOP on",
            "begin;",
            ALREADY_THERE,
            schema_sql(),
            "commit;",
            "",
        )
    )


def extension_files() -> dict[str, str]:
    """Return names and contents of the files for the server's ``extension`` directory."""
    version = pgqpy.__version__
    control = (
        "comment = 'PgQ for Python and Spark: transactional event queues'\n"
        f"default_version = '{version}'\n"
        "relocatable = false\n"
        "superuser = false\n"
    )
    script = "\n".join(
        (
            f'\\echo Use "CREATE EXTENSION {EXTENSION}" to load this file. \\quit',
            "",
            schema_sql(),
            DUMP_DATA,
        )
    )
    return {f"{EXTENSION}.control": control, f"{EXTENSION}--{version}.sql": script}


def _version_table() -> str:
    """Return Alembic's own table, at the newest revision."""
    from alembic.runtime.migration import MigrationContext
    from sqlalchemy.schema import CreateTable

    impl = MigrationContext.configure(dialect_name="postgresql").impl
    table = impl.version_table_impl(
        version_table=VERSION_TABLE, version_table_schema=VERSION_SCHEMA, version_table_pk=True
    )
    create = str(CreateTable(table).compile(dialect=impl.dialect)).strip()
    head = history()[-1].id
    return (
        f"-- The revision, for pgqpy migrate to go on from\n\n{create};\n\n"
        f"insert into {VERSION_SCHEMA}.{VERSION_TABLE} (version_num) values ('{head}');\n"
    )
