"""Nodes are made, shown, paused, moved and dropped: by the command line, and in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pgqpy.dsn
from pgqpy.cascade import (
    CascadedConsumer,
    Node,
    Nodes,
    NodeType,
    change_provider,
    create_node,
    drop_node,
    status,
    take_over_dead_root,
    takeover,
)
from pgqpy.connection import Connection
from pgqpy.embedded import Server
from pgqpy.errors import CascadeError
from pgqpy.event import Event
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_nodes import QUEUE, Killed, Tree


@pytest.fixture
def run(cli: Cli) -> Callable[..., str]:
    """Runs `pgqpy node`, and returns its output."""
    return lambda command, *rest: cli.ok("node", command, QUEUE, *rest)


@pytest.mark.smoke
def test_the_command_line_makes_a_tree_shows_it_and_takes_it_apart(
    tree: Tree, cli: Cli, run: Callable[..., str]
) -> None:
    a, b, d = tree.database("a"), tree.database("b"), tree.database("d")
    made, _, line = run("create", "root", "a", "--dsn", f"{a}&password=no").splitlines()
    assert made == f"made a the root of queue {QUEUE}"
    assert line == f'    "{pgqpy.dsn.redact(a)}",'
    assert "exists already" in run("create", "root", "a", "--dsn", a)
    run("create", "branch", "b", "--dsn", b, "--provider", a)
    run("create", "leaf", "d", "--dsn", d, "--provider", b)
    leaf = ("node", "create", QUEUE, "leaf", "d", "--dsn", d, "--provider")
    assert "exists already" in cli.ok(*leaf, f"{b}&sslmode=prefer")
    assert "node d exists already, and follows b, not a" in cli.fails(*leaf, a)
    assert "takes the DSN of the node's database" in cli.fails(*leaf, "b")
    for command, dsn, said in (
        ("event insert cascaded t x", d, "is leaf d of the queue, and keeps no events: insert at"),
        ("queue create cascaded", d, "is leaf d of queue 'cascaded', and keeps no events"),
        ("event insert cascaded t x", b, "is branch b of a cascaded queue: insert at the root;"),
        ("queue config cascaded disable_insert false", b, "is branch b of queue 'cascaded'"),
        ("queue drop cascaded --force", b, f"Drop the node: pgqpy node drop {QUEUE} b"),
    ):
        assert said in cli.fails(*command.split(), "--dsn", dsn)
    ops.insert(tree.conns["a"], QUEUE, "x")
    tree.work()
    tree.ticked("a")
    tree.follows("d", "a")

    def settled() -> Any:
        """Workers insert events of their own, too."""
        found = cli.json("node", "status", QUEUE, "--dsn", d)
        return found if all(each["events_behind"] == 0 for each in found) else None

    found = wait_until(settled)
    assert [(each["name"], each["type"], each["depth"], each["provider"]) for each in found] == [
        ("a", "root", 0, None),
        ("b", "branch", 1, "a"),
        ("d", "leaf", 2, "b"),
    ]
    assert [(each["lag"], each["events_behind"], each["problem"]) for each in found] == [
        (0.0, 0, None)
    ] * 3

    assert run("pause", "b", "--dsn", d) == "paused node b\n"
    tree.insert("a", "y")
    behind = {each["name"]: each for each in cli.json("node", "status", QUEUE, "--dsn", d)}
    assert behind["b"]["paused"]
    assert behind["d"]["events_behind"] == behind["b"]["events_behind"] > 0
    assert behind["d"]["lag"] > 0
    assert "paused" in run("status", "--dsn", d)
    assert run("resume", "b", "--dsn", a) == "resumed node b\n"
    paused, *meaning = run("pause", "a", "--dsn", a).splitlines()
    assert (paused, len(meaning)) == ("paused node a", 1)
    tree.insert("a", "z", to="b")
    assert run("resume", "a", "--dsn", a) == "resumed node a\n"
    tree.follows("d", "a")

    said = run("change-provider", "d", "a", "--dsn", a)
    assert said == "node d now gets its events from a\n"
    assert "already gets" in run("change-provider", "d", "a", "--dsn", a)
    assert "writes were paused for" in run("takeover", "b", "--dsn", a)
    assert "b is the root, and a, d follow it" in cli.fails("node", "drop", QUEUE, "b", "--dsn", a)
    for name in "da":
        assert run("drop", name, "--dsn", b) == f"dropped node {name} of queue {QUEUE}\n"
    assert [each["name"] for each in cli.json("node", "status", QUEUE, "--dsn", b)] == ["b"]
    assert run("drop", "b", "--dsn", b) == f"dropped node b of queue {QUEUE}\n"


def test_the_tree_shows_what_a_worker_failed_at_in_short(tree: Tree, cli: Cli) -> None:
    tree.node("a", "root")
    dsn = tree.node("b", "branch", "a")
    for error, shown in (
        ("PgqError: provider a has no copy HINT: Choose another one.", "provider a has no copy"),
        ('ConnectionFailed: connection to "a", port 1 failed: FATAL: no role "w"', 'no role "w"'),
        (f"of Londiste: {'x' * 200}", f"of Londiste: {'x' * 74}..."),
    ):
        tree.conns["b"].execute("update pgq_node.local_state set cur_error = %s", [error])
        said = cli("node", "status", QUEUE, "--dsn", dsn)
        assert (said.exit_code, said.stdout.endswith(f"   failed: {shown}\n")) == (1, True)


def test_a_node_whose_making_was_killed_anywhere_can_be_made_again(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.nodes("a", "b")
    dsn = tree.database("c")
    call, left = Node.call, 0

    def dies(self: Node, *arguments: object, **options: object) -> object:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        return call(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Node, "call", dies)
    for calls in range(1, 20):
        left = calls
        try:
            made = create_node(QUEUE, "c", "branch", dsn, provider=tree.dsns["b"])
            break
        except Killed:
            continue
    assert made or calls > 5  # killed after the last call: it was made before
    left = -1
    with tree.open("c") as nodes:
        assert [each.problem for each in status(nodes)] == [None] * 3
    ops.register(tree.conns["c"], QUEUE, "reader")
    tree.work()
    tree.insert("a", "x", to="c")
    assert tree.read("c") == ["x"]


def test_what_cannot_be_asked_is_shown_and_a_dead_leaf_lets_rotation_go_on_when_dropped(
    tree: Tree,
) -> None:
    tree.nodes("a", "b")
    tree.node("d", "leaf", "b")
    tree.die("d")
    with tree.open("a") as nodes:
        found = {each.name: each for each in status(nodes)}
        assert "not currently accepting connections" in str(found["d"].problem)
        with pytest.raises(CascadeError, match="node d cannot be asked"):
            drop_node(nodes, "d")
        with pytest.raises(CascadeError, match="node b has subscribers: d"):
            drop_node(nodes, "b")
    watermark = "select count(*) from pgq.get_consumer_info(%s, '.d.watermark')"
    assert ops.value(tree.conns["b"], watermark, QUEUE) == 1
    with tree.open("a") as nodes:
        drop_node(nodes, "d", dead=True)
    assert ops.value(tree.conns["b"], watermark, QUEUE) == 0
    with tree.open("b") as nodes:
        assert [each.name for each in status(nodes)] == ["a", "b"]


def test_a_node_that_was_dropped_as_dead_and_is_back_copies_nothing_until_it_is_repaired(
    tree: Tree, run: Callable[..., str], cli: Cli
) -> None:
    tree.nodes("a", "b")
    tree.node("d", "leaf", "b")
    tree.work()
    tree.insert("a", "x", to="d")
    tree.die("b")
    with tree.open("a") as nodes:
        change_provider(nodes, "d", "a")
        drop_node(nodes, "b", dead=True)
    tree.return_from_death("b")
    tree.insert("a", "y")
    wait_until(lambda: "not registered at its provider a" in (tree.info("b").error or ""))
    assert tree.info("b").last_tick < tree.info("a").last_tick
    holds = "select count(*) from pgq.get_consumer_info(%s, 'b_worker')"
    assert ops.value(tree.conns["a"], holds, QUEUE) == 0
    there = ("--dsn", tree.dsns["b"])
    said = cli("node", "status", QUEUE, *there).stdout
    assert "not registered at a; failed: node b is not" in said
    assert "now gets" in run("change-provider", "b", "a", *there)
    tree.follows("b", "a")
    with tree.open("a") as nodes:
        assert [each.problem for each in status(nodes)] == [None] * 3
    # Dropped while it runs and can ask its provider: it does not subscribe again.
    tree.conns["a"].execute("select pgq_node.unregister_location(%s, 'b')", [QUEUE])
    tree.insert("a", "z")
    wait_until(lambda: "not registered at its provider a" in (tree.info("b").error or ""))
    assert ops.value(tree.conns["a"], holds, QUEUE) == 0
    # It still has d as its subscriber, which is at another provider now.
    assert "dropped node b" in run("drop", "b", "--force", *there)
    assert tree.info("d").provider == "a"


class Totals(CascadedConsumer):
    queue = QUEUE
    consumer = "totals"

    def process_remote_event(self, target: Connection, event: Event) -> None:
        raise NotImplementedError


def test_a_node_with_cascaded_consumers_or_that_others_read_is_not_dropped_unsaid(
    tree: Tree, run: Callable[..., str], cli: Cli
) -> None:
    for name, provider in (("a", None), ("b", "a"), ("d", "a")):
        tree.node(name, "leaf" if name == "d" else "branch" if provider else "root", provider)
    Totals(tree.dsns["d"]).register()
    there = ("--dsn", tree.dsns["a"])
    assert "node d has consumers: totals" in cli.fails("node", "drop", QUEUE, "d", *there)
    tree.work("a", "b", "d")
    tree.insert("a", "x", to="b")
    run("change-provider", "d", "b", "--consumer", "totals", *there)
    said = cli.fails("node", "drop", QUEUE, "b", "--force", *there)
    assert "consumers of other nodes read node b: totals of d" in said
    kept = "select count(*) from pgq.get_consumer_info(%s, 'totals')"
    assert ops.value(tree.conns["b"], kept, QUEUE) == 1
    run("drop", "d", "--force", *there)
    assert ops.value(tree.conns["b"], kept, QUEUE) == 0


def made(
    tree: Tree, name: str, kind: NodeType, database: str, provider: str | None = None, **more: str
) -> bool:
    """Make a node in a database, which may be a new one."""
    dsn = tree.dsns.get(database) or tree.database(database)
    return create_node(QUEUE, name, kind, dsn, provider=provider and tree.dsns[provider], **more)


REFUSED: list[tuple[Callable[[Tree, Nodes], object], str]] = [
    (lambda tree, nodes: made(tree, "b", "branch", "x1", "a"), "has a node b already"),
    (
        lambda tree, nodes: made(tree, "x", "root", "a"),
        "is a node of queue 'cascaded' already: root a",
    ),
    (
        lambda tree, nodes: [tree.with_queue("x2"), made(tree, "x", "branch", "x2", "a")],
        "has a queue 'cascaded' of its own",
    ),
    (
        lambda tree, nodes: [
            nodes.here.call(
                "register_location", "y", f"{tree.database('x6')}&sslmode=prefer", False
            ),
            made(tree, "x", "branch", "x6", "a"),
        ],
        "is known as node y already",
    ),
    (
        lambda tree, nodes: create_node(
            "other", "x", "branch", tree.database("x3"), provider=tree.dsns["a"]
        ),
        "has no node of queue 'other'",
    ),
    (lambda tree, nodes: made(tree, "x", "branch", "x4", "d"), "node d is a leaf"),
    (
        lambda tree, nodes: made(tree, "x", "root", "x5", location=tree.dsns["a"]),
        "the location leads to another database",
    ),
    (
        lambda tree, nodes: made(
            tree, "x", "root", "x8", location=f"{tree.dsns['a']}&hostaddr=::1"
        ),
        "may not set hostaddr",
    ),
    (
        lambda tree, nodes: nodes.here.call("register_location", "y", "host=y passfile=/x", False),
        "may not set passfile",
    ),
    (
        lambda tree, nodes: [
            tree.with_queue("x7"),
            made(tree, "x", "leaf", "x7", "a", combined_queue=QUEUE),
        ],
        "has no node of the combined queue 'cascaded'",
    ),
    (lambda tree, nodes: made(tree, "x", "root", "a", "b"), "a root has no provider"),
    (lambda tree, nodes: made(tree, "x", "branch", "a"), "a branch needs a provider"),
    (lambda tree, nodes: made(tree, "x y", "root", "a"), "cannot be the name of a node"),
    (lambda tree, nodes: change_provider(nodes, "b", "c"), "that would be a cycle"),
    (lambda tree, nodes: change_provider(nodes, "b", "b"), "cannot follow itself"),
    (lambda tree, nodes: change_provider(nodes, "a", "b"), "node a is the root"),
    (lambda tree, nodes: change_provider(nodes, "x", "b"), "has no node x"),
    (
        lambda tree, nodes: change_provider(nodes, "b", "c", consumer="reader"),
        "node b has no cascaded consumer reader: it has b_worker",
    ),
    (lambda tree, nodes: change_provider(nodes, "d", "e", wait=0.05), "node e is behind d"),
    (lambda tree, nodes: takeover(nodes, "d"), "node d is a leaf"),
    (lambda tree, nodes: take_over_dead_root(nodes, "d"), "node d is a leaf"),
    (lambda tree, nodes: take_over_dead_root(nodes, "b", without=("zzz",)), "has no node zzz"),
    (lambda tree, nodes: take_over_dead_root(nodes, "b"), "node a is the root, and it works"),
    (lambda tree, nodes: drop_node(nodes, "a"), "node a is the root, and"),
    (lambda tree, nodes: drop_node(nodes, "b", force=True), "node b has subscribers: c"),
    (lambda tree, nodes: drop_node(nodes, "c"), "has consumers: reader"),
]


def test_bad_input_is_refused_and_nothing_changes(tree: Tree) -> None:
    """The tree: a <- b <- c, a <- d (a leaf), a <- e, whose worker does not run."""
    tree.nodes("a", "b")
    tree.node("c", "branch", "b")
    tree.node("d", "leaf", "a")
    tree.node("e", "branch", "a")
    tree.work("a", "b", "c", "d")
    tree.insert("a", "x", to="cd")
    for act, message in REFUSED:
        with tree.open("a") as nodes:
            before = {name: (info.type, info.provider) for name, info in nodes.infos().items()}
            with pytest.raises(CascadeError) as refused:
                act(tree, nodes)
            assert message in refused.value.message
            assert {
                name: (info.type, info.provider) for name, info in nodes.infos().items()
            } == before, message


def test_two_roots_and_versions_that_differ_are_refused(tree: Tree, server: Server) -> None:
    tree.nodes("a", "b")
    conn = tree.conns["b"]
    conn.execute("select pgq_node.promote_branch(%s)", [QUEUE])
    conn.execute("update pgq_node.root_epoch set epoch = 0")
    with tree.open("a") as nodes:
        assert [each.problem for each in status(nodes)].count(None) == 1
        assert any("two roots" in str(each.problem) for each in status(nodes))
        for name in "ab":
            with pytest.raises(CascadeError, match="has two roots: a and b"):
                takeover(nodes, name)
    dsn = tree.database("c")
    tree.conns["c"].execute(
        "create or replace function pgq_node.version() returns text language sql return '2.1'"
    )
    with pytest.raises(CascadeError, match=r"versions of pgq_node differ: 2\.1 here, 3\.5"):
        create_node(QUEUE, "c", "leaf", dsn, provider=tree.dsns["a"])
