"""An old root that is back is fenced by its own worker, and by nothing that a producer can do."""

from __future__ import annotations

import logging

import psycopg
import pytest

from pgqpy.cascade import CascadedWorker, _lookout, create_node, take_over_dead_root
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_nodes import QUEUE, Tree

HIGH = "insert into pgq_node.root_epoch values (%s, 9000000000000000)"
LEARN = "select pgq_node.learn_epoch(%s, 9000000000000000)"
LOCATE = "select pgq_node.register_location(%s, %s, %s, false)"


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lookout, "PAUSE", 0.0)


def test_the_worker_of_an_old_root_fences_it_and_says_so_once(
    tree: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.nodes("a", "b")
    tree.work()
    tree.insert("a", "everywhere", to="b")
    tree.stop("b")
    tree.insert("a", "rest")
    tree.stop("a")
    tree.die("a")
    tree.work("b")
    with tree.open("b") as nodes:
        take_over_dead_root(nodes, "b")
    tree.return_from_death("a")
    tree.work("a")
    wait_until(lambda: tree.info("a").fenced_by == "b")
    with pytest.raises(psycopg.Error, match="disabled"):
        ops.insert(tree.conns["a"], QUEUE, "refused")
    tree.stop("a")
    CascadedWorker(tree.dsns["a"], queue=QUEUE).run_once()
    [told] = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert f"has 1 event that no other node has: `pgqpy node rest {QUEUE} a`" in told
    tree.insert("b", "new")
    assert tree.read("b") == ["everywhere", "new"]
    # What it had inserted does not come back by a setting.
    with pytest.raises(psycopg.Error, match="old root a"):
        tree.conns["a"].execute("update pgq.queue set queue_disable_insert = false")


def test_a_branch_that_has_copied_nothing_yet_knows_the_rest_of_the_root(tree: Tree) -> None:
    tree.node("a", "root")
    tree.work()
    tree.insert("a", "everywhere")
    tree.stop("a")
    tree.conns["a"].execute("select pgq.unregister_consumer(%s, 'reader')", [QUEUE])
    tree.conns["a"].execute("select pgq_node.set_global_watermark(%s, null)", [QUEUE])
    tree.node("b", "branch", "a")
    known = tree.info("b").last_tick
    assert known > 1
    tree.insert("a", "rest")
    tree.die("a")
    tree.work("b")
    with tree.open("b") as nodes:
        take_over_dead_root(nodes, "b")
    tree.return_from_death("a")
    CascadedWorker(tree.dsns["a"], queue=QUEUE).run_once()
    assert tree.info("a").fenced_tick == known
    rest = "select ev_data from pgq_node.get_rest_events(%s, %s) where ev_type not like 'pgq.%%'"
    assert tree.conns["a"].execute(rest, [QUEUE, known]).fetchall() == [("rest",)]


def test_no_node_fences_a_root_but_a_newer_root_that_it_knows(
    tree: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.nodes(*"abcd")
    worker = CascadedWorker(tree.dsns["a"], queue=QUEUE)
    # What PgQ's nodes believe of forged events: an epoch, and a root in another's database.
    forger = tree.database("z")
    create_node(QUEUE, "z", "root", forger)
    tree.conns["z"].execute(HIGH, [QUEUE])
    for name in "bc":
        tree.conns[name].execute(LEARN, [QUEUE])
        tree.conns[name].execute(LOCATE, [QUEUE, "z", forger])
    # The place of d leads to that root, too; another node cannot be asked.
    tree.conns["a"].execute(LOCATE, [QUEUE, "d", forger])
    tree.conns["a"].execute(LOCATE, [QUEUE, "gone", "host=/nonexistent dbname=gone"])
    for _ in range(12):
        worker.run_once()
    ops.insert(tree.conns["a"], QUEUE, "taken")
    assert tree.info("a").fenced_by is None
    [told] = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert "heard of a newer root" in told
    tree.conns["c"].execute("select pgq_node.promote_branch(%s)", [QUEUE])
    wait_until(lambda: worker.run_once() or tree.info("a").fenced_by == "c")
