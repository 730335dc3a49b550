"""Migrations, by Alembic: bring a database's schema to a revision of ``migrations/versions``.

A revision changes structure only: tables, sequences, views. Functions and
grants have no history; an upgrade to the newest revision replaces them by
those of ``sql/``. All of an upgrade is one transaction under an advisory lock,
so that two at once are one after the other, and an interrupted one never was.

Which revision a database is at stands in a table inside our own schema, so
that an application's own Alembic version table never meets ours.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy.pool import NullPool

from pgqpy.errors import PgqError, from_psycopg
from pgqpy.schema.manifest import MIGRATIONS_DIR, SQL_DIR, Manifest

VERSION_SCHEMA = "pgq"
VERSION_TABLE = "alembic_version"

# Any number will do, as long as it is always the same: "pgqpy" in ASCII.
LOCK = f"select pg_catalog.pg_advisory_xact_lock({int.from_bytes(b'pgqpy')})"

# What env.py and the revisions know of their surroundings is global in Alembic.
_ALEMBIC = threading.Lock()

DROP_SCHEMAS = f"drop schema {VERSION_SCHEMA} cascade;"

NEEDED_RIGHTS = (
    "connect as a superuser, or as a role that may create roles and schemas: "
    "alter role NAME createrole; grant create on database DATABASE to NAME. "
    "Where the roles exist already: grant pgq_owner to NAME"
)


class SchemaError(PgqError):
    """The schema cannot be installed, changed or removed; the hint says what to do."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A state that the schema has had in a release."""

    id: str
    description: str
    is_head: bool


def migrate(dsn: str, revision: str = "head") -> str:
    """Install the schema, or upgrade it; harmless when it is there already.

    Args:
        dsn: libpq connection string or URI.
        revision: up to which revision; the newest by default.

    Returns:
        The revision that the database is at now.

    Raises:
        SchemaError: the database holds something else, or rights are missing.
    """
    target = _resolve(revision)
    if target is None:
        raise SchemaError("base is not above anything", hint="use downgrade")
    with _transaction(dsn) as connection:
        _refuse_foreign_schema(connection)
        at = _current(connection)
        if at is not None and at not in _path_to(target):
            raise SchemaError(
                f"the database is at revision {at}, which is newer than {target}",
                hint="use downgrade",
            )
        config = _config(connection, before=_base(), after=_functions_of(target))
        with _ALEMBIC:
            command.upgrade(config, target)
    return target


def downgrade(dsn: str, revision: str, *, force: bool = False) -> str | None:
    """Take the schema back to an older revision, or with ``base`` remove it.

    Roles stay: other databases of the cluster may use them.

    Args:
        dsn: libpq connection string or URI.
        revision: down to which revision.
        force: remove the schema though queues are lost with it.

    Returns:
        The revision that the database is at now.

    Raises:
        SchemaError: queues would be lost, the database holds something else,
            or rights are missing.
    """
    target = _resolve(revision)
    with _transaction(dsn) as connection:
        _refuse_foreign_schema(connection)
        at = _current(connection)
        if at is None:
            if target is None:
                return None
            raise SchemaError("the schema is not installed", hint="run pgqpy migrate")
        if target is not None and target not in _path_to(at):
            raise SchemaError(
                f"the database is at {at}, which is below {target}", hint="use migrate"
            )
        lost = _what_downgrade_loses(connection) if target is None else None
        if lost is not None and not force:
            raise SchemaError(
                f"removing the schema would lose {lost}",
                hint="drop the queues first, or force it",
            )
        config = _config(connection, before=_base(), after="" if target else DROP_SCHEMAS)
        with _ALEMBIC:
            command.downgrade(config, target or "base")
    return target


def current(dsn: str) -> str | None:
    """The revision that the database is at; None when the schema is not installed."""
    with _transaction(dsn) as connection:
        return _current(connection)


def history() -> list[Revision]:
    """All revisions, the oldest first."""
    script = _script()
    return [
        Revision(step.revision, step.doc.partition("\n")[0], step.is_head)
        for step in reversed(list(script.walk_revisions()))
    ]


