"""Consumers of another database, killed at every point between reading a batch and finishing it,
and with their databases killed: what the target has in the end is exact."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter

import psycopg
import pytest

import pgqpy
from pgqpy import Batch, Event, Producer, RemoteConsumer
from pgqpy.embedded import Server
from pgqpy.schema import schema_sql
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import PATIENCE

#: A process that kills itself at a point, in the batch of the given number, counted from 1.
PROGRAM = """
import os, signal, sys
import pgqpy

dsn, target_dsn, kind, point, batches = sys.argv[1:]
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
        with open(os.environ["EFFECTS"], "a") as effects:
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


def run_once(
    dsn: str, target_dsn: str, kind: str, point: str, batch: int, effects: str = ""
) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, dsn, target_dsn, kind, point, str(batch)],
        env={"EFFECTS": effects},
        check=False,
        timeout=PATIENCE,
    )
    return done.returncode


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


@pytest.mark.slow
def test_killed_at_every_point_the_targets_histogram_is_exact(
    conn: Connection, dsn: str, target: Connection, target_dsn: str, queue: str
) -> None:
    # No key: what happens twice must show.
    target.execute("create table effect (data text, retry int)")
    fill(conn, queue)
    for point in POINTS:
        for batch in (1, 2):
            assert run_once(dsn, target_dsn, "remote", point, batch) == -signal.SIGKILL, point
    assert run_once(dsn, target_dsn, "remote", "", 0) == 0
    assert ops.value(conn, "select pgq.maint_retry_events()") > 0
    ops.tick(conn, queue)
    assert run_once(dsn, target_dsn, "remote", "", 0) == 0
    rows = target.execute("select data, retry from effect").fetchall()
    assert Counter(rows) == expected()


@pytest.mark.slow
@pytest.mark.parametrize("moved", ["to the end", "to the begin", "rewound", "not"])
def test_what_is_to_come_again_comes_although_the_consumer_was_moved_after_it_was_killed(
    conn: Connection,
    dsn: str,
    target: Connection,
    target_dsn: str,
    queue: str,
    cli: Cli,
    moved: str,
) -> None:
    """The target has committed, the queue does not know, and the open batch is dropped."""
    target.execute("create table effect (data text, retry int)")
    fill(conn, queue)
    for batch in (1, 3):
        killed = run_once(dsn, target_dsn, "remote", "target committed", batch)
        assert killed == -signal.SIGKILL
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
        assert run_once(dsn, target_dsn, "remote", "", 0) == 0
        conn.execute("select pgq.maint_retry_events()")
        ops.tick(conn, queue)
    rows = target.execute("select data, retry from effect").fetchall()
    assert Counter(rows) == expected()


@pytest.mark.slow
def test_killed_tracked_consumers_lose_nothing_and_repeat_an_event_a_kill_at_most(
    conn: Connection,
    dsn: str,
    target_dsn: str,
    queue: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    effects = tmp_path_factory.mktemp("effects") / "effects"
    fill(conn, queue)
    repeating = 0
    for point in ("opened", "begun", "in the middle", "before the end", "before finish"):
        for batch in (1, 2):
            killed = run_once(dsn, target_dsn, "tracked", point, batch, str(effects))
            assert killed == -signal.SIGKILL, point
            repeating += point == "in the middle"
    assert run_once(dsn, target_dsn, "tracked", "", 0, str(effects)) == 0
    ops.value(conn, "select pgq.maint_retry_events()")
    ops.tick(conn, queue)
    assert run_once(dsn, target_dsn, "tracked", "", 0, str(effects)) == 0
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


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["source", "target"])
def test_either_server_is_killed_and_comes_back(server: Server, dies: str) -> None:
    with (
        Server(version=server.version) as source,
        Server(version=server.version) as target,
    ):
        for each in (source, target):
            with psycopg.connect(each.dsn) as conn:
                conn.execute(schema_sql().encode())
        with psycopg.connect(target.dsn) as conn:
            conn.execute("create table effect (data text)")
        with psycopg.connect(source.dsn, autocommit=True) as conn:
            conn.execute("select pgq.create_queue('test_queue')")
        copy = Copy(source.dsn, target_dsn=target.dsn)
        failures: list[BaseException] = []

        def run() -> None:
            try:
                copy.run()
            except BaseException as error:
                failures.append(error)

        copy.register()
        thread = threading.Thread(target=run)
        thread.start()
        sent = 0
        try:
            for _ in range(3):
                with psycopg.connect(source.dsn, autocommit=True) as conn:
                    for _ in range(20):
                        Producer("test_queue").insert_event(conn, "t", str(sent))
                        sent += 1
                        ops.tick(conn, "test_queue")
                # A consumer that cannot connect to begin with gives up: it has to be at work.
                with psycopg.connect(target.dsn, autocommit=True) as conn:
                    while not ops.value(conn, "select count(*) from effect"):
                        assert thread.is_alive(), failures
                (source if dies == "source" else target).kill()
                (source if dies == "source" else target).restart()
                with psycopg.connect(target.dsn, autocommit=True) as conn:
                    while ops.value(conn, "select count(*) from effect") < sent:
                        assert thread.is_alive(), failures
        finally:
            copy.stop()
            thread.join(PATIENCE)
        assert failures == []
        with psycopg.connect(target.dsn) as conn:
            rows = conn.execute("select data from effect").fetchall()
        assert Counter(rows) == Counter((str(number),) for number in range(sent))
