"""The whole schema as files, for installation without Python."""

from __future__ import annotations

from collections.abc import Sequence

import pgqpy
from pgqpy.schema._database import NODE_SCHEMA, SCHEMAS, VERSION_SCHEMA, VERSION_TABLE
from pgqpy.schema._sources import Manifest, history

EXTENSION = "pgqpy"
NODE_EXTENSION = "pgqpy_node"

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

# The part for cascaded queues comes after the rest, of the same revision.
NOT_THERE = f"""\
do $$
begin
    if (select count(*) from {VERSION_SCHEMA}.{VERSION_TABLE} where version_num = '%s') = 0 then
        raise exception 'the schema pgq is of another version'
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'To upgrade it, run: pgqpy migrate --node --dsn DSN';
    end if;
end;
$$;
"""

# A dump must hold the rows that CREATE EXTENSION does not create. Rows that it does create would be
# duplicated, so the tables that it fills are left out.
DUMP_DATA = """\
do $$
declare
    r regclass;
begin
    for r in
        select c.oid
          from pg_catalog.pg_class as c
         where c.relnamespace in (%s)
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


def node_sql() -> str:
    """Return all SQL of the optional schema pgq_node, to be run in one transaction after the rest.

    If the schema is there, it is upgraded.
    """
    return NOT_THERE % history()[-1].id + "\n" + Manifest.load().sql("base", "node", "end")


def single_file(*, node: bool = False) -> str:
    """Return ``pgq.sql``: install with ``psql -f pgq.sql``, all or nothing.

    With ``node`` return ``pgq_node.sql``, which is for after it.
    """
    name, script = (
        ("pgq_node.sql", node_sql()) if node else ("pgq.sql", ALREADY_THERE + schema_sql())
    )
    return "\n".join(
        (
            f"-- pgqpy {pgqpy.__version__}: {name}, generated from sql/.",
            f"-- Install it with: psql -f {name} DATABASE",
            "",
            "\\set ON_ERROR_STOP on",
            "begin;",
            script,
            "commit;",
            "",
        )
    )


def extension_files() -> dict[str, str]:
    """Return names and contents of the files for the server's ``extension`` directory."""
    return _extension(
        EXTENSION, schema_sql(), SCHEMAS, "PgQ for Python and Spark: transactional event queues"
    ) | _extension(
        NODE_EXTENSION,
        node_sql(),
        [NODE_SCHEMA],
        "Cascaded queues of pgqpy",
        f"requires = '{EXTENSION}'\n",
    )


def _extension(
    name: str, script: str, schemas: Sequence[str], comment: str, requires: str = ""
) -> dict[str, str]:
    version = pgqpy.__version__
    control = (
        f"comment = '{comment}'\n"
        f"default_version = '{version}'\n"
        "relocatable = false\n"
        "superuser = false\n" + requires
    )
    script = "\n".join(
        (
            f'\\echo Use "CREATE EXTENSION {name}" to load this file. \\quit',
            "",
            script,
            DUMP_DATA % ", ".join(f"'{schema}'::regnamespace" for schema in schemas),
        )
    )
    return {f"{name}.control": control, f"{name}--{version}.sql": script}


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
