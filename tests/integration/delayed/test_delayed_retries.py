"""Retries wait where delayed events do; `pgq.retry_queue` shows and takes them as in PgQ."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from psycopg import IsolationLevel, errors

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Calls, Connect, Connection, with_snapshot
from tests.integration.delayed.test_delayed_events import move
from tests.integration.delayed.test_delayed_tables import rotate

PAST = datetime(2020, 1, 1, tzinfo=UTC)
RETRY = "select pgq.event_retry(%s, %s, %s)"


@pytest.fixture
def batch(conn: Connection, queue: str) -> int:
    """An open batch of events 'a' and 'b'."""
    ops.register(conn, queue, "c")
    ops.insert(conn, queue, "a")
    return ops.open_batch(conn, queue, "c", "b")


@pytest.fixture
def first(conn: Connection, batch: int) -> int:
    """The id of the batch's first event."""
    ev_id: int = ops.events(conn, batch)[0][0]
    return ev_id


@pytest.mark.parametrize("seconds", [0, 3600])
def test_an_event_that_waits_is_not_put_back_again_whatever_the_delay(
    conn: Connection, batch: int, first: int, seconds: int
) -> None:
    assert ops.value(conn, RETRY, batch, first, seconds) == 1
    for again in (0, 30, 3600, 100_000):
        assert ops.value(conn, RETRY, batch, first, again) == 0
    assert ops.value(conn, "select count(*) from pgq.retry_queue") == 1


def test_a_time_at_which_nothing_can_be_delivered_is_refused(
    conn: Connection, queue: str, batch: int, first: int
) -> None:
    ops.value(conn, RETRY, batch, first, 3600)
    nulls = ", ".join(["null"] * 5)
    for at in ("infinity", "-infinity", "202026-01-01"):
        for call in (
            f"select pgq.event_retry({batch}, {first + 1}, '{at}'::timestamptz)",
            f"select pgq.event_retry_many({batch}, array[{first + 1}], array['{at}'::timestamptz])",
            f"select pgq.event_retry_raw('{queue}', 'c', '{at}', null, now(), 0, 't', {nulls})",
            f"update pgq.retry_queue set ev_retry_after = '{at}'",
        ):
            with ops.refused("PQ050"):
                conn.execute(call.encode())
    assert ops.value(conn, "select array_agg(ev_id) from pgq.retry_queue") == [first]


def test_it_may_be_put_back_again_whenever_it_has_come(
    conn: Connection, queue: str, batch: int, first: int
) -> None:
    ops.register(conn, queue, "other")
    for times in (1, 2, 3):
        assert ops.value(conn, RETRY, batch, first, 0) == 1
        ops.finish(conn, batch)
        assert move(conn) == 1
        ops.tick(conn, queue)
        batch = ops.next_batch(conn, queue, "c")
        assert [(row[0], row[3], row[5]) for row in ops.events(conn, batch)] == [
            (first, times, "a")
        ]
    assert ops.drain(conn, queue, "other") == [], "only the consumer that wanted it gets it"


def test_of_two_instances_that_put_it_back_at_once_one_does(
    conn: Connection, connect: Connect, batch: int, first: int, calls: Calls
) -> None:
    one = connect(autocommit=False)
    assert ops.value(one, RETRY, batch, first, 0) == 1
    other = calls.blocked(ops.value, connect(), RETRY, batch, first, 0)
    one.commit()
    assert other.result() == 0
    assert move(conn) == 1


def test_a_consumer_that_has_gone_leaves_none(conn: Connection, queue: str, batch: int) -> None:
    assert ops.value(conn, "select pgq.batch_retry(%s, 0)", batch) == 2
    assert ops.value(conn, "select pgq.unregister_consumer(%s, 'c')", queue) == 1
    assert ops.value(conn, "select count(*) from pgq.retry_queue") == 0
    ops.register(conn, queue, "c")
    assert move(conn) == 0
    assert ops.deliver(conn, queue, "c") == []
    for _ in range(2):
        rotate(conn)
    assert ops.value(conn, "select count(*) from pgq.delayed") == 0


