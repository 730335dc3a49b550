"""A consumer outlives its server: a restart, or a crash, is a pause."""

from __future__ import annotations

import queue as queues
import threading

import psycopg
import pytest

import pgqpy
from pgqpy import Admin, Batch, BatchStats, Consumer, Event, errors
from pgqpy.embedded import Server
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import PATIENCE, Background
from tests.fixtures.fix_db import Connection


@pytest.mark.slow
def test_events_are_delivered_once_across_restarts_and_crashes(
    own_server: Server, background: Background
) -> None:
    done: queues.Queue[str | None] = queues.Queue()
    trouble: queues.Queue[tuple[Exception, int | None]] = queues.Queue()

    class Recording(Consumer):
        queue = "q"
        consumer = "c"
        reconnect_cap = 0.2

        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            conn.execute("insert into seen values (%s)", [event.data])
            if event.data == "crash" and not crashed:
                crashed.append(True)
                assert ticked.wait(PATIENCE)
                own_server.kill()

        def on_error(self, error: Exception, batch: Batch | None) -> None:
            trouble.put((error, batch.id if batch else None))

        def on_batch(self, stats: BatchStats) -> None:
            done.put("batch")

    def send(conn: Connection, data: str) -> None:
        ops.insert(conn, "q", data)
        ops.tick(conn, "q")

    def deliver(data: str) -> None:
        with psycopg.connect(own_server.dsn, autocommit=True) as conn:
            send(conn, data)
            while done.get(timeout=PATIENCE):
                if conn.execute("select 1 from seen where data = %s", [data]).fetchone():
                    return

    crashed: list[bool] = []
    ticked = threading.Event()
    with psycopg.connect(own_server.dsn, autocommit=True) as conn:
        Admin(conn).create_queue("q")
        conn.execute("create table seen (data text)")
    consumer = Recording(own_server.dsn)
    consumer.register()
    background(consumer)
    deliver("before")

    # While it waits.
    own_server.restart()
    error, _ = trouble.get(timeout=PATIENCE)
    assert isinstance(error, errors.ConnectionFailed)
    deliver("after the restart")

    # In the middle of a batch, with an effect that is not committed.
    with psycopg.connect(own_server.dsn, autocommit=True) as conn:
        send(conn, "crash")
    # The consumer may hear of the tick before we hear that it is made.
    ticked.set()
    while trouble.get(timeout=PATIENCE)[1] is None:
        pass
    own_server.restart()
    deliver("after the crash")

    with psycopg.connect(own_server.dsn) as conn:
        seen = [data for (data,) in conn.execute("select data from seen")]
    assert sorted(seen) == ["after the crash", "after the restart", "before", "crash"]
