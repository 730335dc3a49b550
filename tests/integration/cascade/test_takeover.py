"""Takeovers: another node becomes the root, and every event is at every node exactly once."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from pgqpy.cascade import (
    CascadedConsumer,
    Nodes,
    Takeover,
    _manage,
    _takeover,
    create_node,
    status,
    take_over_dead_root,
    takeover,
)
from pgqpy.cascade._manage import move_delayed
from pgqpy.cascade._nodes import Node
from pgqpy.connection import Connection
from pgqpy.errors import CascadeError
from pgqpy.event import Event
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import PATIENCE, running, wait_until
from tests.fixtures.fix_nodes import QUEUE, Killed, Tree, Writer


def three(tree: Tree) -> None:
    """a, the root, with the branches b and c; their workers run."""
    tree.nodes("a", "b", "c")
    tree.work()


def move(tree: Tree, name: str, to: str, die_at: str | None = None, **options: float) -> Takeover:
    """Take over, or be killed at a step."""

    def progress(step: str) -> None:
        if step == die_at:
            raise Killed

    with tree.open(name) as nodes:
        return takeover(nodes, to, progress=progress, **options)


@pytest.fixture
def near_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that must catch up have all the time they need, however short the timeout is."""
    monkeypatch.setattr(_takeover, "_NEAR", PATIENCE)


def goes_on(writer: Writer) -> None:
    """Wait until a few more events are committed."""
    before = len(writer.committed)
    wait_until(lambda: len(writer.committed) > before + 20)


def assert_every_node_has(tree: Tree, committed: list[str], root: str) -> None:
    """Each event once, at each node, in the order of its producer."""
    for name in tree.conns:
        tree.follows(name, root)
        assert tree.read(name) == committed