def test_the_view_has_pgqs_columns_and_can_be_written(
    conn: Connection, queue: str, batch: int, first: int
) -> None:
    conn.execute("set role pgq_admin")
    assert ops.value(conn, RETRY, batch, first, 3600) == 1
    shown = conn.execute(
        "select ev_queue, ev_id, ev_txid, ev_retry, ev_type, ev_data from pgq.retry_queue"
    ).fetchall()
    assert shown == [(1, first, None, 1, "test", "a")]
    conn.execute("update pgq.retry_queue set ev_retry_after = %s, ev_data = 'changed'", [PAST])
    conn.execute(
        "insert into pgq.retry_queue (ev_retry_after, ev_queue, ev_id, ev_time, ev_owner, ev_retry,"
        " ev_type, ev_data) select %s, ev_queue, 999, ev_time, ev_owner, 7, 't', 'inserted'"
        " from pgq.retry_queue",
        [PAST],
    )
    ops.finish(conn, batch)
    assert move(conn) == 2
    ops.tick(conn, queue)
    events = ops.events(conn, ops.next_batch(conn, queue, "c"))
    assert [(row[0], row[3], row[5]) for row in events] == [
        (first, 1, "changed"),
        (999, 7, "inserted"),
    ]


def test_what_is_deleted_from_the_view_does_not_come(
    conn: Connection, queue: str, batch: int, first: int
) -> None:
    assert ops.value(conn, "select pgq.batch_retry(%s, 0)", batch) == 2
    conn.execute("delete from pgq.retry_queue where ev_id = %s", [first])
    ops.finish(conn, batch)
    assert move(conn) == 1
    assert ops.deliver(conn, queue, "c") == ["b"]


def test_deleting_what_has_come_meanwhile_is_no_silent_success(
    conn: Connection, connect: Connect, batch: int, first: int
) -> None:
    assert ops.value(conn, RETRY, batch, first, 0) == 1
    old = connect(level=IsolationLevel.REPEATABLE_READ)
    assert ops.value(old, "select count(*) from pgq.retry_queue") == 1
    assert move(conn) == 1
    with pytest.raises(errors.SerializationFailure):
        old.execute("delete from pgq.retry_queue")


def test_wrong_rows_are_refused(conn: Connection, batch: int, first: int) -> None:
    assert ops.value(conn, RETRY, batch, first, 3600) == 1
    for owner, ev_id, sqlstate in ((999, 5, "PQ002"), (None, 5, "PQ002"), (1, first, "23505")):
        with ops.refused(sqlstate) as error:
            conn.execute(
                "insert into pgq.retry_queue (ev_retry_after, ev_queue, ev_id, ev_time, ev_owner)"
                " values (now(), 1, %s, now(), %s)",
                [ev_id, owner],
            )
        assert error.value.diag.message_hint


def test_an_old_snapshot_does_not_take_for_waiting_what_has_come(
    conn: Connection, connect: Connect, queue: str, batch: int, first: int
) -> None:
    """An old snapshot cannot see the progress of passes if their log was emptied since."""
    assert ops.value(conn, RETRY, batch, first, 0) == 1
    ops.finish(conn, batch)
    assert move(conn) == 1
    ops.tick(conn, queue)
    batch = ops.next_batch(conn, queue, "c")
    conn.execute("update pgq.log set log_rotate_bytes = 1 where log_name = 'moved'")
    assert ops.value(conn, "select pgq.maint_rotate_logs()") == 0, "moves on"
    old = with_snapshot(connect)
    assert ops.value(conn, "select pgq.maint_rotate_logs()") == 1, "empties"
    with pytest.raises(errors.SerializationFailure):
        ops.value(old, RETRY, batch, first, 0)
    old.rollback()
    assert ops.value(old, RETRY, batch, first, 0) == 1
