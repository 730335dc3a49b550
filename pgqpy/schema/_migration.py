"""Migrations, by Alembic: bring a database's schema to a revision of ``migrations/versions``.

A revision changes structure only: tables, sequences, views. Functions and grants have no history;
an upgrade to the newest revision replaces them by those of ``sql/``. An upgrade is one transaction
under an advisory lock: two at once run one after the other, and an interrupted one leaves nothing
behind.

A table inside our own schema holds the database's revision, so that it cannot clash with an
application's own Alembic version table.
"""

from __future__ import annotations

import asyncio
import io
import threading
from typing import TYPE_CHECKING, Literal

from pgqpy.schema._database import (
    ALL_SCHEMAS,
    LOCK,
    NODE_SCHEMA,
    driver_of,
    has_node,
    refuse_foreign_schema,
    revision_of,
    transaction,
    undisturbed,
)
from pgqpy.schema._fingerprint import note_sql, revision_if_current
from pgqpy.schema._loss import what_is_lost_with
from pgqpy.schema._sources import MIGRATIONS_DIR, Manifest, SchemaError, history, path_to, resolve

if TYPE_CHECKING:
    import sqlalchemy as sa
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext

# Alembic's context for env.py and the revisions is global.
_ALEMBIC = threading.Lock()

# Tables that stayed captured could not be written to; and pgq_owner does not own them.
# PgQ's own pgq_node stays.
DROP_SCHEMAS = f"""
set local role none;
select pgq.release_table(capture_table)
  from (select distinct capture_table from pgq.capture) as captured;
set local role pgq_owner;
do $$
begin
    if (select nspowner from pg_catalog.pg_namespace where nspname = '{NODE_SCHEMA}')
       = 'pgq_owner'::regrole
    then
        drop schema {NODE_SCHEMA} cascade;
    end if;
end;
$$;
drop schema {", ".join(ALL_SCHEMAS)} cascade;
"""


def migrate(dsn: str, revision: str = "head", *, node: bool = False) -> str:
    """Install the schema, or upgrade it, and return its revision; harmless if it is there already.

    With ``node`` it has the part for cascaded queues, `pgq_node`, which from then on is upgraded
    with the rest. Functions and grants that were changed by hand are brought back; if there are
    none, it takes milliseconds. Raises SchemaError if the database holds something else, or if
    rights are missing.
    """
    if revision == "head" and (at := revision_if_current(dsn, node=node)) is not None:
        return at
    target = _above_base(revision, node=node)
    undisturbed(lambda: _migrate(dsn, target, node=node))
    return target


async def async_migrate(dsn: str, revision: str = "head", *, node: bool = False) -> str:
    """Call `migrate` in a thread."""
    return await asyncio.to_thread(migrate, dsn, revision, node=node)


def downgrade(dsn: str, revision: str, *, force: bool = False) -> str | None:
    """Take the schema back to an older revision, or with ``base`` remove it; return its revision.

    ``force`` removes it even if it holds data. Roles stay: other databases of the cluster may use
    them. Raises SchemaError if users' data would be lost, if the database holds something else, or
    if rights are missing.
    """
    target = resolve(revision)
    undisturbed(lambda: _downgrade(dsn, target, force=force))
    return target


def current(dsn: str) -> str | None:
    """Return the database's revision; None if the schema is not installed."""
    with transaction(dsn) as connection:
        return revision_of(connection)


def upgrade_sql(revision: str = "head", *, start: str | None = None, node: bool = False) -> str:
    """Return the SQL of an upgrade from ``start`` (nothing by default), without a connection.

    With ``node`` it installs or upgrades `pgq_node`, too.
    """
    target = _above_base(revision, node=node)
    begin = resolve(start) if start is not None else None
    buffer = io.StringIO()
    config = _config(None, before=_base(), after=_functions_of(target, node=node), output=buffer)
    _run("upgrade", config, f"{begin}:{target}" if begin else target, sql=True)
    return buffer.getvalue()


