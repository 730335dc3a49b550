"""Snapshots that are older than rotations: of producers, of readers, of sessions that ask for a
table and COPY much later. PgQ loses events here; we must not, and must not serve less than all.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg import IsolationLevel

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection, with_snapshot

SNAPSHOT_LEVELS = [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]


@pytest.mark.parametrize(
    ("level", "rotations"),
    [
        *((IsolationLevel.REPEATABLE_READ, n) for n in (1, 2, 3, 4)),
        (IsolationLevel.SERIALIZABLE, 3),
    ],
)
def test_a_producer_with_a_snapshot_older_than_rotations_loses_nothing(
    conn: Connection, connect: Connect, rotating: str, level: IsolationLevel, rotations: int
) -> None:
    producer = with_snapshot(connect, level)
    ops.rotate_idle(conn, rotating, "c", rotations)
    ops.insert(producer, rotating, "inserted")
    producer.execute("select pgq.insert_events(%s, array['t'], array['in bulk'])", [rotating])
    table = ops.value(producer, "select pgq.current_event_table(%s)", rotating)
    ops.copy(producer, table, ["copied"])
    for _ in range(3):
        assert ops.deliver(conn, rotating, "c") == []
        ops.rotate(conn, rotating)
    producer.commit()
    assert ops.deliver(conn, rotating, "c") == ["inserted", "in bulk", "copied"]


@pytest.mark.parametrize(
    ("same_transaction", "rotations"), [(True, 4), *((False, n) for n in (1, 2, 3, 4))]
)
def test_a_copy_into_a_table_that_was_current_rotations_ago_loses_nothing(
    conn: Connection, connect: Connect, rotating: str, same_transaction: bool, rotations: int
) -> None:
    producer = connect(autocommit=False)
    table = ops.value(producer, "select pgq.current_event_table(%s)", rotating)
    if same_transaction:
        # Its transaction id, drawn with the answer, keeps the table from being emptied.
        for _ in range(rotations):
            ops.deliver(conn, rotating, "c")
            ops.rotate(conn, rotating)
        assert ops.rotations(conn, rotating) <= 1
    else:
        producer.commit()
        ops.rotate_idle(conn, rotating, "c", rotations)
    ops.copy(producer, table, ["one", "two"])
    for _ in range(3):
        assert ops.deliver(conn, rotating, "c") == []
        ops.rotate(conn, rotating)
    producer.commit()
    ops.register(conn, rotating, "too late")
    # No consumer has read it yet, and the table may be the next one to be emptied.
    for _ in range(3):
        ops.tick(conn, rotating)
        ops.rotate(conn, rotating)
    assert ops.deliver(conn, rotating, "c") == ["one", "two"]
    for _ in range(4):
        assert ops.deliver(conn, rotating, "c") == []
        assert ops.deliver(conn, rotating, "too late") in ([], ["one", "two"])
        ops.rotate(conn, rotating)


def test_a_copy_that_waits_for_the_truncate_of_its_table_loses_nothing(
    conn: Connection, connect: Connect, rotating: str
) -> None:
    table = ops.value(conn, "select pgq.current_event_table(%s)", rotating)
    ops.rotate_idle(conn, rotating, "c", 2)
    ops.deliver(conn, rotating, "c")
    ticker, producer = connect(autocommit=False), connect(autocommit=False)
    ops.value(producer, "select txid_current()")
    ticker.execute("select pgq.maint_rotate_tables_step1(%s)", [rotating])
    producer.execute("set local lock_timeout = '50 ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable), producer.transaction():
        ops.copy(producer, table, ["too early"])
    ticker.commit()
    ops.copy(producer, table, ["waited"])
    conn.execute("select pgq.maint_rotate_tables_step2()")
    producer.commit()
    assert ops.deliver(conn, rotating, "c") == ["waited"]


@pytest.mark.parametrize("level", SNAPSHOT_LEVELS)
def test_a_reader_with_a_snapshot_older_than_the_truncate_gets_an_error_and_not_zero_rows(
    conn: Connection, connect: Connect, rotating: str, level: IsolationLevel
) -> None:
    ops.insert(conn, rotating, "event")
    start = ops.value(conn, "select min(tick_id) from pgq.tick")
    ops.tick(conn, rotating)
    batch = ops.next_batch(conn, rotating, "c")
    query = ops.value(conn, "select pgq.batch_event_sql(%s)", batch).encode()
    span = "select pgq.tick_range_sql(%s, %s, %s)"
    ticks = ops.value(conn, span, rotating, start, start + 1).encode()
    reader = with_snapshot(connect, level)
    ops.finish(conn, batch)
    ops.rotate_idle(conn, rotating, "c", 3)

    for late in (query, ticks):
        with ops.refused("PQ008"), reader.transaction():
            reader.execute(late)
        with ops.refused("PQ008"):
            conn.execute(late)


@pytest.mark.parametrize("level", SNAPSHOT_LEVELS)
def test_a_consumer_with_an_old_snapshot_reads_its_batch_in_full(
    conn: Connection, connect: Connect, rotating: str, level: IsolationLevel
) -> None:
    ops.rotate_idle(conn, rotating, "c", 2)
    ops.deliver(conn, rotating, "c")
    ops.insert_ticked(conn, rotating, "event")
    worker = with_snapshot(connect, level)
    batch = ops.next_batch(worker, rotating, "c")
    assert ops.rotate(conn, rotating)
    assert ops.payloads(worker, batch) == ["event"]
    ops.finish(worker, batch)
    worker.commit()
    assert ops.deliver(conn, rotating, "c") == []


def test_a_tick_range_is_complete_or_refused(conn: Connection, rotating: str) -> None:
    ops.value(conn, "select pgq.unregister_consumer(%s, 'c')", rotating)
    marks = [(ops.tick(conn, rotating), 0)]
    for number in range(1, 9):
        ops.insert(conn, rotating, f"event {number}")
        marks.append((ops.tick(conn, rotating), number))
        ops.rotate(conn, rotating)
        refused = 0
        for start, events in marks:
            try:
                query = ops.value(
                    conn, "select pgq.tick_range_sql(%s, %s, %s)", rotating, start, marks[-1][0]
                )
                found = [row[5] for row in conn.execute(query.encode()).fetchall()]
            except psycopg.Error as error:
                if error.sqlstate != "PQ008":
                    raise
                refused += 1
            else:
                assert found == [f"event {n}" for n in range(events + 1, number + 1)]
        assert refused == max(0, number - 2)


@pytest.mark.parametrize("level", SNAPSHOT_LEVELS)
def test_a_log_that_was_emptied_after_the_snapshot_is_no_proof_that_a_row_is_not_there(
    conn: Connection, connect: Connect, rotating: str, level: IsolationLevel
) -> None:
    ops.insert(conn, rotating, "event")
    first, last = ops.tick(conn, rotating) - 1, ops.tick(conn, rotating)
    batch = ops.next_batch(conn, rotating, "c")
    conn.execute("update pgq.log set log_rotate_bytes = 1, log_carried_bytes = 0")
    assert ops.value(conn, "select pgq.maint_rotate_logs()") == 0, "moves on"
    worker = with_snapshot(connect, level)
    assert ops.value(conn, "select pgq.maint_rotate_logs()") > 0, "empties, and does not move on"
    for statement, *parameters in (
        ("select pgq.finish_batch(%s)", batch),
        ("select pgq.get_batch_events(%s)", batch),
        ("select pgq.tick_range_sql(%s, %s, %s)", rotating, first, last),
    ):
        with pytest.raises(psycopg.errors.SerializationFailure), worker.transaction():
            worker.execute(str(statement).encode(), parameters)
    worker.rollback()
    ops.finish(worker, batch)
