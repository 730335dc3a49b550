"""Waiting events are in tables that are appended to and truncated: no row dies, however long
some transaction stays open, and nothing that waits is ever in the way or lost.
"""

from __future__ import annotations

from psycopg import IsolationLevel

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Calls, Connect, Connection, with_snapshot
from tests.fixtures.fix_ticker import eventually
from tests.integration.core.test_invariant_5_dead_rows import dead_rows
from tests.integration.delayed.test_delayed_cancel import cancel
from tests.integration.delayed.test_delayed_events import MOVE, insert_at, move, waiting

CYCLES = 40


def rotate(conn: Connection) -> int:
    """Rotate the tables, however small they are; returns how many were emptied."""
    conn.execute("update pgq.log set log_rotate_bytes = 1 where log_rotate_bytes <> 1")
    emptied: int = ops.value(conn, "select pgq.maint_rotate_delayed()")
    return emptied


def rows(conn: Connection) -> int:
    """All rows that there are, whether they wait or not."""
    count: int = ops.value(conn, "select count(*) from pgq.delayed")
    return count


def moves(conn: Connection) -> int:
    """The length of the log of passes."""
    count: int = ops.value(
        conn, "select (select count(*) from pgq.moved_0) + (select count(*) from pgq.moved_1)"
    )
    return count


def test_in_steady_operation_no_row_dies_and_tables_stay_small_under_an_old_snapshot(
    conn: Connection, connect: Connect, queue: str
) -> None:
    forgotten = connect(level=IsolationLevel.REPEATABLE_READ)
    forgotten.execute("create temporary table mine ()")
    assert ops.value(forgotten, "select txid_current()")
    next_year = insert_at(conn, queue, "next year", "365 days")
    ops.register(conn, queue, "c")
    for number in range(CYCLES):
        insert_at(conn, queue, f"event {number}")
        assert move(conn) == 1
        batch_of_retry(conn, queue)
        assert move(conn) == 1
        rotate(conn)
        if number % 10 == 9:
            ops.rotate_logs(conn)
    assert rows(conn) < CYCLES / 4
    assert moves(conn) < CYCLES / 2
    # These two have a row for each rotation, and here rotation is all there is.
    assert dead_rows(conn).keys() <= {"queue", "log"}
    forgotten.rollback()
    assert cancel(conn, queue, next_year)


def batch_of_retry(conn: Connection, queue: str) -> None:
    ops.tick(conn, queue)
    while True:
        batch = ops.next_batch(conn, queue, "c")
        fresh = [event[0] for event in ops.events(conn, batch) if event[3] is None]
        for event in fresh:
            assert ops.value(conn, "select pgq.event_retry(%s, %s, 0)", batch, event) == 1
        ops.finish(conn, batch)
        if fresh:
            return


def test_rotation_keeps_what_waits_in_the_same_tables(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "c")
    insert_at(conn, queue, "past")
    assert move(conn) == 1
    insert_at(conn, queue, "soon", "1 second")
    insert_at(conn, queue, "today", "2 hours")
    for _ in range(4):
        assert rotate(conn) == 0
    assert waiting(conn, queue) == ["soon", "today"]
    eventually(conn, "select pgq.maint_retry_events() = 1")
    assert rotate(conn) == 1
    assert ops.deliver(conn, queue, "c") == ["past", "soon"]
    assert waiting(conn, queue) == ["today"]


def test_rotation_keeps_what_a_transaction_has_not_committed_yet(
    conn: Connection, connect: Connect, queue: str
) -> None:
    ops.register(conn, queue, "c")
    producer = connect(autocommit=False)
    insert_at(producer, queue, "open")
    insert_at(conn, queue, "committed")
    assert move(conn) == 1
    for _ in range(3):
        assert rotate(conn) == 0, "the producer has the table locked"
    producer.commit()
    for _ in range(3):
        assert rotate(conn) == 0, "its event was not copied"
    assert move(conn) == 1
    assert rotate(conn) == 1
    assert sorted(ops.deliver(conn, queue, "c")) == ["committed", "open"]


