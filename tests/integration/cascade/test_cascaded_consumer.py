"""Consumers that change the node they read: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import pgqpy
from pgqpy import Event, errors
from pgqpy.cascade import AsyncCascadedConsumer, CascadedConsumer, Nodes, drop_node
from pgqpy.cascade import _nodes as cascade_nodes
from pgqpy.cascade import _statements as statements
from pgqpy.cascade._consumer import Registration
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cascade import AddNode, Before, Node
from tests.fixtures.fix_client import running, wait_until
from tests.fixtures.fix_db import Connection


class Seen(CascadedConsumer):
    queue = "q"
    consumer = "seen"
    poll_interval = 0.01

    def process_remote_event(self, target: pgqpy.Connection, event: Event) -> None:
        target.execute("insert into seen (data) values (%s)", [event.data])


class AsyncSeen(AsyncCascadedConsumer):
    queue = "q"
    consumer = "seen"
    poll_interval = 0.01
    backoff_first = 0.01

    async def process_remote_event(self, target: pgqpy.AsyncConnection, event: Event) -> None:
        await target.execute("insert into seen (data) values (%s)", [event.data])


def effects(conn: Connection) -> list[str]:
    return [row[0] for row in conn.execute("select data from seen order by id").fetchall()]


def keepers(nodes: list[Node]) -> list[int]:
    """Return for each node whether it keeps events for the consumer."""
    keeps = "select count(*) from pgq.get_consumer_info('q', 'seen')"
    return [ops.value(node.conn, keeps) for node in nodes]


@pytest.fixture
def nodes(add_node: AddNode) -> Iterator[list[Node]]:
    """A root and two branches, and the effects on the second one; their workers run."""
    root = add_node("root")
    ops.tick(root.conn, "q")
    nodes = [root, add_node("one", root), add_node("two", root)]
    nodes[2].conn.execute("create table seen (id serial, data text)")
    with running(*(node.worker for node in nodes)):
        wait_until(lambda: nodes[1].state["last_tick_id"] == nodes[2].state["last_tick_id"] > 1)
        yield nodes


def test_a_consumer_goes_on_at_its_tick_on_another_node(nodes: list[Node]) -> None:
    root, one, two = nodes
    consumer = Seen(two.dsn)
    assert consumer.register()
    assert not consumer.register()
    # Nodes tell each other of it by an event.
    root.conn.execute("select pgq_node.register_location('q', 'x', 'dbname=x', false)")
    with running(consumer):
        for number in range(30):
            tick = ops.insert_ticked(root.conn, "q", str(number))
            if number % 10 == 5:
                for node in (one, two):
                    node.has(tick)
                Seen(two.dsn).move(["one", "two", "root"][number // 10])
        wait_until(lambda: len(effects(two.conn)) == 30)
    assert effects(two.conn) == [str(number) for number in range(30)]
    # Only its provider keeps events for it.
    assert keepers(nodes) == [1, 0, 0]
    assert consumer.unregister()
    assert keepers(nodes) == [0, 0, 0]


def test_a_consumer_that_is_moved_while_it_begins_leaves_no_position(
    nodes: list[Node], before: Before
) -> None:
    root, one, two = nodes
    one.has(ops.insert_ticked(root.conn, "q", "x"))
    consumer = Seen(two.dsn, provider="one")
    consumer.register()
    ops.value(one.conn, "select pgq.unregister_consumer('q', 'seen')")
    # It knows its provider, and looks for its position there.
    before(statements.POSITION, lambda: Seen(two.dsn).move("root"))
    consumer.run(until_empty=True)
    assert keepers(nodes) == [1, 0, 0]
    ops.insert_ticked(root.conn, "q", "y")
    consumer.run(until_empty=True)
    assert effects(two.conn) == ["y"]


def test_a_consumer_that_is_unregistered_while_it_begins_leaves_no_position(
    nodes: list[Node], before: Before
) -> None:
    root, _, two = nodes
    consumer = Seen(two.dsn, provider="root")
    consumer.run(until_empty=True)
    ops.value(root.conn, "select pgq.unregister_consumer('q', 'seen')")
    before(statements.REGISTER_AT, Seen(two.dsn).unregister)
    consumer.run(until_empty=True)
    assert keepers(nodes) == [0, 0, 0]


def test_a_consumer_that_begins_while_it_is_unregistered_leaves_no_position(
    nodes: list[Node], before: Before
) -> None:
    _, _, two = nodes
    consumer = Seen(two.dsn, provider="root")
    consumer.run(until_empty=True)
    before(statements.UNREGISTER, lambda: consumer.run(until_empty=True))
    assert Seen(two.dsn).unregister()
    assert keepers(nodes) == [0, 0, 0]


def test_of_two_processes_that_register_the_slower_one_moves_nothing(
    nodes: list[Node], before: Before
) -> None:
    root, _, two = nodes

    def register_and_go_on() -> None:
        consumer = Seen(two.dsn, provider="root")
        consumer.register()
        ops.insert_ticked(root.conn, "q", "x")
        consumer.run(until_empty=True)

    before(statements.REGISTER, register_and_go_on)
    slower = Seen(two.dsn, provider="one")
    assert not slower.register()
    slower.run(until_empty=True)
    assert effects(two.conn) == ["x"]
    assert keepers(nodes) == [1, 0, 0]


def test_of_two_processes_only_one_applies_a_batch(nodes: list[Node]) -> None:
    class Slower(Seen):
        def process_remote_event(self, target: pgqpy.Connection, event: Event) -> None:
            Seen(two.dsn).run(until_empty=True)
            super().process_remote_event(target, event)

    root, _, two = nodes
    slower = Slower(two.dsn, provider="root")
    slower.register()
    ops.insert_ticked(root.conn, "q", "x")
    with pytest.raises(errors.PgqError, match="the batch begins after"):
        slower.run(until_empty=True)
    assert effects(two.conn) == ["x"]


def test_of_two_moves_at_once_the_later_one_counts_and_no_position_is_left(
    nodes: list[Node], before: Before
) -> None:
    _, one, two = nodes
    consumer = Seen(two.dsn, provider="two")
    consumer.register()
    waits = "select count(*) from pg_locks where not granted"
    with ThreadPoolExecutor() as pool:
        calls: list[Future[None]] = []

        def move_too() -> None:
            calls.append(pool.submit(Seen(two.dsn).move, "root"))
            wait_until(lambda: calls[0].done() or ops.value(one.conn, waits))

        before(statements.CHANGE_PROVIDER, move_too)
        consumer.move("one")
        calls[0].result()
    assert keepers(nodes) == [1, 0, 0]


def test_a_move_from_a_node_that_is_away_says_what_is_left_there(
    nodes: list[Node], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, two = nodes
    consumer = Seen(two.dsn, provider="two")
    consumer.register()

    async def is_away(*_: object) -> None:
        raise errors.ConnectionFailed("connection refused")

    monkeypatch.setattr(Registration, "leave", is_away)
    consumer.move("root")
    assert "a position at node two, which keeps events for it: connection refused" in caplog.text
    assert "pgqpy consumer unregister q seen" in caplog.text


def test_a_consumer_that_runs_while_its_node_is_dropped_leaves_no_position(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, one, two = nodes
    consumer = Seen(two.dsn, provider="root")
    consumer.run(until_empty=True)
    call = cascade_nodes.Node.call

    def run_and_call(node: cascade_nodes.Node, function: str, *arguments: Any, **more: Any) -> Any:
        if function == "drop_node":
            monkeypatch.setattr(cascade_nodes.Node, "call", call)
            consumer.run(until_empty=True)
            assert keepers([root]) == [1]
        return call(node, function, *arguments, **more)

    monkeypatch.setattr(cascade_nodes.Node, "call", run_and_call)
    with Nodes("q", root.dsn) as known:
        drop_node(known, "two", force=True)
    assert keepers([root, one]) == [0, 0]


def test_a_consumer_that_registers_at_a_tick_of_another_node_leaves_its_provider(
    nodes: list[Node],
) -> None:
    _, one, two = nodes
    Seen(two.dsn, provider="root").register()
    Seen(two.dsn, provider="one").register(at_tick=one.state["last_tick_id"])
    assert keepers(nodes) == [0, 1, 0]


def test_a_consumer_that_was_killed_between_its_commit_and_the_end_of_the_batch_moves_exactly(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, one, two = nodes
    consumer = Seen(two.dsn)
    consumer.register()
    one.has(ops.insert_ticked(root.conn, "q", "x"))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pgqpy.Batch, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            consumer.run(until_empty=True)
    consumer.move("one")
    one.has(ops.insert_ticked(root.conn, "q", "y"))
    consumer.run(until_empty=True)
    assert effects(two.conn) == ["x", "y"]


def test_an_asyncio_consumer_pauses_notes_its_error_and_registers_at_a_tick(
    nodes: list[Node],
) -> None:
    root, _, two = nodes
    tick = ops.insert_ticked(root.conn, "q", "old")
    two.has(ops.insert_ticked(root.conn, "q", "x"))
    consumer = AsyncSeen(two.dsn, provider="two")

    def noted() -> str | None:
        query = "select cur_error from pgq_node.local_state where consumer_name = 'seen'"
        error: str | None = ops.value(two.conn, query)
        return error

    async def until(condition: Callable[[], object]) -> None:
        await asyncio.to_thread(wait_until, condition)

    async def run() -> None:
        await consumer.register(at_tick=tick)
        two.conn.execute("select pgq_node.set_consumer_paused('q', 'seen', true)")
        await consumer.run(until_empty=True)
        assert effects(two.conn) == []
        two.conn.execute("alter table seen rename to hidden")
        two.conn.execute("select pgq_node.set_consumer_paused('q', 'seen', false)")
        running = asyncio.create_task(consumer.run())
        await until(lambda: "seen" in (noted() or ""))
        two.conn.execute("alter table hidden rename to seen")
        await until(lambda: effects(two.conn) == ["x"] and noted() is None)
        consumer.stop()
        await running

    asyncio.run(run())


def test_a_node_without_the_consumers_tick_is_refused(nodes: list[Node]) -> None:
    root, one, two = nodes
    Seen(two.dsn).register()
    one.conn.execute("select pgq_node.set_consumer_paused('q', 'one_worker', true)")
    wait_until(lambda: one.state["uptodate"])
    ops.insert_ticked(root.conn, "q", "x")
    Seen(two.dsn).run(until_empty=True)
    with pytest.raises(errors.TickNotFound, match="node one has queue 'q' up to tick"):
        Seen(two.dsn).move("one")
    with pytest.raises(errors.PgqError, match="no node 'none'"):
        Seen(two.dsn).move("none")


class Plain(pgqpy.Consumer):
    """An ordinary consumer, whose effects are outside of the databases."""

    queue = "q"
    consumer = "plain"
    seen: list[str | None]

    def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
        if event.type == "test":
            self.seen.append(event.data)


class Grouped(pgqpy.GroupConsumer):
    queue = "q"
    consumer = "grouped"
    partitions = 2
    seen: list[str | None]
    process_event = Plain.process_event


def go_on(before: pgqpy.Consumer, after: pgqpy.Consumer, nodes: list[Node]) -> None:
    """Read "a" and "b" at the root, and "c" at another node."""
    root, one, _ = nodes
    before.register()
    for data in "ab":
        ops.insert_ticked(root.conn, "q", data)
    before.run(until_empty=True)
    position = "select last_tick from pgq.get_consumer_info('q', %s)"
    tick = ops.value(root.conn, position, before.consumer)
    one.has(ops.insert_ticked(root.conn, "q", "c"))
    after.register(at_tick=tick)
    after.run(until_empty=True)


def test_an_ordinary_consumer_goes_on_at_its_tick_on_another_node(nodes: list[Node]) -> None:
    before, after = Plain(nodes[0].dsn), Plain(nodes[1].dsn)
    before.seen = after.seen = []
    go_on(before, after, nodes)
    assert after.seen == list("abc")


def test_a_group_goes_on_at_the_tick_of_each_partition_on_another_node(nodes: list[Node]) -> None:
    root, one, _ = nodes
    before, after = Grouped(root.dsn), Grouped(one.dsn)
    before.seen = after.seen = []
    before.register()
    ops.insert_ticked(root.conn, "q", *"abcdefgh")
    assert before.run_once()
    partitions = root.conn.execute(
        "select consumer_name, last_tick from pgq.get_group_partitions('q', 'grouped')"
    ).fetchall()
    ticks = {tick for _, tick in partitions}
    assert len(ticks) == 2
    one.has(ops.insert_ticked(root.conn, "q", "i"))
    after.register(at_tick=min(ticks))
    for place in partitions:
        one.conn.execute("select pgq.register_consumer_at('q', %s, %s)", place)
    after.run(until_empty=True)
    # It keeps the order of each key only.
    assert sorted(map(str, after.seen)) == list("abcdefghi")


class Remote(pgqpy.RemoteConsumer):
    queue = "q"
    consumer = "seen"

    def process_remote_event(self, target: pgqpy.Connection, event: Event) -> None:
        if event.type == "test":
            target.execute("insert into seen (data) values (%s)", [event.data])


def test_a_remote_consumer_goes_on_at_its_tick_on_another_node(nodes: list[Node]) -> None:
    root, one, two = nodes
    before, after = (Remote(each.dsn, target_dsn=two.dsn) for each in (root, one))
    go_on(before, after, nodes)
    assert effects(two.conn) == list("abc")
