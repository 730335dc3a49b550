"""Consumers of another database, killed at every point between reading a batch and finishing it,
and with their databases killed: what the target has in the end is exact."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

import pgqpy
from pgqpy import Batch, Event, Producer, RemoteConsumer
from pgqpy.embedded import Server
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import Background
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import Run

pytestmark = pytest.mark.slow

#: A process that kills itself at a point, in the batch of the given number, counted from 1.
PROGRAM = """
import os, signal, sys
import pgqpy

dsn, target_dsn, kind, point, batches, file = sys.argv[1:]
left = int(batches)

def at(here):
    if left == 0 and here == point:
        os.kill(os.getpid(), signal.SIGKILL)

finish = pgqpy.Batch.finish

def dying_finish(batch, conn):
    at("before finish")
    finish(batch, conn)
    at("after finish")

pgqpy.Batch.finish = dying_finish

class Remote(pgqpy.RemoteConsumer):
    queue = "test_queue"
    consumer = "copy"
    batch_size = 10

    def process_batch(self, conn, batch):
        global left
        left -= 1
        at("opened")
        super().process_batch(conn, batch)
        at("target committed")

    def process_remote_batch(self, conn, batch, target):
        at("begun")
        for number, event in enumerate(batch):
            target.execute("insert into effect values (%s, %s)", [event.data, event.retry_count])
            if int(event.data) % 7 == 0 and not event.retry_count:
                event.retry(0)
            if number == 3:
                at("in the middle")
        at("before the end")

    def _end(self, target, batch):
        super()._end(target, batch)
        at("remembered")

class Tracked(pgqpy.TrackedConsumer):
    queue = "test_queue"
    consumer = "copy"
    batch_size = 10

    def process_batch(self, conn, batch):
        global left
        left -= 1
        at("opened")
        super().process_batch(conn, batch)
        at("before the end")

    def process_tracked_event(self, target, event):
        at("begun")
        with open(file, "a") as effects:
            print(event.data, event.retry_count, file=effects)
        if int(event.data) % 10 == 3:
            at("in the middle")
        if int(event.data) % 7 == 0 and not event.retry_count:
            event.retry(0)