def test_rotation_keeps_what_is_held(conn: Connection, connect: Connect, queue: str) -> None:
    ops.register(conn, queue, "c")
    event = insert_at(conn, queue, "event")
    client = connect(autocommit=False)
    assert cancel(client, queue, event)
    insert_at(conn, queue, "other")
    assert move(conn) == 1
    client.rollback()
    for _ in range(3):
        assert rotate(conn) == 0
    assert move(conn) == 1
    assert rotate(conn) == 1
    assert sorted(ops.deliver(conn, queue, "c")) == ["event", "other"]


def test_a_pass_during_which_the_log_of_passes_was_rotated_is_not_repeated(
    conn: Connection, connect: Connect, queue: str, calls: Calls
) -> None:
    """A session writes to the table that it has chosen, even if the other one is current by now."""
    ops.register(conn, queue, "c")
    insert_at(conn, queue, "first")
    assert move(conn) == 1
    insert_at(conn, queue, "second")
    gate = connect(autocommit=False)
    gate.execute("lock table pgq.moved_0 in share mode")
    moved = calls.blocked(ops.value, connect(), MOVE)
    ops.rotate_logs(conn)
    assert ops.value(conn, "select pg_sequence_last_value('pgq.moved_log_seq')") == 1
    gate.rollback()
    assert moved.result() == 1
    for _ in range(3):
        assert move(conn) == 0
        ops.rotate_logs(conn)
    insert_at(conn, queue, "third")
    assert move(conn) == 1
    assert ops.deliver(conn, queue, "c") == ["first", "second", "third"]


def test_an_old_snapshot_producer_writes_where_it_is_found(
    conn: Connection, connect: Connect, queue: str
) -> None:
    """Its snapshot is older than rotations of everything; so is what it has looked at."""
    ops.register(conn, queue, "c")
    old = with_snapshot(connect)
    for number in range(3):
        insert_at(conn, queue, f"event {number}")
        assert move(conn) == 1
        rotate(conn)
        ops.rotate_logs(conn)
    insert_at(old, queue, "old")
    insert_at(conn, queue, "last")
    assert move(conn) == 1
    old.commit()
    assert move(conn) == 1
    delivered = ops.deliver(conn, queue, "c")
    assert sorted(delivered) == ["event 0", "event 1", "event 2", "last", "old"]


def test_maintenance_rotates_what_has_grown(conn: Connection, queue: str) -> None:
    operation = "select count(*) from pgq.maint_operations() where func_name = %s"
    assert ops.value(conn, operation, "pgq.maint_rotate_delayed") == 0
    insert_at(conn, queue, "event")
    conn.execute("update pgq.log set log_rotate_bytes = 1")
    assert ops.value(conn, operation, "pgq.maint_rotate_delayed") == 1
    assert move(conn) == 1
    assert rotate(conn) == 0
    assert rotate(conn) == 1
    assert ops.value(conn, operation, "pgq.maint_rotate_delayed") == 0
    assert rows(conn) == 0


def test_large_payloads_count_for_the_size_of_a_table(conn: Connection, queue: str) -> None:
    conn.execute(
        "select pgq.insert_event_at(%s, now(), 't', string_agg(md5(n::text), ''))"
        " from generate_series(1, 300000) n",
        [queue],
    )
    assert move(conn) == 1
    operations = "select array_agg(func_name) from pgq.maint_operations()"
    assert "pgq.maint_rotate_delayed" in ops.value(conn, operations)
    emptied = [ops.value(conn, "select pgq.maint_rotate_delayed()") for _ in range(2)]
    assert emptied == [0, 1]


def test_what_is_passed_is_not_looked_at_again(conn: Connection, queue: str) -> None:
    """A pass costs what it copies, however much was copied before."""
    conn.execute(
        "select count(pgq.insert_event_at(%s, now(), 't', 'd')) from generate_series(1, 4000)",
        [queue],
    )
    assert move(conn) == 4000
    insert_at(conn, queue, "one")
    conn.execute("select pg_stat_force_next_flush()")
    read = "select sum(idx_tup_fetch) from pg_stat_user_tables where relname ~ '^delayed_[0-9]'"
    before = ops.value(conn, read)
    assert move(conn) == 1
    conn.execute("select pg_stat_force_next_flush()")
    assert ops.value(conn, read) - before < 50
