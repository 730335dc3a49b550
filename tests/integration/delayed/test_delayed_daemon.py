"""The daemon delivers delayed events when they are due, not when it next happens to look.

Whatever it would look at by itself is hours away, so what arrives was noticed.
"""

from __future__ import annotations

from datetime import datetime

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_ticker import PATIENCE, StartTicker, eventually
from tests.integration.delayed.test_delayed_events import insert_at

HOURS = 1000 * PATIENCE
ASLEEP = {"retry_period": HOURS, "sleep_at_most": HOURS, "sleep_after": 0.01}


def fall_asleep(conn: Connection) -> None:
    eventually(conn, "select pg_sequence_last_value('pgq.ticker_sleep_seq') = 2")


def delivered(conn: Connection, queue: str) -> dict[str, datetime]:
    """Wait for a batch with events; the time of each."""
    while True:
        batch = eventually(conn, "select pgq.next_batch(%s, 'c')", queue)
        events = ops.events(conn, batch)
        ops.finish(conn, batch)
        if events:
            # The time of an event that was delayed is when it was due.
            assert max(event[1] for event in events) < ops.value(conn, "select now()")
            return {event[5]: event[1] for event in events}


def deliver_what_is_due(conn: Connection, queue: str) -> None:
    insert_at(conn, queue, "next year", "365 days")
    insert_at(conn, queue, "alone", "50 milliseconds")
    assert [*delivered(conn, queue)] == ["alone"]
    insert_at(conn, queue, "second", "1 second")
    insert_at(conn, queue, "first", "50 milliseconds")
    # Both at once if nothing got on for a second.
    both = delivered(conn, queue)
    if len(both) == 1:
        later = delivered(conn, queue)
        # A second may also pass between the inserts.
        assert max(both.values()) < min(later.values())
        both |= later
    assert sorted(both) == ["first", "second"]
    insert_at(conn, queue, "third")
    assert [*delivered(conn, queue)] == ["third"]


def test_a_sleeping_ticker_wakes_in_time(start_ticker: StartTicker, sleepy: Connection) -> None:
    start_ticker(sleepy.info.dsn, **ASLEEP)
    fall_asleep(sleepy)
    deliver_what_is_due(sleepy, "q")


def test_a_ticker_that_polls_notices(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str
) -> None:
    ops.register(conn, queue, "c")
    start_ticker(dsn, retry_period=HOURS)
    eventually(conn, "select count(*) > 1 from pgq.tick")
    deliver_what_is_due(conn, queue)


def test_what_is_committed_long_after_it_was_due_is_found(
    start_ticker: StartTicker, dsn: str, conn: Connection, connect: Connect, queue: str
) -> None:
    ops.register(conn, queue, "c")
    daemon = start_ticker(dsn, retry_period=0.2)
    daemon.hear("leading")
    producer = connect(autocommit=False)
    insert_at(producer, queue, "late", "1 millisecond")
    insert_at(conn, queue, "in time", "100 milliseconds")
    assert [*delivered(conn, queue)] == ["in time"]
    producer.commit()
    assert [*delivered(conn, queue)] == ["late"]


def test_a_consumers_retry_wakes_the_ticker(start_ticker: StartTicker, sleepy: Connection) -> None:
    ops.insert(sleepy, "q", "again")
    start_ticker(sleepy.info.dsn, **ASLEEP)
    batch = eventually(sleepy, "select pgq.next_batch('q', 'c')")
    fall_asleep(sleepy)
    assert ops.value(sleepy, "select pgq.batch_retry(%s, 0)", batch) == 1
    ops.finish(sleepy, batch)
    assert [*delivered(sleepy, "q")] == ["again"]
