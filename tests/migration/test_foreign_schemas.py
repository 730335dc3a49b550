"""Others put something where we will install: it is named, never executed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import psycopg.conninfo
import pytest

from pgqpy import schema
from pgqpy.schema import SchemaError, schema_sql
from pgqpy.schema._database import ALL_SCHEMAS, NODE_SCHEMA
from tests.fixtures.fix_db import Connect, Connection
from tests.integration.test_security import SHADOWS

pytestmark = pytest.mark.any_pg

Install = Callable[[str], object]


def install_file(dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(schema_sql().encode())


@pytest.fixture
def planter(newcomer: str, other: Connection, connect: Connect) -> Connection:
    """A role that may create schemas in the database and nothing else."""
    other.execute(f"grant create on database {other.info.dbname} to newcomer".encode())
    return connect(newcomer)


PLANTED = (
    "create function {}.planted(text) returns text return $1",
    "create sequence {}.planted",
    "create domain {}.planted as int",
    "create operator {}.=== (function = pg_catalog.int4pl, leftarg = int, rightarg = int)",
    "alter default privileges in schema {} grant execute on functions to public",
)


@pytest.mark.parametrize("install", [schema.migrate, install_file])
def test_a_schema_with_something_in_it_is_refused(
    empty_dsn: str, other: Connection, planter: Connection, install: Install
) -> None:
    for name, planted in itertools.product(ALL_SCHEMAS, PLANTED):
        planter.execute(f"create schema {name}".encode())
        planter.execute(planted.format(name).encode())
        with pytest.raises((SchemaError, psycopg.errors.DuplicateSchema), match=f"schema {name} "):
            install(empty_dsn)
        found = other.execute("select nspname from pg_namespace where nspname ~ '^pgq'").fetchall()
        assert found == [(name,)]
        planter.execute(f"drop schema {name} cascade".encode())


@pytest.mark.parametrize("install", [schema.migrate, install_file])
def test_an_empty_schema_of_another_role_becomes_ours_and_its_creators_rights_end(
    empty_dsn: str, other: Connection, planter: Connection, install: Install
) -> None:
    for name in ALL_SCHEMAS:
        planter.execute(f"create schema {name}; grant create on schema {name} to public".encode())
    install(empty_dsn)
    owners = other.execute(
        "select distinct nspowner::regrole::text from pg_namespace where nspname = any (%s)",
        [list(ALL_SCHEMAS)],
    ).fetchall()
    assert owners == [("pgq_owner",)]
    for name in ALL_SCHEMAS:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            planter.execute(f"create sequence {name}.planted".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            planter.execute(f"drop schema {name} cascade".encode())


def test_what_is_created_while_we_install_is_not_in_our_schema(
    empty_dsn: str, other: Connection, planter: Connection
) -> None:
    """Functions lock nothing, so it cannot be seen, only left behind."""
    planter.execute("create schema pgq_ids")
    planter.execute("begin; create function pgq_ids.planted() returns int return 1")
    schema.migrate(empty_dsn)
    planter.execute("commit")
    found = other.execute(
        "select from pg_proc where proname = 'planted' and pronamespace = 'pgq_ids'::regnamespace"
    ).fetchall()
    assert found == []


def test_an_upgrade_names_what_others_have_put_into_our_schemas(
    node_dsn: str, node: Connection
) -> None:
    node.execute(
        "do $$ begin if to_regrole('the_stranger') is null then create role the_stranger;"
        " end if; end $$"
    )
    for name in (*ALL_SCHEMAS, NODE_SCHEMA):
        node.execute(f"grant create, usage on schema {name} to the_stranger".encode())
        node.execute(f"set role the_stranger; create sequence {name}.planted; reset role".encode())
        with pytest.raises(SchemaError, match=rf"schema {name} .*sequence .*planted"):
            schema.migrate(node_dsn)
        # A superuser's are its own business.
        node.execute(f"alter sequence {name}.planted owner to postgres".encode())
    schema.migrate(node_dsn)


TRAP = """
create schema evil;
create sequence evil.ran;
create function evil.spring() returns text language plpgsql as
    $$ begin perform pg_catalog.nextval('evil.ran'); return '0001'; end $$;
grant usage on schema evil to public;
grant usage on sequence evil.ran to public;
"""


def test_a_version_table_of_another_role_is_not_read(
    empty_dsn: str, other: Connection, planter: Connection
) -> None:
    planter.execute(TRAP.encode())
    planter.execute("create schema pgq")
    planter.execute("create view pgq.alembic_version as select evil.spring() as version_num")
    planter.execute("create table pgq.queue as select evil.spring() as queue_name limit 0")
    assert schema.current(empty_dsn) is None
    for change in (schema.migrate, lambda dsn: schema.downgrade(dsn, "base", force=True)):
        with pytest.raises(SchemaError, match="not installed by pgqpy"):
            change(empty_dsn)
    assert other.execute("select is_called from evil.ran").fetchone() == (False,)


@pytest.mark.parametrize("install", [schema.migrate, install_file])
def test_what_lies_on_the_installers_search_path_is_never_called(
    empty_dsn: str, other: Connection, install: Install
) -> None:
    other.execute(SHADOWS)
    dsn = psycopg.conninfo.make_conninfo(empty_dsn, options="-c search_path=public,pg_catalog")
    install(dsn)
    schema.migrate(dsn)
    schema.downgrade(dsn, "base")
    assert other.execute("select distinct what from public.hit").fetchall() == []
