"""Cascaded queues whose workers are killed, and whose links are cut: copies are exact in the end,
and a consumer that moves between the nodes has everything once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pgqpy.cascade import CascadedConsumer
from pgqpy.connection import Connection
from pgqpy.errors import ConnectionFailed, TickNotFound
from pgqpy.event import Event
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cascade import AddNode, Node
from tests.fixtures.fix_cli import Spawn
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_example import Run

pytestmark = pytest.mark.slow

#: A worker that kills itself at a point.
PROGRAM = """
import os, signal, sys
from pgqpy.cascade import CascadedWorker, _provider, _worker

dsn, point = sys.argv[1:]

def dying(function, before, after=None):
    async def call(*arguments, **options):
        die(before)
        result = await function(*arguments, **options)
        die(after)
        return result
    return call

def die(here):
    if here == point:
        os.kill(os.getpid(), signal.SIGKILL)

Provider = _provider.Provider
Provider.finish = dying(Provider.finish, "before finish", "after finish")
_worker.follow_news = dying(_worker.follow_news, "copied")
copy_in = _worker.copy_in

def die_or_copy(*names):
    die("ticks stored")
    return copy_in(*names)

_worker.copy_in = die_or_copy
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
    queue = "q"
    consumer = "seen"
    poll_interval = 0.1
    reconnect_cap = backoff_cap = 0.2

    def process_remote_event(self, target: Connection, event: Event) -> None:
        if event.type == "test":
            target.execute("insert into seen values (%s)", [event.data])


def test_kills_cuts_and_moves_for_a_while_lose_and_double_nothing(
    add_node: AddNode, tmp_path: Path, spawn: Spawn
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
    commands = {"cascade": [str(config)], f"{__name__}:Seen": ["--dsn", target.dsn]}

    def start(name: str) -> subprocess.Popen[str]:
        return spawn("run", name, *commands[name], stdout=quiet, stderr=quiet)

    running = {name: start(name) for name in commands}
    number = 0
    end = time.monotonic() + 12
    while time.monotonic() < end:
        for _ in range(chance.randrange(1, 30)):
            number += 1
            ops.insert(root.conn, "q", str(number))
        ops.tick(root.conn, "q")
        match chance.randrange(6):
            case 0 | 1:
                name = chance.choice([*commands])
                running[name].kill()
                running[name] = start(name)
            case 2:
                chance.choice(nodes).cut()
            case 3:
                move(target, chance.choice(["root", "one", "two"]))
            case _:
                time.sleep(chance.random() / 2)
    tick = ops.tick(root.conn, "q")
    for node in nodes[1:]:
        node.has(tick)
    wait_until(lambda: ops.value(target.conn, "select count(*) from seen") >= number)
    seen = [row[0] for row in target.conn.execute("select data from seen").fetchall()]
    assert seen == [str(each) for each in range(1, number + 1)]
    for node in nodes[1:]:
        assert node.batches() == root.batches()


def move(target: Node, provider: str) -> None:
    """Move the consumer, if that node has come as far."""
    with suppress(TickNotFound, ConnectionFailed):
        Seen(target.dsn).move(provider)
