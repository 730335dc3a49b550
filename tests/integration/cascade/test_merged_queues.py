"""Leaves whose queues are merged into one, as PgQ's workers merge the partitions of a table."""

from __future__ import annotations

from itertools import zip_longest

import pytest

from pgqpy.cascade import CascadedWorker, Nodes, drop_node, takeover
from pgqpy.errors import CascadeError, PgqError
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cascade import AddNode, Node, join_node
from tests.fixtures.fix_client import running

PARTS = ("p1", "p2")


@pytest.fixture
def nodes(add_node: AddNode) -> list[Node]:
    """The root of the parts, and two nodes in which they are merged into "q"."""
    source, first = add_node("source"), add_node("first")
    second = add_node("second", first)
    for part in PARTS:
        join_node(source, None, "root", [source], part)
        for node in (first, second):
            join_node(node, source, "leaf", [node], part, merged="q")
    return [source, first, second]


def merge(node: Node) -> None:
    for part in PARTS:
        CascadedWorker(node.dsn, queue=part).run(until_empty=True)


def test_parts_are_merged_whole_and_in_order_and_go_on_at_the_other_node(
    nodes: list[Node],
) -> None:
    source, first, second = nodes
    ops.register(first.conn, "q", "c")
    ops.register(second.conn, "q", "c")
    for number in range(4):
        ticks = {part: ops.insert_ticked(source.conn, part, f"{part} {number}") for part in PARTS}
        merge(first)
    assert all(first.state_of(part)["last_tick_id"] == tick for part, tick in ticks.items())
    # A producer can forge such a mark.
    for forged in ("999999", "1", "x"):
        mark = "pgq.tick-id", forged, "p1"
        first.conn.execute("select pgq.insert_event('q', %s, %s, %s, null, null, null)", mark)
    ops.tick(first.conn, "q")
    second.catch_up()
    # The marks in the events have moved the parts of the other node, which merges nothing itself.
    merge(second)
    assert all(second.state_of(part)["last_tick_id"] == tick for part, tick in ticks.items())
    second.conn.execute("select pgq_node.promote_branch('q')")
    for part in PARTS:
        insert = "select pgq.insert_event(%s, null, %s)"
        source.conn.execute(insert, [part, f"{part} 4"])
        ops.tick(source.conn, part)
    merge(second)
    seen = [data for data in ops.deliver(second.conn, "q", "c") if data.startswith("p")]
    merged = zip_longest(*([f"{part} {number}" for number in range(5)] for part in PARTS))
    assert seen == [data for pair in merged for data in pair]


def test_a_takeover_is_refused_unless_the_new_roots_leaves_go_on_where_the_old_ones_stopped(
    nodes: list[Node],
) -> None:
    source, first, second = nodes
    ops.register(second.conn, "q", "c")
    for part in PARTS:
        ops.insert_ticked(source.conn, part, part)
    merge(first)
    ops.tick(first.conn, "q")
    second.catch_up()
    # The other queues' root is also one of this queue, by the fixture.
    for node in nodes:
        node.conn.execute("select pgq_node.drop_node('q', 'source')")
    move = (
        "update pgq_node.local_state set last_tick_id = last_tick_id + %s where queue_name = 'p1'"
    )
    with running(second.worker), Nodes("q", first.dsn) as found:
        # As at a root that died when it had merged what no other node had copied.
        second.conn.execute(move, [1])
        with pytest.raises(CascadeError, match="p1 was merged at first up to"):
            takeover(found, "second")
        ops.insert(first.conn, "q", "taken as before")
        second.conn.execute(move, [-1])
        takeover(found, "second")
    ops.insert_ticked(source.conn, "p1", "p1 later")
    merge(second)
    ops.tick(second.conn, "q")
    seen = [data for data in ops.deliver(second.conn, "q", "c") if data.startswith(("p", "taken"))]
    assert seen == ["p1", "p2", "taken as before", "p1 later"]


def test_a_leaf_skips_nothing_while_the_queue_that_it_is_merged_into_is_no_node(
    nodes: list[Node],
) -> None:
    source, _, second = nodes
    with Nodes("q", second.dsn) as found, pytest.raises(CascadeError, match="p1, p2"):
        drop_node(found, "second", force=True)
    second.conn.execute("select pgq_node.drop_node('q', 'second')")
    before = second.state_of("p1")["last_tick_id"]
    ops.insert_ticked(source.conn, "p1", "kept")
    with pytest.raises(PgqError, match="no node"):
        merge(second)
    assert second.state_of("p1")["last_tick_id"] == before


def test_of_two_workers_of_a_node_one_goes_on(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, first, second = nodes
    for method, node, queue, begin in (
        ("_merge", first, "p1", source),
        ("_copy", second, "q", first),
    ):
        ops.insert_ticked(begin.conn, queue, "once")
        slow = CascadedWorker(node.dsn, queue=queue)
        go_on = getattr(slow, method)

        async def be_slow(*arguments: object) -> object:
            CascadedWorker(node.dsn, queue=queue).run(until_empty=True)  # noqa: B023
            return await go_on(*arguments)  # noqa: B023

        monkeypatch.setattr(slow, method, be_slow)
        with pytest.raises(PgqError, match="another process keeps node"):
            slow.run_once()
    second.catch_up()
    assert second.batches() == first.batches()
    merged = ops.value(first.conn, "select count(*) from pgq.event where ev_data = 'once'")
    assert merged == 2  # one from p1, one of q itself
