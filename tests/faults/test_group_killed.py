"""Workers of a consumer group killed, stopped and started while partitions move: the events of each
key take effect exactly once, in their order.
"""

from __future__ import annotations

import random
import signal
import threading
from datetime import timedelta

import pytest

import pgqpy
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_example import Run
from tests.fixtures.fix_ticker import eventually

GROUP = "group"
KEYS = 12

WORKER = """
import sys
import pgqpy

class Worker(pgqpy.GroupConsumer):
    queue = "test_queue"
    consumer = "group"
    poll_interval = 0.02
    batch_size = 50
    retry_policy = pgqpy.FixedDelay(0.05, attempts=None)
    told = False

    def process_event(self, conn, event):
        conn.execute(
            "insert into effect (key, n, worker) values (%s, %s, %s)",
            [event.extra1, int(event.data), self.worker_name],
        )
        if not self.told:
            print("at work", flush=True)
            self.told = True
        # Some fail, and succeed at the second attempt.
        if event.id % 37 == 0 and not event.retry_count:
            raise ValueError(event.id)

Worker(sys.argv[1], worker_name=sys.argv[2]).run()
"""


@pytest.fixture
def group(conn: Connection, queue: str) -> pgqpy.GroupAdmin:
    conn.execute("create table effect (nr serial, key text, n int, worker text)")
    conn.execute("create table sent (key text, n int)")
    admin = pgqpy.GroupAdmin(conn)
    admin.create_group(queue, GROUP, key="ev_extra1", partitions=5, lease=timedelta(seconds=1))
    return admin


def send(conn: Connection, numbers: range) -> None:
    """A round of events, of all keys, for each number."""
    for n in numbers:
        with conn.transaction():
            conn.execute(
                "select pgq.insert_event('test_queue', 't', %s, 'k' || k, null, null, null)"
                " from generate_series(1, %s) k",
                [str(n), KEYS],
            )


class Traffic:
    """Events, ticks, rotation of the queue and of the logs, without end."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0

    def __enter__(self) -> Traffic:
        ops.rotate_whenever_asked(self._conn, "test_queue")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        while not self._done.wait(0.05):
            send(self._conn, range(self.rounds, self.rounds + 1))
            self.rounds += 1
            ops.tick(self._conn, "test_queue")
            ops.rotate(self._conn, "test_queue")
            self._conn.execute("update pgq.log set log_rotate_bytes = 1, log_carried_bytes = 0")
            self._conn.execute("select pgq.maint_rotate_logs()")


def all_in_order(conn: Connection, rounds: int) -> None:
    eventually(conn, "select count(*) >= %s from effect", rounds * KEYS, patience=3 * PATIENCE)
    found = conn.execute("select key, array_agg(n order by nr) from effect group by key").fetchall()
    assert dict(found) == {f"k{key}": list(range(rounds)) for key in range(1, KEYS + 1)}


@pytest.mark.slow
def test_workers_that_are_killed_lose_and_double_nothing_and_keep_the_order(
    conn: Connection, connect: Connect, dsn: str, group: pgqpy.GroupAdmin, run_python: Run
) -> None:
    rng = random.Random(5)
    alive = {name: run_python(WORKER, dsn, name) for name in ("w0", "w1", "w2")}
    with Traffic(connect()) as traffic:
        for turn in range(6):
            name = rng.choice(sorted(alive))
            process = alive.pop(name)
            # Somewhere in a batch, if it has had a partition by now.
            before = ops.value(conn, "select count(*) from effect")
            eventually(conn, "select count(*) > %s from effect", before, patience=3 * PATIENCE)
            process.kill()
            if turn % 2:
                group.resize_group("test_queue", GROUP, rng.randint(1, 9))
            alive[f"w{turn + 3}"] = run_python(WORKER, dsn, f"w{turn + 3}")
        # Not over before each of the last three has had its share, whenever it has started.
        eventually(
            conn,
            "select count(distinct worker) = 3 from effect where worker = any(%s)",
            list(alive),
            patience=3 * PATIENCE,
        )
    all_in_order(conn, traffic.rounds)
    assert group.get_parked_keys("test_queue", GROUP) == []


@pytest.mark.slow
def test_a_worker_that_was_stopped_for_longer_than_its_lease_cannot_commit(
    conn: Connection, dsn: str, queue: str, group: pgqpy.GroupAdmin, run_python: Run
) -> None:
    send(conn, range(1))
    first = run_python(WORKER, dsn, "first")
    eventually(conn, "select workers = 1 from pgq.get_group_info()", patience=PATIENCE)
    ops.tick(conn, queue)
    first.hear("at work")
    # In the middle of a batch, or between two.
    first.process.send_signal(signal.SIGSTOP)
    second = run_python(WORKER, dsn, "second")
    eventually(
        conn,
        "select count(*) = 5 from pgq.get_group_partitions('test_queue', 'group')"
        " where worker = 'second'",
        patience=3 * PATIENCE,
    )
    all_in_order(conn, 1)
    first.process.send_signal(signal.SIGCONT)
    # It notices, and is a member again.
    eventually(
        conn,
        "select count(distinct worker) = 2 from pgq.get_group_partitions('test_queue', 'group')",
        patience=3 * PATIENCE,
    )
    send(conn, range(1, 4))
    ops.tick(conn, queue)
    all_in_order(conn, 4)
    assert second.process.poll() is None
