"""Rights for installing: no superuser is needed, and errors name a missing right."""

from __future__ import annotations

import psycopg
import pytest

from pgqpy import schema
from pgqpy.embedded import Server
from pgqpy.schema import SchemaError
from tests.fixtures.fix_db import Connection

from .catalog import catalog

ROLES = ("pgq_owner", "pgq_reader", "pgq_writer", "pgq_admin")


def grant_create(conn: Connection) -> None:
    conn.execute(f"grant create on database {conn.info.dbname} to newcomer".encode())


def test_membership_in_the_owner_is_enough_where_the_roles_exist(
    newcomer: str, other: Connection, conn: Connection
) -> None:
    grant_create(other)
    other.execute("grant pgq_owner to newcomer")
    schema.migrate(newcomer)
    schema.migrate(newcomer)
    assert catalog(other) == catalog(conn)
    schema.downgrade(newcomer, "base")


def test_without_rights_the_error_names_them(newcomer: str, conn: Connection) -> None:
    with pytest.raises(SchemaError) as caught:
        schema.migrate(newcomer)
    assert caught.value.hint is not None
    assert "createrole" in caught.value.hint
    assert "grant create on database" in caught.value.hint
    assert "grant pgq_owner" in caught.value.hint


def test_createrole_is_enough_in_a_cluster_without_our_roles(server: Server) -> None:
    """A server of its own, since roles belong to the cluster."""
    with Server(version=server.version) as fresh:
        with psycopg.connect(fresh.dsn, autocommit=True) as conn:
            conn.execute("create role installer login createrole")
            conn.execute("create database app")
            conn.execute("grant create on database app to installer")
        dsn = fresh.dsn_of("app", user="installer")
        schema.migrate(dsn)
        schema.migrate(dsn)
        with psycopg.connect(fresh.dsn_of("app"), autocommit=True) as conn:
            found = conn.execute(
                "select rolname, rolcanlogin, rolsuper from pg_roles where rolname = any(%s)",
                [list(ROLES)],
            ).fetchall()
            assert sorted(found) == sorted((role, False, False) for role in ROLES)
        schema.downgrade(dsn, "base")
