"""Tick ids and event ids never go back or repeat: not after a crash, a restart, a rollback."""

from __future__ import annotations

import psycopg
import pytest

from pgqpy.embedded import Server
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection, with_snapshot

pytestmark = pytest.mark.smoke


@pytest.fixture
def mortal(mortal: Server) -> Server:
    """With a queue."""
    with psycopg.connect(mortal.dsn, autocommit=True) as conn:
        conn.execute("select pgq.create_queue('q')")
        ops.register(conn, "q", "c")
    return mortal


@pytest.mark.slow
def test_no_id_comes_twice_after_a_crash(mortal: Server) -> None:
    """Without synchronous commit a crash may take transactions with it. A program that acted on
    an id that came again would have acted on something else. So every commit that gives out ids
    is durable."""
    ticks: list[int] = []
    ids: list[int] = []
    batches: list[int] = []
    for synchronous_commit in ("off", "on", "off"):
        with psycopg.connect(mortal.dsn, autocommit=True) as conn:
            conn.execute(f"set synchronous_commit = {synchronous_commit}".encode())
            for _ in range(5):
                ids.append(ops.insert(conn, "q", "event"))
                ticks.append(ops.tick(conn, "q"))
            batches.append(ops.next_batch(conn, "q", "c"))
            ops.finish(conn, batches[-1])
            batches.append(ops.next_batch(conn, "q", "c"))
            mortal.kill()
        mortal.restart()
        with psycopg.connect(mortal.dsn, autocommit=True) as conn:
            assert ops.value(conn, "select max(tick_id) from pgq.tick") == ticks[-1]
            if ops.value(conn, "select pgq.next_batch('q', 'c')") == batches[-1]:
                ops.finish(conn, batches[-1])
    assert ticks == sorted(set(ticks))
    assert ids == sorted(set(ids))
    assert batches == sorted(set(batches))


def test_ticks_are_durable_whatever_is_set(conn: Connection, connect: Connect, queue: str) -> None:
    """A consumer elsewhere may act on a tick as soon as it sees it."""
    daemon = connect(autocommit=False)
    daemon.execute("set synchronous_commit = off")
    daemon.commit()
    ops.tick(daemon, queue)
    assert ops.value(daemon, "show synchronous_commit") == "on"
    daemon.commit()
    assert ops.value(daemon, "show synchronous_commit") == "off"


def test_rolled_back_ids_do_not_come_again(conn: Connection, connect: Connect, queue: str) -> None:
    both = connect(autocommit=False)
    ev_id, tick_id = ops.insert(both, queue, "undone"), ops.tick(both, queue)
    both.rollback()
    assert ops.insert(conn, queue, "done") > ev_id
    assert ops.tick(conn, queue) > tick_id


def test_a_dropped_queues_name_starts_anew_with_another_id(conn: Connection, queue: str) -> None:
    number = "select queue_id from pgq.queue where queue_name = %s"
    before = ops.value(conn, number, queue)
    conn.execute("select pgq.drop_queue(%s)", [queue])
    conn.execute("select pgq.create_queue(%s)", [queue])
    assert ops.value(conn, number, queue) > before


def test_events_of_a_dropped_queue_are_not_in_its_heirs_tables(
    conn: Connection, connect: Connect, queue: str
) -> None:
    """A repeatable read producer still sees the dropped queue."""
    producer = with_snapshot(connect)
    conn.execute("select pgq.drop_queue(%s)", [queue])
    conn.execute("select pgq.create_queue('heir')")
    ops.register(conn, "heir", "c")
    with pytest.raises(psycopg.Error):
        ops.insert(producer, queue, "for the dropped queue")
    producer.rollback()
    ops.insert(conn, "heir", "for the heir")
    assert ops.deliver(conn, "heir", "c") == ["for the heir"]
