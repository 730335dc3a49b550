"""An event whose transaction commits is delivered to every consumer registered before it, exactly
once a finished batch; one whose transaction rolls back, to none. Isolation level, savepoints,
prepared and long transactions change when, never whether.
"""

from __future__ import annotations

import pytest
from psycopg import IsolationLevel

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection

pytestmark = pytest.mark.smoke


def test_every_consumer_gets_a_committed_event_once(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "early")
    ops.insert_ticked(conn, queue, "one")
    ops.register(conn, queue, "late")
    ops.insert_ticked(conn, queue, "two")

    assert ops.drain(conn, queue, "early") == ["one", "two"]
    assert ops.drain(conn, queue, "late") == ["two"]
    assert ops.deliver(conn, queue, "early") == []


@pytest.mark.parametrize("others", [0, 3])
def test_a_transaction_may_begin_with_the_queue_or_a_tick_and_insert_then(
    conn: Connection, connect: Connect, others: int
) -> None:
    """Its own events come after the tick, however many others have ended by then."""

    def others_end() -> None:
        for _ in range(others):
            conn.execute("select pg_current_xact_id()")

    producer = connect(autocommit=False)
    running = connect(autocommit=False)
    producer.execute("select pg_current_xact_id()")
    running.execute("select pg_current_xact_id()")
    others_end()
    producer.execute("select pgq.create_queue('own')")
    ops.register(producer, "own", "first")
    ops.insert(producer, "own", "one")
    others_end()
    ops.tick(producer, "own")
    ops.register(producer, "own", "second")
    ops.insert(producer, "own", "two")
    producer.commit()

    assert ops.deliver(conn, "own", "first") == ["one", "two"]
    # Events and registration are one transaction: it gets all of them.
    assert ops.drain(conn, "own", "second") == ["one", "two"]


def test_a_tick_from_elsewhere_loses_no_event_of_its_own_transaction_either(
    conn: Connection, connect: Connect, queue: str
) -> None:
    conn.execute("select pgq.set_queue_config(%s, 'external_ticker', 'true')", [queue])
    producer = connect(autocommit=False)
    producer.execute("select pg_current_xact_id()")
    conn.execute("select pg_current_xact_id()")
    tick = "select pgq.ticker(%s, %s, now(), %s)"
    producer.execute(tick, [queue, 10, 1])
    ops.register(producer, queue, "c")
    ops.insert(producer, queue, "own")
    producer.commit()
    conn.execute(tick, [queue, 11, 1000])
    assert ops.drain(conn, queue, "c") == ["own"]


def test_a_tick_in_the_transaction_of_an_insert_leaves_the_event_to_the_next_tick(
    conn: Connection, queue: str
) -> None:
    ops.register(conn, queue, "c")
    with conn.transaction():
        ops.insert_ticked(conn, queue, "own")
    assert ops.drain(conn, queue, "c") == []
    assert ops.deliver(conn, queue, "c") == ["own"]


def test_rolled_back_events_never_come(conn: Connection, connect: Connect, queue: str) -> None:
    ops.register(conn, queue, "c")
    producer = connect(autocommit=False)
    ops.insert(producer, queue, "never")
    ops.tick(conn, queue)
    producer.rollback()
    ops.insert(producer, queue, "before")
    with producer.transaction(force_rollback=True):
        ops.insert(producer, queue, "undone")
        table = ops.value(producer, "select pgq.current_event_table(%s)", queue)
        ops.copy(producer, table, ["undone"])
    ops.insert(producer, queue, "again")
    with producer.transaction():
        ops.insert(producer, queue, "kept")
    producer.commit()
    assert ops.deliver(conn, queue, "c") == ["before", "again", "kept"]


def test_the_isolation_level_of_the_producer_does_not_matter(
    conn: Connection, connect: Connect, queue: str
) -> None:
    ops.register(conn, queue, "c")
    for level in IsolationLevel:
        producer = connect(level=level)
        ops.insert(producer, queue, "first")
        ops.deliver(conn, queue, "c")
        ops.insert(producer, queue, "second")
        producer.commit()
        assert ops.deliver(conn, queue, "c") == ["first", "second"], level


