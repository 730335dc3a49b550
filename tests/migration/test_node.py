"""The optional schema pgq_node: there if it was asked for, then upgraded with the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgqpy import schema
from pgqpy.schema import SchemaError
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_reference import missing_on_purpose

from .catalog import catalog, data

PGQ_NODE = Path("/usr/share/postgresql/15/contrib/pgq_node.sql")
IS_THERE = "select to_regnamespace('pgq_node') is not null"


def test_a_migration_upgrades_it_where_it_is_and_only_there(
    node_dsn: str, node: Connection, empty_dsn: str, other: Connection
) -> None:
    schema.migrate(node_dsn)
    node.execute("select pgq_node.register_location('q', 'a', 'dbname=a', false)")
    before = catalog(node), data(node)
    for change in (
        "create or replace function pgq_node.version() returns text return 'broken'",
        "revoke select on pgq_node.node_info from pgq_reader",
        "revoke usage on schema pgq_node from public",
    ):
        node.execute(change.encode())
        schema.migrate(node_dsn)
        assert (catalog(node), data(node)) == before
    schema.migrate(empty_dsn)
    assert not ops.value(other, IS_THERE)


def test_it_comes_with_the_newest_revision_only(empty_dsn: str, other: Connection) -> None:
    with pytest.raises(SchemaError, match="not above"):
        schema.migrate(empty_dsn, "base", node=True)
    with pytest.raises(Exception, match="alembic_version"):
        other.execute(schema.node_sql().encode())
    other.execute("rollback")
    assert not ops.value(other, IS_THERE)
    schema.migrate(empty_dsn)
    other.execute("update pgq.alembic_version set version_num = '0000'")
    with pytest.raises(Exception, match="another version"):
        other.execute(schema.node_sql().encode())


@pytest.mark.reference
def test_pgqs_own_is_left_alone_and_can_be_replaced_as_the_hint_says(
    dsn: str, conn: Connection
) -> None:
    if not PGQ_NODE.exists():
        missing_on_purpose(str(PGQ_NODE))
    conn.execute(PGQ_NODE.read_text().encode())
    for name in ("root", "branch"):
        conn.execute("select pgq_node.register_location('q', %s, '', false)", [name])
    conn.execute("select pgq_node.create_node('q', 'root', 'root', 'w', null, null, null)")
    conn.execute("select pgq_node.register_subscriber('q', 'branch', 'v', null)")
    info = conn.execute("select * from pgq_node.get_node_info('q')").fetchall()
    assert info[0][0] == 100
    schema.migrate(dsn)
    with pytest.raises(SchemaError, match="schema pgq_node that was not installed") as caught:
        schema.migrate(dsn, node=True)
    assert conn.execute("select * from pgq_node.get_node_info('q')").fetchall() == info
    hint = caught.value.hint or ""
    tables = ("node_location", "node_info", "local_state", "subscriber_info")
    for step in (
        "alter schema pgq_node rename to pgq_node_old",
        None,
        "insert into pgq_node.node_location select * from pgq_node_old.node_location",
        "drop schema pgq_node_old cascade",
    ):
        if step is None:
            schema.migrate(dsn, node=True)
            continue
        assert step in hint
        for table in tables if "node_location" in step else ("",):
            conn.execute(step.replace("node_location", table).encode())
    assert conn.execute("select * from pgq_node.get_node_info('q')").fetchall() == info
    with pytest.raises(SchemaError, match="1 node "):
        schema.downgrade(dsn, "base")


@pytest.mark.reference
def test_a_downgrade_removes_ours_and_not_pgqs(
    node_dsn: str, node: Connection, empty_dsn: str, other: Connection
) -> None:
    schema.downgrade(node_dsn, "base")
    assert not ops.value(node, IS_THERE)
    if not PGQ_NODE.exists():
        missing_on_purpose(str(PGQ_NODE))
    schema.migrate(empty_dsn)
    other.execute(PGQ_NODE.read_text().encode())
    schema.downgrade(empty_dsn, "base", force=True)
    assert ops.value(other, IS_THERE)
