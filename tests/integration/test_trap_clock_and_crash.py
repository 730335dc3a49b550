"""Clocks that go back, sequences that jump, ticks that are made at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

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


def test_an_event_sequence_that_jumps_is_taken_for_events_and_not_for_a_loss(
    conn: Connection, queue: str
) -> None:
    """After a crash it does, by up to 32."""
    ops.register(conn, queue, "c")
    for _ in range(3):
        ops.insert(conn, queue, "event")
        conn.execute("select setval(queue_event_seq, nextval(queue_event_seq) + 32) from pgq.queue")
        assert ops.deliver(conn, queue, "c") == ["event"]


def test_two_tickers_make_one_tick_at_a_time(
    conn: Connection, connect: Connect, queue: str
) -> None:
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