def test_a_long_transaction_is_delivered_when_it_commits_and_holds_up_no_other(
    conn: Connection, connect: Connect, queue: str
) -> None:
    ops.register(conn, queue, "c")
    slow = connect(autocommit=False)
    ops.insert(slow, queue, "slow")
    # More transactions than the batch query would stretch its range over.
    for number in range(150):
        ops.insert(conn, queue, f"quick {number}")
        if number % 50 == 0:
            ops.tick(conn, queue)
    assert ops.deliver(conn, queue, "c") == [f"quick {number}" for number in range(150)]
    slow.commit()
    assert ops.deliver(conn, queue, "c") == ["slow"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_prepared_transaction_is_delivered_if_and_when_it_is_committed(
    conn: Connection, connect: Connect, queue: str, end: str
) -> None:
    ops.register(conn, queue, "c")
    ops.rotate_whenever_asked(conn, queue)
    producer = connect(autocommit=False)
    table = ops.value(producer, "select pgq.current_event_table(%s)", queue)
    ops.insert(producer, queue, "inserted")
    ops.copy(producer, table, ["copied"])
    producer.execute("prepare transaction 'two phases'")
    producer.commit()

    for _ in range(4):
        assert ops.deliver(conn, queue, "c") == []
        ops.rotate(conn, queue)

    conn.execute(f"{end} prepared 'two phases'".encode())
    expected = ["inserted", "copied"] if end == "commit" else []
    assert ops.deliver(conn, queue, "c") == expected


def test_a_consumer_registered_while_a_transaction_is_open_gets_its_events(
    conn: Connection, connect: Connect, queue: str
) -> None:
    """Even when their table is not the previous one any more: without a registered consumer,
    nothing holds up rotation."""
    ops.rotate_whenever_asked(conn, queue)
    producer = connect(autocommit=False)
    ops.insert(producer, queue, "open")
    for _ in range(3):
        ops.tick(conn, queue)
        ops.rotate(conn, queue)
    assert ops.rotations(conn, queue) == 2
    ops.register(conn, queue, "c")
    producer.commit()
    assert ops.deliver(conn, queue, "c") == ["open"]


def test_a_consumer_at_an_old_tick_gets_all_events_since(conn: Connection, queue: str) -> None:
    ops.rotate_whenever_asked(conn, queue)
    start = ops.tick(conn, queue)
    ops.insert_ticked(conn, queue, "one")
    for _ in range(2):
        assert ops.rotate(conn, queue)
    ops.insert(conn, queue, "two")
    conn.execute("select pgq.register_consumer_at(%s, 'c', %s)", [queue, start])
    assert ops.deliver(conn, queue, "c") == ["one", "two"]

    # The next rotation would empty the table of the first event, were it not for the consumer.
    conn.execute("select pgq.unregister_consumer(%s, 'c')", [queue])
    assert ops.rotate(conn, queue)
    with ops.refused("PQ008"):
        conn.execute("select pgq.register_consumer_at(%s, 'c', %s)", [queue, start])


def test_every_statement_may_come_over_another_connection(connect: Connect, queue: str) -> None:
    """Connections like those of PgBouncer in transaction mode. A retried event comes again, with
    its id and time, only to the consumer that asked for it."""
    pool = [connect() for _ in range(4)]
    ops.register(pool[0], queue, "c")
    ops.register(pool[1], queue, "other")
    ops.insert(pool[1], queue, "event")
    ops.insert(pool[2], queue, "done")
    assert ops.value(pool[2], "select pgq.force_tick(%s)", queue)
    assert ops.value(pool[3], "select pgq.ticker(%s)", queue)
    batch = ops.next_batch(pool[0], queue, "c")
    assert ops.payloads(pool[1], batch) == ["event", "done"]
    first = ops.events(pool[2], batch)[0]
    assert ops.value(pool[3], "select pgq.event_retry(%s, %s, -1)", batch, first[0]) == 1
    ops.finish(pool[0], batch)
    assert ops.value(pool[1], "select pgq.maint_retry_events()") == 1
    ops.tick(pool[2], queue)
    again = ops.events(pool[0], ops.next_batch(pool[3], queue, "c"))
    assert [(row[0], row[1], row[3], row[5]) for row in again] == [(*first[:2], 1, "event")]
    assert ops.drain(pool[0], queue, "other") == ["event", "done"]