def downgrade_sql(start: str, revision: str) -> str:
    """Return the SQL of a downgrade from ``start``, without a connection."""
    target = resolve(revision)
    buffer = io.StringIO()
    config = _config(None, before=_base(), after="" if target else DROP_SCHEMAS, output=buffer)
    _run("downgrade", config, f"{resolve(start)}:{target or 'base'}", sql=True)
    return buffer.getvalue()


def what_downgrade_loses(dsn: str) -> str | None:
    """Describe what would be lost with the schema; None if that is nothing."""
    with transaction(dsn) as connection:
        return None if revision_of(connection) is None else _lost_with(connection)


def execute_script(context: MigrationContext, script: str) -> None:
    """Run, or print, many statements exactly as they are.

    SQLAlchemy would interpret ``%`` and ``:name``, which PL/pgSQL often contains, as placeholders.
    """
    if context.as_sql:
        context.impl.static_output(script)
    elif script:
        assert context.connection is not None
        driver_of(context.connection).execute(script.encode())


def _above_base(revision: str, *, node: bool) -> str:
    target = resolve(revision)
    if target is None:
        raise SchemaError("base is not above anything", hint="use downgrade")
    if node and target != history()[-1].id:
        raise SchemaError("pgq_node needs the newest revision", hint="name no other")
    return target


def _migrate(dsn: str, target: str, *, node: bool) -> None:
    with transaction(dsn) as connection:
        refuse_foreign_schema(connection)
        at = revision_of(connection)
        if at is not None and at not in path_to(target):
            raise SchemaError(
                f"the database is at revision {at}, which is newer than {target}",
                hint="use downgrade",
            )
        node = node or has_node(driver_of(connection))
        config = _config(connection, before=_base(), after=_functions_of(target, node=node))
        _run("upgrade", config, target)


def _downgrade(dsn: str, target: str | None, *, force: bool) -> None:
    with transaction(dsn) as connection:
        refuse_foreign_schema(connection)
        at = revision_of(connection)
        if at is None:
            if target is None:
                return
            raise SchemaError("the schema is not installed", hint="run pgqpy migrate")
        if target is not None and target not in path_to(at):
            raise SchemaError(
                f"the database is at {at}, which is below {target}", hint="use migrate"
            )
        lost = _lost_with(connection) if target is None else None
        if lost is not None and not force:
            raise SchemaError(
                f"removing the schema would lose {lost}",
                hint="drop the queues (`pgqpy queue drop`, `pgqpy task drop`), let this database "
                "forget the remote consumers (select pgq_ext.forget_consumer(consumer, queue)); "
                "or remove all with --force",
            )
        config = _config(connection, before=_base(), after="" if target else DROP_SCHEMAS)
        _run("downgrade", config, target or "base")


def _run(way: Literal["upgrade", "downgrade"], config: Config, revision: str, **sql: bool) -> None:
    from alembic import command

    with _ALEMBIC:
        getattr(command, way)(config, revision, **sql)


def _config(
    connection: sa.Connection | None, *, before: str, after: str, output: io.StringIO | None = None
) -> Config:
    from alembic.config import Config

    config = Config(output_buffer=output) if output is not None else Config()
    # ConfigParser interprets percent signs.
    config.set_main_option("script_location", str(MIGRATIONS_DIR).replace("%", "%%"))
    after = "\n".join(filter(None, (after, Manifest.load().sql("end"))))
    config.attributes.update(connection=connection, before=before, after=after)
    return config


def _lost_with(connection: sa.Connection) -> str | None:
    driver = driver_of(connection)
    driver.execute(_base().encode())
    lost = what_is_lost_with(connection)
    driver.execute(Manifest.load().sql("end").encode())
    return lost


def _base() -> str:
    return f"{LOCK};\n\n" + Manifest.load().sql("base")


def _functions_of(target: str, *, node: bool) -> str:
    """Return functions and grants, and the optional part; only the newest structure gets them."""
    if target != history()[-1].id:
        return ""
    sections = ("functions", "grants", *(("node",) if node else ()))
    return Manifest.load().sql(*sections) + note_sql()