def upgrade_sql(revision: str = "head", *, start: str | None = None) -> str:
    """The SQL of an upgrade from ``start`` (nothing by default), without a connection."""
    target = _resolve(revision)
    if target is None:
        raise SchemaError("base is not above anything", hint="use downgrade")
    begin = _resolve(start) if start is not None else None
    buffer = io.StringIO()
    config = _config(None, before=_base(), after=_functions_of(target), output=buffer)
    with _ALEMBIC:
        command.upgrade(config, f"{begin}:{target}" if begin else target, sql=True)
    return buffer.getvalue()


def downgrade_sql(start: str, revision: str) -> str:
    """The SQL of a downgrade from ``start``, without a connection."""
    target = _resolve(revision)
    buffer = io.StringIO()
    config = _config(None, before=_base(), after="" if target else DROP_SCHEMAS, output=buffer)
    with _ALEMBIC:
        command.downgrade(config, f"{_resolve(start)}:{target or 'base'}", sql=True)
    return buffer.getvalue()


def what_downgrade_loses(dsn: str) -> str | None:
    """What would be gone with the schema, in words; None when it holds no queues."""
    with _transaction(dsn) as connection:
        return None if _current(connection) is None else _what_downgrade_loses(connection)


def execute_script(context: MigrationContext, script: str) -> None:
    """Run, or print, many statements exactly as they stand.

    SQLAlchemy would take ``%`` and ``:name`` for placeholders, of which
    PL/pgSQL is full.
    """
    if context.as_sql:
        context.impl.static_output(script)
    elif script:
        assert context.connection is not None
        driver: psycopg.Connection[Any] = _driver(context.connection)
        driver.execute(script.encode())


@contextmanager
def _transaction(dsn: str) -> Iterator[sa.Connection]:
    """A connection in a transaction in which nobody else migrates this database."""
    with _errors_of_ours():
        # READ COMMITTED, whatever the user's default: we must see what the one
        # has done who held the lock before us.
        engine = sa.create_engine(
            "postgresql+psycopg://",
            creator=lambda: psycopg.connect(dsn),
            poolclass=NullPool,
            isolation_level="READ COMMITTED",
        )
        with engine.begin() as connection:
            connection.exec_driver_sql(LOCK)
            yield connection


@contextmanager
def _errors_of_ours() -> Iterator[None]:
    """As `pgqpy.errors.translate_errors`, which knows nothing of SQLAlchemy's wrappers."""
    try:
        yield
    except (psycopg.Error, sa.exc.DBAPIError) as error:
        cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
        if not isinstance(cause, psycopg.Error):
            raise
        if isinstance(cause, psycopg.errors.InsufficientPrivilege):
            raise SchemaError(str(cause).strip(), hint=NEEDED_RIGHTS) from cause
        raise from_psycopg(cause) from cause


def _driver(connection: sa.Connection) -> psycopg.Connection[Any]:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


def _script() -> ScriptDirectory:
    return ScriptDirectory(str(MIGRATIONS_DIR))


def _config(
    connection: sa.Connection | None,
    *,
    before: str,
    after: str,
    output: io.StringIO | None = None,
) -> Config:
    config = Config(output_buffer=output) if output is not None else Config()
    # A percent sign is ConfigParser's own.
    config.set_main_option("script_location", str(MIGRATIONS_DIR).replace("%", "%%"))
    config.attributes.update(connection=connection, before=before, after=after)
    return config


def _base() -> str:
    return f"{LOCK};\n\n" + Manifest.load(SQL_DIR).sql("base")


def _functions_of(target: str) -> str:
    """Functions and grants go with the newest structure only."""
    if target != _script().get_current_head():
        return ""
    return Manifest.load(SQL_DIR).sql("functions", "grants")


def _resolve(revision: str) -> str | None:
    """The full id of a revision; None for ``base``."""
    if revision == "base":
        return None
    try:
        found = _script().get_revision(revision)
    except CommandError as error:
        known = ", ".join(step.id for step in history())
        raise SchemaError(f"there is no revision {revision}", hint=f"there are: {known}") from error
    return str(found.revision)


def _path_to(revision: str) -> set[str]:
    """The revision and all below it."""
    return {step.revision for step in _script().iterate_revisions(revision, "base")}


def _current(connection: sa.Connection) -> str | None:
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


def _refuse_foreign_schema(connection: sa.Connection) -> None:
    """Never touch a schema that is not ours, or that something else takes care of."""
    driver = _driver(connection)
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


def _what_downgrade_loses(connection: sa.Connection) -> str | None:
    """Queues, who is subscribed to them, and the triggers that go with the functions."""
    driver = _driver(connection)
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
