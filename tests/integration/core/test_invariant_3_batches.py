"""`next_batch` without `finish_batch` returns the same batch again. `finish_batch` in the
consumer's own transaction makes local effects exactly-once.
"""

from __future__ import annotations

import pytest
from psycopg import IsolationLevel, errors

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Calls, Connect, Connection

pytestmark = pytest.mark.smoke


@pytest.fixture
def consumer(conn: Connection, queue: str) -> str:
    """A registered consumer, and an event for it behind a tick."""
    ops.register(conn, queue, "c")
    conn.execute("create table effect (ev_id bigint primary key, data text)")
    ops.insert_ticked(conn, queue, "event")
    return "c"


def test_next_batch_returns_the_same_batch_until_it_is_finished(
    conn: Connection, connect: Connect, queue: str, consumer: str
) -> None:
    batch = ops.next_batch(conn, queue, consumer)
    ops.insert_ticked(conn, queue, "later")
    for again in (
        "select batch_id from pgq.next_batch_info(%s, %s)",
        "select batch_id from pgq.next_batch_custom(%s, %s, '1 day', 1000, '1 day')",
        "select batch_id from pgq.next_batch_upto(%s, %s, 1)",
    ):
        assert ops.value(connect(), again, queue, consumer) == batch
    assert ops.payloads(conn, batch) == ["event"]
    ops.finish(conn, batch)
    assert ops.next_batch(conn, queue, consumer) > batch


def test_a_finished_batch_is_closed(conn: Connection, queue: str, consumer: str) -> None:
    batch = ops.next_batch(conn, queue, consumer)
    ops.finish(conn, batch)
    with ops.refused("PQ004"):
        ops.events(conn, batch)
    assert ops.value(conn, "select pgq.finish_batch(%s)", batch) == 0


def test_effect_and_finish_in_one_transaction_happen_together_or_not_at_all(
    conn: Connection, connect: Connect, queue: str, consumer: str
) -> None:
    batch = ops.next_batch(conn, queue, consumer)
    query = ops.value(conn, "select pgq.batch_event_sql(%s)", batch)
    worker = connect(autocommit=False)
    effect = f"insert into effect select ev_id, ev_data from ({query}) ev".encode()
    worker.execute(effect)
    ops.finish(worker, batch)
    worker.rollback()
    assert ops.value(conn, "select count(*) from effect") == 0
    assert ops.next_batch(conn, queue, consumer) == batch

    worker.execute(effect)
    ops.finish(worker, batch)
    worker.commit()
    assert ops.value(conn, "select array_agg(data) from effect") == ["event"]
    assert ops.drain(conn, queue, consumer) == []


@pytest.mark.parametrize("level", list(IsolationLevel))
def test_of_two_workers_with_the_same_batch_only_one_commits(
    conn: Connection,
    connect: Connect,
    queue: str,
    consumer: str,
    calls: Calls,
    level: IsolationLevel,
) -> None:
    first, second = connect(level=level), connect(level=level)
    batch = ops.next_batch(conn, queue, consumer)
    for worker in (first, second):
        assert ops.payloads(worker, batch) == ["event"]
    ops.finish(first, batch)
    late = calls.blocked(ops.value, second, "select pgq.finish_batch(%s)", batch)
    first.commit()
    if level is IsolationLevel.READ_COMMITTED or level is IsolationLevel.READ_UNCOMMITTED:
        assert late.result() == 0
    else:
        with pytest.raises(errors.SerializationFailure):
            late.result()


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_a_worker_whose_position_moved_to_the_other_log_is_told_to_run_again(
    conn: Connection, connect: Connect, queue: str, consumer: str, level: IsolationLevel
) -> None:
    """Its snapshot shows neither the new row nor the old one. "Not found" would be a lie, by which
    the effects would be committed and the same batch come again."""
    batch = ops.next_batch(conn, queue, consumer)
    worker = connect(level=level)
    worker.execute("insert into effect values (1, 'once')")
    ops.rotate_logs(conn)
    with pytest.raises(errors.SerializationFailure):
        ops.value(worker, "select pgq.finish_batch(%s)", batch)
    worker.rollback()
    ops.finish(worker, batch)
    worker.commit()

    ops.insert(conn, queue, "next")
    worker.execute("select 1")
    ops.tick(conn, queue)
    ops.rotate_logs(conn)
    with pytest.raises(errors.SerializationFailure):
        ops.value(worker, "select pgq.next_batch(%s, %s)", queue, consumer)
    worker.rollback()
    assert ops.drain(conn, queue, consumer) == ["next"]


def test_two_that_ask_at_once_get_the_same_batch(
    connect: Connect, queue: str, consumer: str, calls: Calls
) -> None:
    first = connect(autocommit=False)
    batch = ops.next_batch(first, queue, consumer)
    other = calls.blocked(ops.next_batch, connect(), queue, consumer)
    first.commit()
    assert other.result() == batch


def test_unregistering_waits_for_a_batch_that_is_being_finished(
    conn: Connection, connect: Connect, queue: str, consumer: str, calls: Calls
) -> None:
    worker = connect(autocommit=False)
    ops.finish(worker, ops.next_batch(worker, queue, consumer))
    unregister = "select pgq.unregister_consumer(%s, %s)"
    gone = calls.blocked(ops.value, connect(), unregister, queue, consumer)
    worker.commit()
    assert gone.result() == 1
    assert ops.value(conn, "select count(*) from pgq.subscription") == 0


def test_next_batch_upto_folds_many_ticks_into_a_batch(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "c")
    # Only inserts move the event sequence here: force_tick would pretend thousands of events.
    conn.execute("select pgq.set_queue_config(%s, 'ticker_max_count', '1')", [queue])
    for number in range(6):
        ops.insert(conn, queue, f"event {number}")
        assert ops.value(conn, "select pgq.ticker(%s)", queue)
    sizes = []
    while batch := ops.value(conn, "select batch_id from pgq.next_batch_upto(%s, 'c', 4)", queue):
        sizes.append(len(ops.events(conn, batch)))
        ops.finish(conn, batch)
    assert sizes == [4, 2]
