"""Cascaded queues whose workers are killed, and whose links are cut: copies are exact in the end,
and a consumer that moves between the nodes has everything once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pgqpy.cascade import CascadedConsumer
from pgqpy.errors import ConnectionFailed, TickNotFound
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cascade import AddNode, Node
from tests.fixtures.fix_cli import Spawn
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_example import Program, Run

pytestmark = pytest.mark.slow

#: A worker that kills itself at a point.
PROGRAM = """
import os, signal, sys
from pgqpy.cascade import CascadedWorker, _provider, worker

dsn, point = sys.argv[1:]

def die(here):
    if here == point:
        os.kill(os.getpid(), signal.SIGKILL)

finish, follow, copy = _provider.Provider.finish, worker.follow_news, worker.copy_in

def dying_finish(*arguments, **options):
    die("before finish")
    finish(*arguments, **options)
    die("after finish")

def dying_news(*arguments, **options):
    die("copied")
    return follow(*arguments, **options)

def dying_copy(*arguments):
    die("ticks stored")
    return copy(*arguments)

_provider.Provider.finish = dying_finish
worker.follow_news = dying_news
worker.copy_in = dying_copy
CascadedWorker(dsn, queue="q").run(until_empty=True)
"""
POINTS = ["ticks stored", "copied", "before finish", "after finish"]


def test_a_worker_killed_at_each_point_copies_nothing_twice(
    add_node: AddNode, run_python: Run
) -> None:
    root = add_node("root")
    branch = add_node("branch", root)
    for point in [*POINTS, *POINTS]:
        for data in "abc":
            ops.insert_ticked(root.conn, "q", data)
        assert run_python(PROGRAM, branch.dsn, point).wait() == -signal.SIGKILL, point
        # Whole ticks, or nothing.
        assert branch.state["last_tick_id"] == max((tick[0] for tick in branch.ticks()), default=1)
    branch.catch_up()
    assert branch.batches() == root.batches()
    position = ops.value(
        root.conn, "select last_tick from pgq.get_consumer_info('q', 'branch_worker')"
    )
    assert position == branch.state["last_tick_id"]


class Seen(CascadedConsumer):
    """Registers and moves the consumer; another process runs."""

    queue = "q"
    consumer = "seen"


CONSUMER = """
import sys
from pgqpy.cascade import CascadedConsumer

class Seen(CascadedConsumer):
    queue = "q"
    consumer = "seen"
    poll_interval = 0.1
    reconnect_cap = backoff_cap = 0.2

    def process_remote_event(self, target, event):
        if event.type == "test":
            target.execute("insert into seen values (%s)", [event.data])

Seen(sys.argv[1]).run()
"""


def test_kills_cuts_and_moves_for_a_while_lose_and_double_nothing(
    add_node: AddNode, tmp_path: Path, spawn: Spawn, run_python: Run
) -> None:
    root = add_node("root")
    one = add_node("one", root)
    nodes = [root, one, add_node("two", one), add_node("three", root)]
    root.conn.execute("select pgq.ticker('q')")
    for node in nodes[1:3]:
        node.catch_up()
    target = nodes[3]
    target.conn.execute("create table seen (data text)")
    Seen(target.dsn).register()
    config = tmp_path / "cascade.toml"
    config.write_text(
        f"nodes = {json.dumps([node.dsn for node in nodes])}\n"
        "poll_interval = 0.1\nwatermark_interval = 0.2\n"
    )
    chance = random.Random(20)
    quiet = subprocess.DEVNULL
    start: dict[str, Callable[[], subprocess.Popen[str] | Program]] = {
        "cascade": lambda: spawn("run", "cascade", str(config), stdout=quiet, stderr=quiet),
        "consumer": lambda: run_python(CONSUMER, target.dsn),
    }
    running = {name: begin() for name, begin in start.items()}
    number = 0
    end = time.monotonic() + 12
    while time.monotonic() < end:
        for _ in range(chance.randrange(1, 30)):
            number += 1
            ops.insert(root.conn, "q", str(number))
        ops.tick(root.conn, "q")
        match chance.randrange(6):
            case 0 | 1:
                name = chance.choice(list(start))
                running[name].kill()
                running[name] = start[name]()
            case 2:
                cut(chance.choice(nodes))
            case 3:
                move(target, chance.choice(["root", "one", "two"]))
            case _:
                time.sleep(chance.random() / 2)
    tick = ops.tick(root.conn, "q")
    for node in nodes[1:]:
        wait_until(lambda node=node: node.state["last_tick_id"] >= tick)  # type: ignore[misc]
    wait_until(lambda: ops.value(target.conn, "select count(*) from seen") >= number)
    seen = [row[0] for row in target.conn.execute("select data from seen").fetchall()]
    assert seen == [str(each) for each in range(1, number + 1)]
    for node in nodes[1:]:
        assert node.batches() == root.batches()


def cut(node: Node) -> None:
    """End the sessions of workers and consumers in the database of a node."""
    node.conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name like 'pgqpy%' and datname = current_database()"
    )


def move(target: Node, provider: str) -> None:
    """Move the consumer, if that node has come as far."""
    with suppress(TickNotFound, ConnectionFailed):
        Seen(target.dsn).move(provider)
