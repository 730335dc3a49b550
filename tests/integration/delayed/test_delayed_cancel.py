"""Cancellation is exact: an event is cancelled and never delivered, or the answer is false."""

from __future__ import annotations

import pytest
from psycopg import IsolationLevel, errors

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import AsRole, Calls, Connect, Connection, with_snapshot
from tests.fixtures.fix_ticker import eventually
from tests.integration.delayed.test_delayed_events import MOVE, insert_at, move, waiting

STRICTER = (IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE)


def cancel(conn: Connection, queue: str, event: int | None) -> bool:
    cancelled: bool = ops.value(conn, "select pgq.cancel_event(%s, %s)", queue, event)
    return cancelled


def test_a_cancelled_event_is_never_delivered(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "c")
    events = [insert_at(conn, queue, name) for name in ("a", "b", "c")]
    assert cancel(conn, queue, events[1])
    assert waiting(conn, queue) == ["a", "c"]
    assert not cancel(conn, queue, events[1]), "it is cancelled already"
    assert move(conn) == 2
    assert not cancel(conn, queue, events[0]), "it is as good as delivered"
    assert ops.deliver(conn, queue, "c") == ["a", "c"]


def test_what_cannot_be_cancelled_is_answered_with_false(conn: Connection, queue: str) -> None:
    conn.execute("select pgq.create_queue('other')")
    ops.register(conn, queue, "c")
    at_once = ops.insert(conn, queue, "ordinary")
    ops.tick(conn, queue)
    batch = ops.next_batch(conn, queue, "c")
    assert ops.value(conn, "select pgq.batch_retry(%s, 3600)", batch) == 1
    delayed = insert_at(conn, queue, "event", "1 hour")
    assert not cancel(conn, queue, at_once), "a consumer's retry is not the producer's to cancel"
    assert not cancel(conn, queue, 999)
    assert not cancel(conn, queue, None)
    assert not cancel(conn, "other", delayed)
    assert cancel(conn, queue, delayed)


def test_thousands_that_are_being_cancelled_hold_up_no_other(
    conn: Connection, connect: Connect, queue: str
) -> None:
    conn.execute("select pgq.create_queue('other')")
    count = 20_000
    conn.execute(
        "select count(*) from pgq.insert_events_at(%s, array_fill(now(), array[%s]),"
        " array_fill('t'::text, array[%s]), array_fill('d'::text, array[%s]))",
        [queue, *[count] * 3],
    )
    undecided = connect(autocommit=False)
    undecided.execute(
        "select pgq.cancel_event(%s, n) from generate_series(1, %s) n", [queue, count]
    )
    # It takes a minute if each is compared with all others.
    conn.execute("set statement_timeout = '30s'")
    for _ in range(2):
        insert_at(conn, "other", "urgent")
        eventually(conn, "select pgq.maint_retry_events() = 1")
    assert len(waiting(conn, queue)) == count
    undecided.rollback()
    assert move(conn) == count


@pytest.mark.parametrize("cancelled", [True, False])
def test_an_event_that_is_being_cancelled_holds_up_no_other(
    conn: Connection, connect: Connect, queue: str, cancelled: bool
) -> None:
    ops.register(conn, queue, "c")
    events = [insert_at(conn, queue, name) for name in ("a", "b", "c")]
    undecided = connect(autocommit=False)
    assert cancel(undecided, queue, events[1])
    assert move(conn) == 2
    insert_at(conn, queue, "d")
    assert move(conn) == 1
    assert waiting(conn, queue) == ["b"]
    if cancelled:
        undecided.commit()
        assert move(conn) == 0
        assert waiting(conn, queue) == []
    else:
        undecided.rollback()
        assert move(conn) == 1
        assert not cancel(conn, queue, events[1])
    assert move(conn) == 0
    delivered = ops.deliver(conn, queue, "c")
    assert delivered == ["a", *([] if cancelled else ["b"]), "c", "d"]


def test_a_savepoint_takes_a_cancellation_back_and_a_prepared_one_counts_when_committed(
    conn: Connection, connect: Connect, queue: str
) -> None:
    ops.register(conn, queue, "c")
    event = insert_at(conn, queue, "event")
    client = connect(autocommit=False)
    with client.transaction():
        client.execute("select 1")
        with client.transaction(force_rollback=True):
            assert cancel(client, queue, event)
    client.tpc_begin("cancelled")
    assert cancel(client, queue, event)
    client.tpc_prepare()
    assert move(conn) == 0
    client.tpc_rollback()
    assert move(conn) == 1
    client.tpc_begin("cancelled")
    assert cancel(client, queue, insert_at(conn, queue, "another"))
    client.tpc_prepare()
    client.tpc_commit()
    assert move(conn) == 0
    assert ops.deliver(conn, queue, "c") == ["event"]


@pytest.mark.parametrize("delivered", [True, False])
def test_cancelling_during_delivery_waits_for_its_result(
    conn: Connection, connect: Connect, queue: str, calls: Calls, delivered: bool
) -> None:
    ops.register(conn, queue, "c")
    event = insert_at(conn, queue, "event")
    ticker = connect(autocommit=False)
    assert ops.value(ticker, MOVE) == 1
    answer = calls.blocked(cancel, connect(), queue, event)
    ticker.commit() if delivered else ticker.rollback()
    assert answer.result() is not delivered
    assert move(conn) == 0
    assert ops.deliver(conn, queue, "c") == (["event"] if delivered else [])


@pytest.mark.parametrize("level", STRICTER)
def test_a_snapshot_that_does_not_see_the_delivery_is_refused(
    conn: Connection, connect: Connect, queue: str, level: IsolationLevel
) -> None:
    ops.register(conn, queue, "c")
    event = insert_at(conn, queue, "event")
    later = insert_at(conn, queue, "later", "1 hour")
    old = with_snapshot(connect, level)
    assert move(conn) == 1
    assert cancel(old, queue, later), "what cannot have been delivered can be cancelled"
    old.rollback()
    old.execute("select from pgq.queue")
    insert_at(conn, queue, "next")
    assert move(conn) == 1
    assert not cancel(old, queue, event), "this delivery it sees"
    old.rollback()

    third = insert_at(conn, queue, "third")
    old.execute("select from pgq.queue")
    assert move(conn) == 1
    with pytest.raises(errors.SerializationFailure) as refused:
        cancel(old, queue, third)
    assert refused.value.diag.message_hint
    old.rollback()
    assert not cancel(old, queue, third)


def test_one_of_two_sessions_cancels_it(conn: Connection, connect: Connect, queue: str) -> None:
    event = insert_at(conn, queue, "event", "1 hour")
    old = with_snapshot(connect)
    assert cancel(conn, queue, event)
    with pytest.raises(errors.SerializationFailure):
        cancel(old, queue, event)
    old.rollback()
    assert not cancel(old, queue, event)


def test_only_producers_may_cancel(conn: Connection, as_role: AsRole, queue: str) -> None:
    event = insert_at(conn, queue, "event", "1 hour")
    for role, allowed in (("pgq_reader", False), ("pgq_writer", True)):
        client = as_role(role)
        if allowed:
            assert cancel(client, queue, event)
        else:
            with pytest.raises(errors.InsufficientPrivilege):
                cancel(client, queue, event)