{"remote": Remote, "tracked": Tracked}[kind](dsn, target_dsn=target_dsn).run(until_empty=True)
"""
POINTS = [
    "opened",
    "begun",
    "in the middle",
    "before the end",
    "remembered",
    "target committed",
    "before finish",
    "after finish",
]
EVENTS = 300


Life = Callable[..., int]


@pytest.fixture
def live(dsn: str, target_dsn: str, run_python: Run, effects: Path) -> Life:
    """``live("tracked", "begun")``: the exit code of a consumer that is killed there."""

    def live_once(kind: str = "remote", point: str = "", batch: int = 2) -> int:
        program = run_python(PROGRAM, dsn, target_dsn, kind, point, batch, effects)
        return program.wait()

    return live_once


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    """The file that the tracked consumer writes."""
    return tmp_path / "effects"


def come_again(conn: Connection, queue: str) -> int:
    """Put back the events that are to come again, and return their number."""
    number: int = ops.value(conn, "select pgq.maint_retry_events()")
    ops.tick(conn, queue)
    return number


def fill(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "copy")
    for number in range(EVENTS):
        Producer(queue).insert_event(conn, "t", str(number))
        if number % 10 == 9:
            ops.tick(conn, queue)


def expected() -> Counter[tuple[str, int]]:
    """Each event once; and once more those that were put back."""
    first = Counter((str(number), 0) for number in range(EVENTS))
    again = Counter((str(number), 1) for number in range(0, EVENTS, 7))
    return first + again


def test_killed_at_every_point_the_targets_histogram_is_exact(
    conn: Connection, target: Connection, queue: str, live: Life
) -> None:
    # No key: what happens twice must show.
    target.execute("create table effect (data text, retry int)")
    fill(conn, queue)
    for point in POINTS:
        assert live(point=point) == -signal.SIGKILL, point
    # The same batch again.
    assert live(point="target committed", batch=1) == -signal.SIGKILL
    assert live() == 0
    assert come_again(conn, queue) > 0
    assert live() == 0
    rows = target.execute("select data, retry from effect").fetchall()
    assert Counter(rows) == expected()


@pytest.mark.parametrize("moved", ["to the end", "to the begin", "rewound", "not"])
def test_what_is_to_come_again_comes_although_the_consumer_was_moved_after_it_was_killed(
    conn: Connection,
    target: Connection,
    target_dsn: str,
    queue: str,
    cli: Cli,
    live: Life,
    moved: str,
) -> None:
    """The target has committed, the queue does not know, and the open batch is dropped."""
    target.execute("create table effect (data text, retry int)")
    fill(conn, queue)
    for batch in (1, 3):
        assert live(point="target committed", batch=batch) == -signal.SIGKILL
        begin, end = conn.execute(
            "select sub_last_tick, sub_next_tick from pgq.subscription where sub_batch is not null"
        ).fetchall()[0]
        match moved:
            case "to the end":
                conn.execute("select pgq.register_consumer_at(%s, 'copy', %s)", [queue, end])
            case "to the begin":
                conn.execute("select pgq.register_consumer_at(%s, 'copy', %s)", [queue, begin])
            case "rewound":
                cli.ok("consumer", "rewind", queue, "copy", "--target-dsn", target_dsn)
    for _ in range(3):
        # Also to be begun again when nothing is missing: nothing comes twice by that.
        assert live() == 0
        come_again(conn, queue)
    rows = target.execute("select data, retry from effect").fetchall()
    assert Counter(rows) == expected()


def test_killed_tracked_consumers_lose_nothing_and_repeat_an_event_a_kill_at_most(
    conn: Connection, queue: str, live: Life, effects: Path
) -> None:
    fill(conn, queue)
    repeating = 0
    points = ["opened", "begun", "in the middle", "before the end", "before finish"]
    for point in [*points, "in the middle"]:
        assert live("tracked", point) == -signal.SIGKILL, point
        repeating += point == "in the middle"
    assert live("tracked") == 0
    come_again(conn, queue)
    assert live("tracked") == 0
    seen = Counter(
        (data, int(retry)) for data, retry in map(str.split, effects.read_text().splitlines())
    )
    assert not expected() - seen
    more = seen - expected()
    # Events that were put back are not done until the batch is finished.
    once = [key for key in more.elements() if int(key[0]) % 7]
    assert len(once) <= repeating


class Copy(RemoteConsumer):
    queue = "test_queue"
    consumer = "copy"
    poll_interval = 0.05
    backoff_first = 0.05
    backoff_cap = 0.2
    reconnect_cap = 0.2

    def process_remote_batch(
        self, conn: pgqpy.Connection, batch: Batch, target: pgqpy.Connection
    ) -> None:
        for event in batch:
            self.process_remote_event(target, event)

    def process_remote_event(self, target: pgqpy.Connection, event: Event) -> None:
        target.execute("insert into effect values (%s)", [event.data])


def test_either_server_is_killed_and_comes_back(
    start_mortal: Callable[[], Server], background: Background
) -> None:
    source, target = start_mortal(), start_mortal()
    with psycopg.connect(target.dsn) as conn:
        conn.execute("create table effect (data text)")
    with psycopg.connect(source.dsn, autocommit=True) as conn:
        conn.execute("select pgq.create_queue('test_queue')")
    copy = Copy(source.dsn, target_dsn=target.dsn)
    copy.register()
    thread = background(copy)
    arrived = "select count(*) from effect"
    sent = 0
    for dies in (source, target) * 2:
        with psycopg.connect(source.dsn, autocommit=True) as conn:
            for _ in range(20):
                Producer("test_queue").insert_event(conn, "t", str(sent))
                sent += 1
                ops.tick(conn, "test_queue")
        # A consumer that cannot connect to begin with gives up: it has to be at work.
        with psycopg.connect(target.dsn, autocommit=True) as conn:
            while not ops.value(conn, arrived):
                assert thread.is_alive()
        dies.kill()
        dies.restart()
        with psycopg.connect(target.dsn, autocommit=True) as conn:
            while ops.value(conn, arrived) < sent:
                assert thread.is_alive()
    with psycopg.connect(target.dsn) as conn:
        rows = conn.execute("select data from effect").fetchall()
    assert Counter(rows) == Counter((str(number),) for number in range(sent))
