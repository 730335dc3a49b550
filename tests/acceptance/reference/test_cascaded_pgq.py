"""Our worker with PgQ: a root that is PgQ, and nodes with its own pgq_node on our schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgqpy.embedded import Server
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cascade import AddNode, Node, join_node
from tests.fixtures.fix_db import create_database, drop_database
from tests.fixtures.fix_reference import missing_on_purpose

pytestmark = [pytest.mark.reference, pytest.mark.any_pg]

PGQ_NODE = Path("/usr/share/postgresql/15/contrib/pgq_node.sql")
EVENTS = (
    "select ev_id, ev_time, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
    " from pgq.event_1 order by 1"
)
TICKS = "select tick_id, tick_time, tick_event_seq from pgq.tick where tick_id > 1 order by 1"


def rows(node: Node, query: str) -> list[Any]:
    return node.conn.execute(query.encode()).fetchall()


def fill(root: Node) -> None:
    for number in range(3):
        ops.insert_ticked(root.conn, "q", *(f"{number} {each} pgq." for each in "abc"))


def test_a_root_of_pgq_is_copied_exactly(pgq_reference_dsn: str, add_node: AddNode) -> None:
    root = Node("root", pgq_reference_dsn)
    root.conn.execute("create extension pgq_node")
    join_node(root, locations=[root])
    branch = add_node("branch", root)
    for _ in range(2):
        fill(root)
        branch.catch_up()
    assert rows(branch, EVENTS) == rows(root, EVENTS)
    assert rows(branch, TICKS) == rows(root, TICKS)
    finished = "select last_tick from pgq.get_consumer_info('q', 'branch_worker')"
    assert ops.value(root.conn, finished) == branch.state["last_tick_id"]
    root.conn.close()


@pytest.fixture
def pgqs_nodes(server: Server) -> Iterator[list[Node]]:
    """A root, a branch and a leaf: our schema, with PgQ's pgq_node in it."""
    if not PGQ_NODE.exists():
        missing_on_purpose(str(PGQ_NODE))
    names = [create_database(server) for _ in range(3)]
    nodes = [
        Node(name, server.dsn_of(database))
        for name, database in zip(("root", "branch", "leaf"), names, strict=True)
    ]
    provider = None
    for node, kind in zip(nodes, ("root", "branch", "leaf"), strict=True):
        node.conn.execute(PGQ_NODE.read_text().encode())
        join_node(node, provider, kind, [node])
        provider = node
    yield nodes
    for node, name in zip(nodes, names, strict=True):
        node.conn.close()
        drop_database(server, name)


def test_nodes_of_pgqs_own_pgq_node_are_kept(pgqs_nodes: list[Node]) -> None:
    root, branch, leaf = pgqs_nodes
    fill(root)
    for node in pgqs_nodes:
        node.catch_up()
    assert branch.batches() == root.batches()
    assert branch.ticks() == root.ticks()
    # PgQ's worker was killed between its two transactions: the events are there, their tick is not.
    fill(root)
    branch.catch_up()
    with psycopg.connect(branch.dsn) as conn:
        conn.execute("delete from pgq.tick where tick_id = (select max(tick_id) from pgq.tick)")
    for node in (branch, leaf):
        node.catch_up()
    assert branch.ticks() == root.ticks()
    assert leaf.state["last_tick_id"] == root.ticks()[-1][0]
