"""Tables replicated along the nodes of their queue."""

from __future__ import annotations

from contextlib import suppress
from time import sleep

import psycopg
import pytest

from pgqpy.cascade import takeover
from pgqpy.errors import ConsumerNotRegistered
from pgqpy_consumers.replicate import Replicate
from pgqpy_consumers.replicate._state import ReplicaError
from pgqpy_consumers.replicate.compare import Comparer
from pgqpy_consumers.replicate.manage import Manager
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import running, wait_until
from tests.fixtures.fix_nodes import QUEUE, Tree

TABLE = "create table item (id serial primary key, n int)"
ROWS = "select id, n from item order by id"
CHANGE = "update item set n = n + 1; insert into item (n) values (0)"


def replicate(tree: Tree, source: str, target: str, consumer: str | None = None) -> Replicate:
    made = Replicate(
        tree.dsns[source],
        target_dsn=tree.dsns[target],
        queue=QUEUE,
        consumer=consumer or f"to_{target}",
    )
    made.poll_interval = 0.05
    return made


def manager(tree: Tree, source: str, target: str) -> Manager:
    return Manager(tree.conns[source], tree.conns[target], QUEUE, f"to_{target}")


def same(tree: Tree, *names: str) -> None:
    """The table is the same at these nodes, or will be."""
    wanted = tree.conns[names[0]].execute(ROWS).fetchall()
    assert wanted
    others = [tree.conns[name] for name in names[1:]]
    wait_until(lambda: all(conn.execute(ROWS).fetchall() == wanted for conn in others))


def in_step(tree: Tree, name: str) -> None:
    conn = tree.conns[name]
    wait_until(
        lambda: ops.value(conn, "select bool_and(rpt_state = 'in_step') from pgq_ext.replica_table")
    )


def end() -> None:
    """Raised by whatever is not there at once."""
    raise TimeoutError


@pytest.fixture
def nodes(tree: Tree) -> Tree:
    """A root a, its branch b, and another database, c; a table in all of them."""
    tree.nodes("a", "b")
    tree.database("c")
    for conn in tree.conns.values():
        conn.execute(TABLE)
    tree.conns["a"].execute("insert into item (n) select n from generate_series(1, 20) n")
    tree.conns["a"].execute(
        "select pgq.set_queue_config(%s, 'ticker_idle_period', '0.2 seconds')", [QUEUE]
    )
    return tree


def test_a_branch_whose_table_is_behind_its_queue_feeds_others(nodes: Tree) -> None:
    """The copy is of the table, as of a tick of the queue; later changes are the queue's."""
    a = nodes.conns["a"]
    with pytest.raises(ReplicaError, match="is not replicated with it"):
        manager(nodes, "b", "c").add("item")
    manager(nodes, "a", "b").add("item")
    nodes.work("a", "b")
    with running(replicate(nodes, "a", "b")):
        in_step(nodes, "b")
    a.execute(CHANGE)
    nodes.ticked("a")
    nodes.follows("b", "a")
    manager(nodes, "b", "c").add("item")
    with running(replicate(nodes, "b", "c")):
        # It begins where the branch's queue is now, and its table is not there yet.
        state = "select rpt_state = 'copying' from pgq_ext.replica_table"
        wait_until(lambda: ops.value(nodes.conns["c"], state))
        with running(replicate(nodes, "a", "b")):
            # Another row: a change of the same ones would bring what is missing.
            a.execute("insert into item (n) values (0)")
            same(nodes, "a", "b", "c")
            in_step(nodes, "c")
            comparer = Comparer(nodes.dsns["b"], nodes.dsns["c"], QUEUE, "to_c")
            found = comparer.compare(manager(nodes, "b", "c").replica("item"))
            assert (found.rows, found.differences) == (22, [])


def test_a_target_that_becomes_the_root_feeds_the_source(nodes: Tree) -> None:
    a, b = nodes.conns["a"], nodes.conns["b"]
    there = manager(nodes, "a", "b")
    there.add("item")
    nodes.work("a", "b")
    with suppress(ConsumerNotRegistered), running(replicate(nodes, "a", "b")):
        in_step(nodes, "b")
        with pytest.raises(ReplicaError, match="is not the root"):
            there.reverse(end)
        a.execute(CHANGE)
        with nodes.open("b") as opened:
            takeover(opened, "b")
        with pytest.raises(psycopg.Error, match="inserting into queue"):
            a.execute(CHANGE)
        there.reverse(lambda: sleep(0.01))
        with pytest.raises(ReplicaError, match="is reversed already"):
            there.reverse(end)
        # As if it had been killed before its last step.
        ops.register(a, QUEUE, "to_b")
        there.reverse(end)
        exchanged = Manager(b, a, QUEUE, "to_b")
        with pytest.raises(ReplicaError, match="is not the root") as refused:
            exchanged.reverse(end)
        assert "exchanged already, it is reversed" in str(refused.value.hint)
    assert ops.value(b, "select count(*) from item") == 21
    with running(replicate(nodes, "b", "a", consumer="to_b")):
        for _ in range(3):
            b.execute(CHANGE)
        same(nodes, "b", "a")
        assert ops.value(a, "select count(*) from item") == 24
        ids = ops.value(b, "select max(id) from item")
        wait_until(lambda: ops.value(a, "select last_value from item_id_seq") >= ids)
