"""The conditions that a SparkConsumer waits for, and the limits of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

import pgqpy
from pgqpy_consumers.spark._collect import Bounds, Collector
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection

HOUR = timedelta(hours=1)
CONSUMER = "collector"


def collector(queue: str, **bounds: object) -> Collector:
    given = {
        "collect_events": None,
        "collect_bytes": None,
        "collect_for": None,
        "batch_size": 1_000,
        "batch_bytes": None,
    }
    return Collector(queue, CONSUMER, Bounds(**given | bounds))  # type: ignore[arg-type]


@pytest.fixture
def asker(dsn: str, conn: Connection, queue: str) -> Iterator[pgqpy.Connection]:
    """The consumer's connection; it is registered, and its position is the newest tick."""
    # Ticks whenever asked: a forced tick would let the event sequence jump.
    for parameter in ("ticker_max_lag", "ticker_idle_period"):
        conn.execute("select pgq.set_queue_config(%s, %s, '0')", [queue, parameter])
    # A sequence does not tell its first number from none.
    insert(conn, queue, "first")
    conn.execute("select pgq.register_consumer(%s, %s)", [queue, CONSUMER])
    with pgqpy.connect(dsn, autocommit=True) as mine:
        yield mine


def tick(conn: Connection, queue: str) -> None:
    assert ops.value(conn, "select pgq.ticker(%s)", queue)


def insert(conn: Connection, queue: str, *payloads: str) -> None:
    for payload in payloads:
        ops.insert(conn, queue, payload)
    tick(conn, queue)


def finish(conn: Connection, queue: str) -> None:
    """A batch of all there is."""
    conn.execute(
        "select pgq.finish_batch(batch_id) from pgq.next_batch_upto(%s, %s, 1000)",
        [queue, CONSUMER],
    )


def test_events_wait_until_there_are_enough(
    conn: Connection, asker: pgqpy.Connection, queue: str
) -> None:
    ten = collector(queue, collect_events=10, collect_for=HOUR)
    assert not ten.is_enough(asker)
    insert(conn, queue, *"123456789")
    assert not ten.is_enough(asker)
    insert(conn, queue, "10")
    assert ten.is_enough(asker)


def test_events_wait_until_the_first_is_old_enough(
    conn: Connection, asker: pgqpy.Connection, queue: str
) -> None:
    insert(conn, queue, "old")
    conn.execute("update pgq.tick set tick_time = tick_time - interval '59 minutes'")
    insert(conn, queue, "new")
    hourly = collector(queue, collect_for=HOUR)
    assert not hourly.is_enough(asker)
    conn.execute("update pgq.tick set tick_time = tick_time - interval '1 minute'")
    assert hourly.is_enough(asker)


def test_an_old_position_does_not_make_new_events_old(
    conn: Connection, asker: pgqpy.Connection, queue: str
) -> None:
    conn.execute("update pgq.tick set tick_time = tick_time - interval '1 year'")
    insert(conn, queue, "new")
    assert not collector(queue, collect_for=HOUR).is_enough(asker)


def test_events_wait_until_they_are_large_enough(
    conn: Connection, asker: pgqpy.Connection, queue: str
) -> None:
    # The type is "test": four bytes each. Compressed values count with their full size.
    size = collector(queue, collect_bytes=1_000_000, collect_for=HOUR)
    insert(conn, queue, "x" * 499_996)
    assert not size.is_enough(asker)
    insert(conn, queue, "ä" * 249_997)
    assert not size.is_enough(asker)
    insert(conn, queue, "")
    assert size.is_enough(asker)
    # Events after a batch are counted anew.
    finish(conn, queue)
    insert(conn, queue, "x")
    assert not size.is_enough(asker)


def test_what_fills_a_batch_waits_for_nothing(
    conn: Connection, asker: pgqpy.Connection, queue: str
) -> None:
    full = collector(queue, collect_bytes=1_000_000, collect_for=HOUR, batch_size=3)
    insert(conn, queue, "1", "2")
    assert not full.is_enough(asker)
    insert(conn, queue, "3")
    assert full.is_enough(asker)


def test_a_batch_that_is_open_waits_for_nothing(
    conn: Connection, asker: pgqpy.Connection, queue: str
) -> None:
    insert(conn, queue, "event")
    hourly = collector(queue, collect_for=HOUR)
    assert not hourly.is_enough(asker)
    ops.next_batch(conn, queue, CONSUMER)
    assert hourly.is_enough(asker)


def test_heartbeats_are_passed_over_so_that_rotation_goes_on(
    conn: Connection, asker: pgqpy.Connection, queue: str
) -> None:
    tick(conn, queue)
    hourly = collector(queue, collect_for=HOUR)
    assert not hourly.is_enough(asker)
    conn.execute("update pgq.tick set tick_time = tick_time - interval '1 hour'")
    assert hourly.is_enough(asker)


def test_late_commits_wait_no_longer_than_others(
    conn: Connection, connect: Connect, asker: pgqpy.Connection, queue: str
) -> None:
    late = connect(autocommit=False)
    ops.insert(late, queue, "late")
    insert(conn, queue, "in time")
    finish(conn, queue)
    late.commit()
    tick(conn, queue)
    conn.execute("update pgq.tick set tick_time = tick_time - interval '1 hour'")
    assert collector(queue, collect_for=HOUR).is_enough(asker)


def test_collecting_leaves_no_transaction_open(
    conn: Connection, asker: pgqpy.Connection, queue: str
) -> None:
    insert(conn, queue, "event")
    assert not collector(queue, collect_bytes=1_000, collect_for=HOUR).is_enough(asker)
    held = "select state, backend_xmin from pg_stat_activity where pid = %s"
    assert conn.execute(held, [asker.info.backend_pid]).fetchall() == [("idle", None)]


def test_a_batch_holds_no_more_bytes_than_asked_for(
    conn: Connection, asker: pgqpy.Connection, queue: str
) -> None:
    for _ in range(10):
        insert(conn, queue, "x" * 96)
    assert collector(queue, batch_bytes=350).most_events(asker) == 3
    assert collector(queue, batch_bytes=10).most_events(asker) == 1
    assert collector(queue, batch_bytes=10_000, batch_size=7).most_events(asker) == 7
    assert collector(queue, batch_bytes=10_000).most_events(asker) == 10


@pytest.mark.parametrize("bound", ["collect_events", "collect_bytes"])
def test_waiting_for_ever_is_refused(bound: str) -> None:
    with pytest.raises(TypeError, match="need collect_for"):
        collector("queue", **{bound: 10})


def test_collecting_single_ticks_is_refused() -> None:
    with pytest.raises(TypeError, match="batch_size"):
        collector("queue", collect_for=HOUR, batch_size=None)
