"""Leaves whose queues are merged into one, as PgQ's workers merge the partitions of a table."""

from __future__ import annotations

from itertools import zip_longest

import pytest

from pgqpy.cascade import CascadedWorker
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cascade import AddNode, Node, join_node

PARTS = ("p1", "p2")


@pytest.fixture
def nodes(add_node: AddNode) -> list[Node]:
    """The root of the parts, and two nodes in which they are merged into "q"."""
    source, first, second = add_node("source"), add_node("first"), add_node("second")
    second.conn.execute("select pgq_node.drop_node('q', 'second')")
    join_node(second, first, "branch", [first, second])
    for part in PARTS:
        join_node(source, None, "root", [source], part)
        for node in (first, second):
            join_node(node, source, "leaf", [node], part, merged="q")
    return [source, first, second]


def merge(node: Node) -> None:
    for part in PARTS:
        CascadedWorker(node.dsn, queue=part).run(until_empty=True)


def position(node: Node, part: str) -> int:
    tick: int = ops.value(
        node.conn, "select last_tick_id from pgq_node.local_state where queue_name = %s", part
    )
    return tick


def test_parts_are_merged_whole_and_in_order_and_go_on_at_the_other_node(
    nodes: list[Node],
) -> None:
    source, first, second = nodes
    ops.register(first.conn, "q", "c")
    ops.register(second.conn, "q", "c")
    for number in range(4):
        ticks = {part: ops.insert_ticked(source.conn, part, f"{part} {number}") for part in PARTS}
        merge(first)
    assert all(position(first, part) == tick for part, tick in ticks.items())
    # A producer can forge such a mark.
    for forged in ("999999", "1", "x"):
        mark = "pgq.tick-id", forged, "p1"
        first.conn.execute("select pgq.insert_event('q', %s, %s, %s, null, null, null)", mark)
    ops.tick(first.conn, "q")
    second.catch_up()
    # The marks in the events have moved the parts of the other node, which merges nothing itself.
    merge(second)
    assert all(position(second, part) == tick for part, tick in ticks.items())
    second.conn.execute("select pgq_node.promote_branch('q')")
    for part in PARTS:
        ops.insert_ticked(source.conn, part, f"{part} 4")
    merge(second)
    seen = [data for data in ops.deliver(second.conn, "q", "c") if data.startswith("p")]
    merged = zip_longest(*([f"{part} {number}" for number in range(5)] for part in PARTS))
    assert seen == [data for pair in merged for data in pair]
