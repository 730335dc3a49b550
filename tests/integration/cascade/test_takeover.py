"""Takeovers: another node becomes the root, and every event is at every node exactly once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta

import psycopg
import pytest
from psycopg import IsolationLevel

from pgqpy.cascade import Takeover, status, take_over_dead_root, takeover
from pgqpy.errors import CascadeError
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import running, wait_until
from tests.fixtures.fix_nodes import QUEUE, Killed, Tree, Writer


def three(tree: Tree) -> None:
    """a, the root, with the branches b and c; their workers run."""
    tree.node("a", "root")
    tree.node("b", "branch", "a")
    tree.node("c", "branch", "a")
    tree.work()


def move(
    tree: Tree, name: str, to: str, die_at: str | None = None, **options: float
) -> Takeover:
    """Take over, or be killed at a step."""

    def progress(step: str) -> None:
        if step == die_at:
            raise Killed

    with ExitStack() as stack:
        nodes = stack.enter_context(tree.open(name))
        return takeover(nodes, to, progress=progress, **options)


def assert_every_node_has(tree: Tree, committed: list[str], root: str) -> None:
    """Each event once, at each node, in the order of its producer."""
    for name in tree.conns:
        tree.follows(name, root)
        assert tree.read(name) == committed


@pytest.mark.smoke
def test_a_planned_takeover_loses_and_doubles_nothing_while_producers_write(tree: Tree) -> None:
    three(tree)
    writer = Writer([tree.dsns["a"], tree.dsns["b"]])
    with running(writer):
        wait_until(lambda: len(writer.committed) > 100)
        done = move(tree, "c", "b")
        before = len(writer.committed)
        wait_until(lambda: len(writer.committed) > before + 100)
    assert (done.new_root, done.old_root, done.left) == ("b", "a", ())
    assert done.paused is not None
    assert done.paused < timedelta(seconds=2)
    assert writer.pause < 2
    assert [tree.info(name).type for name in "abc"] == ["branch", "root", "branch"]
    assert [tree.info(name).provider for name in "abc"] == ["b", None, "b"]
    assert_every_node_has(tree, writer.committed, "b")
