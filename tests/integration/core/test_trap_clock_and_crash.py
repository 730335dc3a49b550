"""Clocks that go back, sequences that jump, ticks that are made at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection


def test_a_clock_that_goes_back_does_not_stop_the_ticks(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "c")
    for log in ("tick_0", "tick_1"):
        conn.execute(f"update pgq.{log} set tick_time = tick_time + interval '1 hour'".encode())
    ops.insert(conn, queue, "event")
    assert ops.value(conn, "select pgq.ticker(%s)", queue) is not None
    assert ops.drain(conn, queue, "c") == ["event"]

    for log in ("tick_0", "tick_1"):
        conn.execute(f"update pgq.{log} set tick_time = tick_time + interval '1 hour'".encode())
    ops.insert(conn, queue, "early")
    conn.execute("select pgq.ticker_round()")
    assert ops.drain(conn, queue, "c") == ["early"]


AHEAD = "interval '400 days'"


def set_clock_back(conn: Connection) -> None:
    """Simulate that all stored times were noted while the clock was far ahead."""
    for update in (
        "tick_0 set tick_time = tick_time",
        "tick_1 set tick_time = tick_time",
        "position_0 set pos_active = pos_active",
        "position_1 set pos_active = pos_active",
        "queue set queue_switch_time = queue_switch_time",
        "queue set queue_key_switch_time = queue_key_switch_time",
    ):
        conn.execute(f"update pgq.{update} + {AHEAD}".encode())


def maintain(conn: Connection) -> None:
    for func, argument in conn.execute("select * from pgq._maint_own_operations()").fetchall():
        given = [] if argument is None else [argument]
        conn.execute(f"select {func}({'%s' if given else ''})".encode(), given)


def test_a_clock_ahead_stops_rotation_for_one_period(conn: Connection, queue: str) -> None:
    conn.execute("select pgq.set_queue_config(%s, 'rotation_period', '1 hour')", [queue])
    conn.execute("select pgq.set_queue_config(%s, 'key_window', '1 hour')", [queue])
    conn.execute("select pgq.insert_event_once(%s, 'key', 't', 'd')", [queue])
    ops.tick(conn, queue)
    maintain(conn)
    set_clock_back(conn)
    maintain(conn)
    assert ops.value(
        conn, "select queue_switch_time <= now() and queue_key_switch_time <= now() from pgq.queue"
    )
    assert ops.rotations(conn, queue) == 0, "what is kept for an hour is kept for an hour"
    conn.execute(
        "update pgq.queue set queue_switch_time = queue_switch_time - interval '61 minutes',"
        " queue_key_switch_time = queue_key_switch_time - interval '61 minutes'"
    )
    for _ in range(3):
        maintain(conn)
    assert ops.rotations(conn, queue) == 1
    assert ops.value(conn, "select queue_key_rotations from pgq.queue") == 1


@pytest.mark.parametrize(
    "wants", ["null, null, '1 second'", "'1 hour', null, null", "'1 hour', 1, null"]
)
def test_a_clock_that_was_ahead_stops_no_consumer_that_waits_for_time_to_pass(
    conn: Connection, queue: str, wants: str
) -> None:
    """A wanted lag, or length of a batch, is measured by times of ticks."""
    lag, count, length = (each.strip() for each in wants.split(","))
    ops.register(conn, queue, "c")
    ops.insert_ticked(conn, queue, "of the future")
    set_clock_back(conn)
    ops.insert_ticked(conn, queue, "new")
    query = f"select batch_id from pgq.next_batch_custom(%s, 'c', {lag}, {count}, {length})"
    batch = ops.value(conn, query, queue)
    assert "of the future" in ops.payloads(conn, batch)
    ops.finish(conn, batch)
    if lag != "null":
        # Certainly young events are kept back as before.
        assert ops.value(conn, query, queue) is None


def test_a_worker_that_died_in_the_future_is_dead(conn: Connection, queue: str) -> None:
    take = "select pgq_coop.next_batch(%s, 'c', %s, '1 minute')"
    for worker in ("w1", "w2"):
        conn.execute("select pgq_coop.register_subconsumer(%s, 'c', %s)", [queue, worker])
    ops.insert_ticked(conn, queue, "event")
    batch = ops.value(conn, take, queue, "w1")
    assert ops.value(conn, take, queue, "w2") is None
    set_clock_back(conn)
    assert ops.value(conn, take, queue, "w2") == batch


def test_an_event_sequence_that_jumps_is_taken_for_events_and_not_for_a_loss(
    conn: Connection, queue: str
) -> None:
    """After a crash it does, by up to 32."""
    ops.register(conn, queue, "c")
    for _ in range(3):
        ops.insert(conn, queue, "event")
        conn.execute("select setval(queue_event_seq, nextval(queue_event_seq) + 32) from pgq.queue")
        assert ops.deliver(conn, queue, "c") == ["event"]


def test_two_tickers_tick_one_at_a_time(conn: Connection, connect: Connect, queue: str) -> None:
    """A later tick must not see less than an earlier one."""
    ops.register(conn, queue, "c")
    first = connect(autocommit=False)
    ops.tick(first, queue)
    conn.execute("select pgq.force_tick(%s)", [queue])
    assert ops.value(conn, "select pgq.ticker(%s)", queue) is None
    assert ops.value(conn, "select pgq.ticker()") == 0
    first.commit()

    tickers = [connect() for _ in range(4)]

    def hammer(ticker: Connection) -> None:
        for number in range(25):
            ops.insert(ticker, queue, f"{ticker.info.backend_pid} {number}")
            ticker.execute("select pgq.force_tick(%s)", [queue])
            ticker.execute("select pgq.ticker(%s)", [queue])

    with ThreadPoolExecutor(len(tickers)) as pool:
        list(pool.map(hammer, tickers))
    snapshots = conn.execute(
        "select txid_snapshot_xmin(tick_snapshot), txid_snapshot_xmax(tick_snapshot)"
        " from pgq.tick order by tick_id"
    ).fetchall()
    assert snapshots == sorted(snapshots)
    assert len(ops.deliver(conn, queue, "c")) == 100
