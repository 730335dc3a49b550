"""Workers that share a position, killed wherever it hurts: each event has its effect once."""

from __future__ import annotations

import signal

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import Run
from tests.fixtures.fix_ticker import eventually

WORKER = """
import os, signal, sys
from datetime import timedelta
import pgqpy

class Worker(pgqpy.CoopConsumer):
    queue = "test_queue"
    consumer = "shared"
    batch_size = None
    dead_after = timedelta(seconds=1)
    poll_interval = 0.1
    point, left = sys.argv[2], int(sys.argv[3])

    def at(self, point):
        if point == self.point:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def process_event(self, conn, event):
        conn.execute("insert into effect values (%s, %s)", [event.id, event.retry_count])
        if event.id % 7 == 0 and not event.retry_count:
            event.retry(0)
        self.at("event")

    def process_batch(self, conn, batch):
        self.at("opened")
        super().process_batch(conn, batch)
        self.at("processed")

    def on_batch(self, stats):
        self.at("finished")

Worker(sys.argv[1]).run()
"""
EVENTS_A_BATCH, BATCHES = 20, 30
POINTS = ("opened", "event", "processed", "finished")


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_when_workers_come_and_are_killed_and_go(
    conn: Connection, dsn: str, queue: str, run_python: Run
) -> None:
    conn.execute("create table effect (ev_id bigint, retry int)")
    ops.register(conn, queue, "shared")
    ids: list[int] = []

    def fill() -> None:
        for _ in range(BATCHES // 3):
            ids.extend(ops.insert(conn, queue, "event") for _ in range(EVENTS_A_BATCH))
            ops.tick(conn, queue)

    for life in range(1, 3):
        fill()
        for victim in [run_python(WORKER, dsn, point, life) for point in POINTS]:
            assert victim.wait() == -signal.SIGKILL

    fill()
    last = run_python(WORKER, dsn, "event", 3)
    assert last.wait() == -signal.SIGKILL
    assert ops.value(conn, "select count(*) from pgq.subscription where sub_batch is not null")

    survivors = [run_python(WORKER, dsn, "nowhere", 0) for _ in range(3)]
    expected = len(ids)
    eventually(conn, "select count(*) >= %s from effect where retry = 0", expected)
    while ops.value(conn, "select pgq.maint_retry_events()"):
        pass
    ops.tick(conn, queue)
    again = [ev_id for ev_id in ids if ev_id % 7 == 0]
    eventually(conn, "select count(*) >= %s from effect where retry = 1", len(again))
    assert [survivor.terminate() for survivor in survivors] == [0, 0, 0]

    effects = conn.execute("select ev_id, retry from effect order by retry, ev_id").fetchall()
    assert effects == [(ev_id, 0) for ev_id in ids] + [(ev_id, 1) for ev_id in again]
    left = conn.execute("select consumer_name, current_batch from pgq.get_consumer_info()")
    assert left.fetchall() == [("shared", None)]