@pytest.fixture
def soon_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was stopped is not waited for."""
    for module in (_manage, _takeover):
        monkeypatch.setattr(module, "NOTICED", 0.1)


@pytest.mark.smoke
def test_a_planned_takeover_loses_and_doubles_nothing_while_producers_write(tree: Tree) -> None:
    three(tree)
    writer = Writer([tree.dsns["a"], tree.dsns["b"]])
    with running(writer):
        wait_until(lambda: len(writer.committed) > 100)
        done = move(tree, "c", "b")
        goes_on(writer)
    assert (done.new_root, done.old_root, done.left) == ("b", "a", ())
    assert done.paused is not None
    # It is a tenth of a second, where nothing else is under way.
    assert done.paused < timedelta(seconds=20)
    assert writer.pause < 20
    assert [tree.info(name).type for name in "abc"] == ["branch", "root", "branch"]
    assert [tree.info(name).provider for name in "abc"] == ["b", None, "b"]
    assert_every_node_has(tree, writer.committed, "b")


STEPS = (
    *("catch up", "writers", "gather", "pause", "last tick", "copy", "subscribe", "demote"),
    *("promote", "tell", "leave"),
)


@pytest.mark.slow
def test_a_planned_takeover_killed_at_any_step_is_completed_by_the_next_one(tree: Tree) -> None:
    three(tree)
    writer = Writer([tree.dsns["a"], tree.dsns["b"]])
    root, other = "a", "b"
    with running(writer):
        for step in STEPS:
            with pytest.raises(Killed):
                move(tree, "c", other, die_at=step)
            done = move(tree, "c", other)
            assert done.new_root == other, step
            assert tree.info(other).type == "root", step
            assert not tree.info(other).refuses_events, step
            assert tree.info(root).provider == other, step
            assert tree.info("c").provider == other, step
            root, other = other, root
            goes_on(writer)
    assert_every_node_has(tree, writer.committed, root)
    # No node keeps events for one that gets them from another.
    for name in "abc":
        with tree.open(name) as nodes:
            subscribers = set(nodes.here.subscribers())
        assert subscribers == {each for each in "abc" if tree.info(each).provider == name}


def test_an_interrupted_takeover_can_be_given_up(tree: Tree) -> None:
    three(tree)
    for step in ("last tick", "demote", "promote"):
        with pytest.raises(Killed):
            move(tree, "a", "b", die_at=step)
        with pytest.raises(psycopg.Error, match="disabled"):
            ops.insert(tree.conns["a"], QUEUE, "refused")
        move(tree, "a", "a")
        tree.insert("a", step)
        assert tree.info("a").type == "root"
    tree.follows("b", "a")
    assert tree.read("b") == ["last tick", "demote", "promote"]


def test_delayed_events_go_along_and_come_back_if_the_takeover_is_given_up(tree: Tree) -> None:
    three(tree)
    at = "select pgq.insert_event_at(%s, now() + '1 hour', 't', 'delayed')"
    due = "select array_agg(ev_data) from pgq.get_delayed_events(%s, 10)"
    tree.conns["a"].execute(at, [QUEUE])
    with pytest.raises(Killed):
        move(tree, "a", "b", die_at="demote")
    move(tree, "a", "a")
    assert ops.value(tree.conns["a"], due, QUEUE) == ["delayed"]
    move(tree, "a", "b")
    assert ops.value(tree.conns["a"], due, QUEUE) is None
    assert ops.value(tree.conns["b"], due, QUEUE) == ["delayed"]


def test_delayed_events_are_handed_over_in_parts_and_late_ones_too(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(tree)
    move(tree, "a", "b")
    call = Node.call
    parts: list[int] = []
    late = [1004]
    hand_over = (
        "insert into pgq_node.handed_over (queue_name, ev_id, due, ev_time, ev_data)"
        " values (%s, %s, now() + interval '1 hour', now(), repeat('x', 7000000))"
    )

    def hand_over_and_call(node: Node, function: str, *arguments: object, **more: Any) -> Any:
        if function == "take_delayed" and late:
            tree.conns["a"].execute(hand_over, [QUEUE, late.pop()])
        answer = call(node, function, *arguments, **more)
        if function == "take_delayed":
            parts.append(answer["taken"])
        return answer

    for number in (1000, 1001, 1002, 1003):
        tree.conns["a"].execute(hand_over, [QUEUE, number])
    monkeypatch.setattr(Node, "call", hand_over_and_call)
    with tree.open("b") as nodes:
        move_delayed(nodes.node("a"), nodes.node("b"))
    assert parts == [3, 2]
    taken = "select array_agg(ev_id order by ev_id) from pgq.waiting_event"
    assert ops.value(tree.conns["b"], taken) == [1000, 1001, 1002, 1003, 1004]
    assert ops.value(tree.conns["a"], "select count(*) from pgq_node.handed_over") == 0


def test_a_takeover_back_from_one_that_was_killed_delivers_no_delayed_event_twice(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(tree)
    at = "select pgq.insert_event_at(%s, now() + '1 hour', 't', 'delayed')"
    tree.conns["a"].execute(at, [QUEUE])
    call = Node.call

    def call_and_die(node: Node, function: str, *arguments: object, **more: Any) -> Any:
        answer = call(node, function, *arguments, **more)
        if function == "take_delayed":
            raise Killed
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Node, "call", call_and_die)
        with pytest.raises(Killed):
            move(tree, "a", "b")
    tree.conns["b"].execute("update pgq.delayed set due = now() - interval '1 hour'")
    assert ops.value(tree.conns["b"], "select moved from pgq.maint_delayed_events()") == 1
    move(tree, "b", "a")
    tree.conns["a"].execute("select pgq_node.maint_watermark(%s)", [QUEUE])
    assert ops.value(tree.conns["a"], "select count(*) from pgq.waiting_event") == 0
    assert tree.read("a") == ["delayed"]


def test_of_two_takeovers_at_once_one_makes_a_root(tree: Tree) -> None:
    three(tree)

    def progress(step: str) -> None:
        if step == "demote":
            move(tree, "a", "c")

    with tree.open("a") as nodes, pytest.raises(CascadeError, match="a follows c"):
        takeover(nodes, "b", progress=progress)
    assert [tree.info(name).type for name in "abc"] == ["branch", "branch", "root"]


@pytest.mark.usefixtures("near_in_the_end")
def test_a_takeover_waits_for_those_who_may_still_insert_or_is_refused(tree: Tree) -> None:
    three(tree)
    # One that has not inserted, and sees in its next statement that it may not, is not waited for.
    with psycopg.connect(tree.dsns["a"]) as idle:
        idle.execute("select pg_current_xact_id()")
        with psycopg.connect(tree.dsns["a"]) as inserter:
            ops.insert(inserter, QUEUE, "late")
            with pytest.raises(CascadeError, match=f"pid {inserter.info.backend_pid} "):
                move(tree, "a", "b", timeout=0.2)
            ops.insert(tree.conns["a"], QUEUE, "meanwhile")
        with psycopg.connect(tree.dsns["a"]) as reader:
            reader.isolation_level = IsolationLevel.REPEATABLE_READ
            reader.execute("select 1")
            with pytest.raises(CascadeError, match=f"pid {reader.info.backend_pid} "):
                move(tree, "a", "b", timeout=0.2)
            # Its snapshot is older than any refusal: it can insert.
            ops.insert(reader, QUEUE, "latest")
        move(tree, "a", "b")
        with pytest.raises(psycopg.Error, match="disabled"):
            ops.insert(idle, QUEUE, "refused")
    tree.follows("a", "b")
    for name in "ab":
        assert sorted(tree.read(name)) == ["late", "latest", "meanwhile"]


@pytest.mark.usefixtures("near_in_the_end")
def test_an_administrator_who_may_not_see_other_sessions_waits_for_them(tree: Tree) -> None:
    three(tree)

    def act_as_admin(conn: Connection) -> None:
        conn.execute("set role pgq_admin")

    with (
        psycopg.connect(tree.dsns["a"]) as writer,
        Nodes(QUEUE, tree.dsns["a"], check=act_as_admin) as nodes,
    ):
        writer.isolation_level = IsolationLevel.REPEATABLE_READ
        writer.execute("select 1")
        with pytest.raises(CascadeError, match=rf"pid {writer.info.backend_pid} of \w+(\n|, pid)"):
            takeover(nodes, "b", timeout=0.2)
        ops.insert(writer, QUEUE, "late")
        writer.commit()
        takeover(nodes, "b")
    tree.follows("a", "b")
    for name in "ab":
        assert tree.read(name) == ["late"]


@pytest.mark.usefixtures("near_in_the_end")
def test_a_takeover_that_would_pause_for_too_long_is_given_up(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 0.0
    monkeypatch.setattr(_takeover, "monotonic", lambda: monotonic() + passed)
    three(tree)
    tree.insert("a", "first", to="bc")

    def progress(step: str) -> None:
        nonlocal passed
        if step == "pause":
            tree.stop("b")
        if step == "copy":
            passed += 60

    with tree.open("a") as nodes, pytest.raises(CascadeError, match="did not get the") as given_up:
        takeover(nodes, "b", max_pause=60, progress=progress)
    assert "other nodes follow b now" in str(given_up.value)
    assert tree.info("a").type == "root"
    tree.insert("a", "second")
    tree.work("b")
    tree.follows("b", "a")

    # One that inserts nothing is not waited for, and yet holds a lock.
    with psycopg.connect(tree.dsns["a"]) as open_one:
        table = ops.value(open_one, "select queue_data_pfx from pgq.queue")
        open_one.commit()

        def lock(step: str) -> None:
            nonlocal passed
            if step == "last tick":
                open_one.execute(f"lock table {table} in row exclusive mode".encode())
                passed += 60

        with tree.open("a") as nodes, pytest.raises(CascadeError, match="hold locks for longer"):
            takeover(nodes, "b", max_pause=60, progress=lock)
        tree.insert("a", "third")


def test_a_restricted_queue_is_restricted_at_new_branches_and_has_no_open_root(
    tree: Tree, cli: Cli
) -> None:
    tree.nodes("a", "b")
    restrict = "queue", "restrict", QUEUE, "--dsn"
    cli.ok(*restrict, tree.dsns["a"])
    tree.node("c", "branch", "a")
    assert [tree.info(name).restricted for name in "abc"] == [True, False, True]
    tree.work()
    with tree.open("c") as nodes:
        assert [each.problem for each in status(nodes) if each.problem] == [
            "its queue is open, and restricted at a"
        ]
        with pytest.raises(CascadeError, match="pgqpy queue restrict"):
            takeover(nodes, "b")
    tree.stop("a")
    tree.die("a")
    with tree.open("c") as nodes, pytest.raises(CascadeError, match="pgqpy queue restrict"):
        take_over_dead_root(nodes, "b")
    cli.ok(*restrict, tree.dsns["b"])
    with tree.open("c") as nodes:
        assert take_over_dead_root(nodes, "b").new_root == "b"


@pytest.mark.usefixtures("soon_noticed")
def test_a_takeover_of_a_dead_root_takes_the_newest_fences_and_counts_the_rest(
    tree: Tree, cli: Cli
) -> None:
    three(tree)
    tree.insert("a", "everywhere", to="bc")
    tree.stop("b")
    tree.insert("a", "on c only", to="c")
    tree.stop("c")
    tree.insert("a", "lost 1", "lost 2")
    tree.stop("a")
    tree.die("a")
    with tree.open("b") as nodes:
        with pytest.raises(CascadeError, match="cannot be asked"):
            takeover(nodes, "b")
        # b has to get from c what it lacks, and its worker does not run.
        with pytest.raises(CascadeError, match="node c is newer than b"):
            take_over_dead_root(nodes, "b", timeout=0.1)
    tree.work("b", "c")
    with tree.open("b") as nodes:
        done = take_over_dead_root(nodes, "b")
    assert (done.new_root, done.old_root, done.left) == ("b", "a", ("a",))
    assert tree.info("c").provider == "b"
    tree.insert("b", "new", to="c")
    for name in "bc":
        assert tree.read(name) == ["everywhere", "on c only", "new"]

    tree.return_from_death("a")
    ops.insert(tree.conns["a"], QUEUE, "lost 3")
    with tree.open("a") as nodes:
        old = {each.name: each for each in status(nodes)}["a"]
    assert (old.rest, old.dead, old.problem) == (3, True, "an old root, fenced by b")
    with pytest.raises(psycopg.Error, match="disabled"):
        ops.insert(tree.conns["a"], QUEUE, "refused")
    with tree.open("b") as nodes, pytest.raises(CascadeError, match="old root, fenced by b"):
        takeover(nodes, "a")

    # Its rest is saved, inserted at the new root, and it becomes a branch of that.
    rest = cli.ok("node", "rest", QUEUE, "a", "--dsn", tree.dsns["b"], "--json")
    said = cli.fails("node", "drop", QUEUE, "a", "--dsn", tree.dsns["b"])
    assert "3 events that no other node has would be lost with it, and the positions of" in said
    assert "its consumers: reader\n" in said
    cli.ok("node", "drop", QUEUE, "a", "--force", "--dsn", tree.dsns["b"])
    cli.ok("event", "insert", QUEUE, "--file", "-", "--dsn", tree.dsns["b"], stdin=rest)
    assert create_node(QUEUE, "a", "branch", tree.dsns["a"], provider=tree.dsns["b"])
    ops.register(tree.conns["a"], QUEUE, "reader")
    tree.work("a")
    tree.insert("b", "last", to="ac")
    assert tree.read("c") == ["lost 1", "lost 2", "lost 3", "last"]
    with tree.open("c") as nodes:
        assert [(each.name, each.problem) for each in status(nodes)] == [
            ("b", None),
            ("a", None),
            ("c", None),
        ]


def test_a_node_follows_a_new_root_of_which_it_had_not_heard(tree: Tree) -> None:
    tree.nodes("a", "b", "c")
    tree.work("a")
    tree.stop("a")
    tree.die("a")
    tree.work("b", "c")
    with tree.open("c") as nodes:
        take_over_dead_root(nodes, "c")
    tree.insert("c", "new", to="b")
    assert tree.read("b") == ["new"]


@pytest.mark.slow
def test_a_takeover_of_a_dead_root_killed_at_any_step_is_completed_by_the_next_one(
    tree: Tree,
) -> None:
    tree.nodes(*"abcd")
    tree.work()
    tree.insert("a", "first", to="bcd")
    tree.stop("b")
    tree.insert("a", "second", to="c")
    tree.stop("a")
    tree.die("a")
    tree.work("b")
    steps: list[str] = []

    def progress(step: str) -> None:
        if step not in steps:
            steps.append(step)
            raise Killed

    done: Takeover | None = None
    while done is None:
        with tree.open("d") as nodes:
            try:
                done = take_over_dead_root(nodes, "b", progress=progress)
            except Killed:
                continue
    assert {"hold", "promote", "gather", "mark", "tell", "leave"} <= set(steps)
    tree.insert("b", "third", to="cd")
    for name in "cd":
        assert tree.info(name).provider == "b"
    for name in "bcd":
        assert not tree.info(name).paused
        assert tree.read(name) == ["first", "second", "third"]


@pytest.mark.usefixtures("soon_noticed")
def test_a_leaf_that_has_processed_more_than_all_branches_goes_on_behind_it(tree: Tree) -> None:
    tree.nodes("a", "b")
    tree.node("d", "leaf", "a")
    tree.work()
    tree.insert("a", "first", to="b")
    tree.stop("b")
    tree.insert("a", "on the leaf", to="d")
    ahead = tree.info("d").last_tick
    tree.stop("a")
    tree.die("a")
    with tree.open("b") as nodes:
        done = take_over_dead_root(nodes, "b")
    assert done.ahead == {"d": ahead}
    # What the new root takes comes after what the leaf has.
    assert done.last_tick == ahead
    tree.insert("b", "new", to="d")
    assert tree.info("d").last_tick > ahead


class Reader(CascadedConsumer):
    """Writes down what it reads at the root, in the database of a branch."""

    queue = QUEUE
    consumer = "far"
    poll_interval = 0.05

    def process_remote_event(self, target: Connection, event: Event) -> None:
        if event.type == "test":
            target.execute("insert into seen values (%s)", [event.data])


def test_no_id_that_only_the_dead_root_gave_comes_again_and_its_readers_go_on_behind_it(
    tree: Tree,
) -> None:
    three(tree)
    tree.conns["c"].execute("create table seen (data text)")
    Reader(tree.dsns["c"], provider="a").register()
    tree.insert("a", "everywhere", to="bc")
    for name in "bc":
        tree.stop(name)
    tree.insert("a", "lost", "and read")
    Reader(tree.dsns["c"]).run(until_empty=True)
    ids = "select max(ev_id), (select max(tick_id) from pgq.tick) from pgq.event_template"
    [given] = tree.conns["a"].execute(ids).fetchall()
    tree.stop("a")
    tree.die("a")
    tree.work("b", "c")
    with tree.open("b") as nodes:
        take_over_dead_root(nodes, "b")
    tree.insert("b", "new", to="c")
    Reader(tree.dsns["c"]).run(until_empty=True)
    seen = tree.conns["c"].execute("select data from seen").fetchall()
    assert [data for (data,) in seen] == ["everywhere", "lost", "and read", "new"]
    event, tick = given
    new = "select min(ev_id) from pgq.event_template where ev_data = 'new'"
    assert ops.value(tree.conns["b"], new) > event + 1_000_000
    ticks = "select min(tick_id) from pgq.tick where tick_id > %s"
    assert ops.value(tree.conns["b"], ticks, tick) > tick + 1_000_000
    # What was left out is not counted.
    pending = "select pending_events from pgq.get_consumer_info(%s, 'reader')"
    for name in "bc":
        assert 0 < ops.value(tree.conns[name], pending, QUEUE) < 100
