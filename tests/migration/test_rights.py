"""Rights for installing: no superuser is needed, and errors name a missing right."""

from __future__ import annotations

import pytest

from pgqpy import schema
from pgqpy.schema import SchemaError
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection

from .catalog import catalog
from .conftest import Cluster

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


def test_createrole_is_enough_in_a_cluster_without_our_roles(new_cluster: Cluster) -> None:
    admin = new_cluster.admin
    mode = "set" if admin.info.server_version >= 160_000 else "member"
    for _ in range(2):
        schema.migrate(new_cluster.dsn)
        # It does not stay a member of the owner.
        for right in (mode, "usage"):
            assert not ops.value(admin, "select pg_has_role('installer', 'pgq_owner', %s)", right)
    found = admin.execute(
        "select rolname, rolcanlogin, rolsuper from pg_roles where rolname = any(%s)", [list(ROLES)]
    ).fetchall()
    assert sorted(found) == sorted((role, False, False) for role in ROLES)
    schema.downgrade(new_cluster.dsn, "base")
