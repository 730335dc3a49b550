"""CREATE EXTENSION pgqpy: an installation made this way is kept this way."""

from __future__ import annotations

import pytest

from pgqpy import schema
from pgqpy.schema import SchemaError
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection

from .conftest import Cluster

pytestmark = pytest.mark.usefixtures("extension_installed")


def test_migrate_leaves_an_extension_to_itself_and_drop_extension_removes_it(
    empty_dsn: str, other: Connection
) -> None:
    other.execute("create extension pgqpy")
    for change in (schema.migrate, lambda dsn: schema.downgrade(dsn, "base")):
        with pytest.raises(SchemaError, match="ALTER EXTENSION pgqpy UPDATE"):
            change(empty_dsn)
    other.execute("drop extension pgqpy")
    assert other.execute("select to_regnamespace('pgq')").fetchone() == (None,)


def test_an_installer_that_is_no_superuser_creates_and_drops_it(
    new_cluster: Cluster, connect: Connect
) -> None:
    installer, admin = connect(new_cluster.dsn), new_cluster.admin
    installer.execute("create extension pgqpy")
    assert ops.value(installer, "select extversion from pg_extension where extname = 'pgqpy'")
    assert not ops.value(installer, "select pg_has_role('pgq_owner', 'usage')")
    admin.execute("select pgq.create_queue('q')")
    admin.execute("select pgq.drop_queue('q')")
    installer.execute("drop extension pgqpy")
    assert ops.value(admin, "select to_regnamespace('pgq_ids')") is None
