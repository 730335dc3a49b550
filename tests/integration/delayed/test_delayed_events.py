"""Delayed events: in the producer's transaction like any event, delivered once when they are due,
however transactions, passes and rotations of the tables they wait in meet.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg import IsolationLevel

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Calls, Connect, Connection
from tests.fixtures.fix_ticker import eventually

SOON = "50 milliseconds"
MOVE = "select pgq.maint_retry_events()"
ISOLATION = (
    IsolationLevel.READ_COMMITTED,
    IsolationLevel.REPEATABLE_READ,
)


def insert_at(conn: Connection, queue: str, data: str, delay: str = "-1 second") -> int:
    """A delayed event; returns its id."""
    ev_id: int = ops.value(
        conn,
        "select pgq.insert_event_at(%s, clock_timestamp() + %s::interval, 'test', %s)",
        queue,
        delay,
        data,
    )
    return ev_id


def move(conn: Connection) -> int:
    """Copy all that is due; returns how many events that were."""
    total = 0
    while moved := ops.value(conn, MOVE):
        total += moved
    return total


def passed(conn: Connection, until: str) -> None:
    """Make passes until one is behind this time, with an event of its own to copy."""
    conn.execute("select pgq.create_queue('clock')")
    insert_at(conn, "clock", "tick", until)
    eventually(conn, "select pgq.maint_retry_events() > 0")


def waiting(conn: Connection, queue: str) -> list[str]:
    rows = conn.execute("select ev_data from pgq.get_delayed_events(%s)", [queue]).fetchall()
    return [data for (data,) in rows]


@pytest.mark.parametrize(
    "change",
    [
        "pgq.drop_queue('changed', true)",
        "pgq.restrict_queue('changed')",
        "pgq.set_contract('changed', 'test', '{}', enforced => true)",
    ],
)
def test_a_queue_that_an_open_transaction_changes_delays_no_events_of_others(
    conn: Connection, connect: Connect, queue: str, change: str
) -> None:
    conn.execute("select pgq.create_queue('changed')")
    for name in (queue, "changed"):
        insert_at(conn, name, "1")  # a JSON document
    user, idle = connect(autocommit=False), connect(autocommit=False)
    user.execute(f"select {change}".encode())
    conn.execute("set lock_timeout = '1s'")
    assert move(conn) == 1
    stored = 'select ev_data from pgq_queue."{}"'
    assert conn.execute(stored.format(queue).encode()).fetchall() == [("1",)]
    assert move(conn) == 0
    user.rollback()
    # Another one is open: each queue is asked.
    idle.execute("select pg_advisory_xact_lock_shared(pgq._lock_key('sequences'), 0)")
    assert move(conn) == 1
    assert conn.execute(stored.format("changed").encode()).fetchall() == [("1",)]
    assert move(conn) == 0


def test_it_is_delivered_with_its_id_when_it_is_due(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "c")
    later = insert_at(conn, queue, "later", "1 hour")
    soon = insert_at(conn, queue, "soon", SOON)
    assert 0 < later < soon
    eventually(conn, "select pgq.maint_retry_events() = 1")
    ops.tick(conn, queue)
    (event,) = ops.events(conn, ops.next_batch(conn, queue, "c"))
    assert (event[0], event[4:]) == (soon, ("test", "soon", None, None, None, None))
    assert event[3] is None, "it is no retry"
    assert waiting(conn, queue) == ["later"]


def test_its_time_is_when_it_was_due_and_it_keeps_all_fields(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "c")
    at = None
    while at is None:
        # A time that has passed by then is replaced: try again.
        with conn.transaction() as attempt:
            at = ops.value(
                conn,
                "with soon as materialized (select clock_timestamp() + interval '50 ms' as at)"
                " select case when at > clock_timestamp() then at end from soon,"
                " pgq.insert_event_at(%s, at, 't', 'd', 'a', 'b', 'c', 'e')",
                queue,
            )
            if at is None:
                raise psycopg.Rollback(attempt)
    eventually(conn, "select pgq.maint_retry_events() = 1")
    ops.tick(conn, queue)
    (event,) = ops.events(conn, ops.next_batch(conn, queue, "c"))
    assert (event[1], *event[4:]) == (at, "t", "d", "a", "b", "c", "e")


def test_a_time_in_the_past_means_at_once(conn: Connection, queue: str) -> None:
    """For consumers that are registered by then."""
    for delay in ("-1 second", "-1000 years", "0"):
        insert_at(conn, queue, delay, delay)
    ops.register(conn, queue, "newcomer")
    assert move(conn) == 3
    assert ops.deliver(conn, queue, "newcomer") == ["-1 second", "-1000 years", "0"]


def test_a_time_at_which_nothing_can_be_delivered_is_refused(conn: Connection, queue: str) -> None:
    for at in (None, "infinity", "-infinity", "202026-01-01", "4713-01-01 BC"):
        for call in (
            "pgq.insert_event_at(%s, %s, 't', 'd')",
            "pgq.insert_events_at(%s, array[%s::timestamptz], array['t'], array['d'])",
        ):
            with ops.refused("PQ050"):
                conn.execute(f"select {call}".encode(), [queue, at])


def test_other_bad_input_is_refused_as_by_insert_event(conn: Connection, queue: str) -> None:
    for sqlstate, call in (
        ("PQ001", "pgq.insert_event_at('nope', now(), 't', 'd')"),
        ("PQ001", "pgq.cancel_event('nope', 1)"),
        ("PQ001", "pgq.get_delayed_events('nope')"),
        ("PQ011", f"pgq.insert_events_at('{queue}', array[now()], array['t', 'u'], array['d'])"),
        ("PQ011", f"pgq.insert_events_at('{queue}', null, array['t'], array['d'])"),
    ):
        with ops.refused(sqlstate):
            conn.execute(f"select {call}".encode())
    conn.execute("select pgq.set_queue_config(%s, 'disable_insert', 'true')", [queue])
    with ops.refused("PQ006"):
        insert_at(conn, queue, "closed")


def test_many_at_once_keep_their_order_and_their_times(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "c")
    rows = conn.execute(
        "select pgq.insert_events_at(%s, array[now(), now() + '1 hour', now()],"
        " array['t', 't', 't'], array['a', 'b', 'c'], i_extra2 => array['x', null, 'z'])",
        [queue],
    ).fetchall()
    ids = [ev_id for (ev_id,) in rows]
    assert ids == sorted(ids)
    assert move(conn) == 2
    ops.tick(conn, queue)
    events = ops.events(conn, ops.next_batch(conn, queue, "c"))
    assert [(row[0], row[5], row[7]) for row in events] == [(ids[0], "a", "x"), (ids[2], "c", "z")]
    assert (
        conn.execute("select * from pgq.insert_events_at(%s, '{}', '{}', '{}')", [queue]).fetchall()
        == []
    )


@pytest.mark.parametrize("level", ISOLATION)
def test_what_is_rolled_back_never_was_and_what_is_committed_comes(
    conn: Connection, connect: Connect, queue: str, level: IsolationLevel
) -> None:
    ops.register(conn, queue, "c")
    producer = connect(level=level)
    insert_at(producer, queue, "rolled back")
    producer.rollback()
    insert_at(producer, queue, "kept")
    with producer.transaction(force_rollback=True):
        insert_at(producer, queue, "undone")
    with producer.transaction():
        insert_at(producer, queue, "savepoint")
    assert move(conn) == 0, "not before the commit"
    producer.commit()
    assert move(conn) == 2
    assert ops.deliver(conn, queue, "c") == ["kept", "savepoint"]


@pytest.mark.parametrize("level", ISOLATION)
def test_a_transaction_that_ends_after_its_events_were_due_loses_none(
    conn: Connection, connect: Connect, queue: str, level: IsolationLevel
) -> None:
    ops.register(conn, queue, "c")
    producer = connect(level=level)
    insert_at(producer, queue, "due while open", SOON)
    insert_at(producer, queue, "not due yet", "1 hour")
    passed(conn, "100 milliseconds")
    passed(conn, SOON)
    insert_at(producer, queue, "after the passes", SOON)
    passed(conn, "100 milliseconds")
    producer.commit()
    assert move(conn) == 2
    assert move(conn) == 0
    assert ops.deliver(conn, queue, "c") == ["due while open", "after the passes"]
    assert waiting(conn, queue) == ["not due yet"]


def test_a_transaction_younger_than_all_that_ended_loses_none(
    conn: Connection, connect: Connect, queue: str
) -> None:
    """Snapshots do not name it, since they end behind the newest transaction that has ended."""
    ops.register(conn, queue, "c")
    insert_at(conn, queue, "in time", "100 milliseconds")
    producer = connect(autocommit=False)
    insert_at(producer, queue, "late", SOON)
    # Both, as the producer sees them.
    passed = "select not exists (select from pgq.waiting_event where due > clock_timestamp())"
    eventually(producer, passed)
    assert move(conn) == 1
    producer.commit()
    assert move(conn) == 1
    assert sorted(ops.deliver(conn, queue, "c")) == ["in time", "late"]


def test_late_transactions_are_found_while_another_stays_open_for_hours(
    conn: Connection, connect: Connect, queue: str
) -> None:
    ops.register(conn, queue, "c")
    forgotten, late = connect(autocommit=False), connect(autocommit=False)
    insert_at(forgotten, queue, "forgotten", SOON)
    insert_at(late, queue, "late", SOON)
    passed(conn, "100 milliseconds")
    late.commit()
    for number in range(5):
        insert_at(conn, queue, f"event {number}")
        assert move(conn) == (2 if number == 0 else 1)
    forgotten.commit()
    assert move(conn) == 1
    delivered = ops.deliver(conn, queue, "c")
    assert sorted(delivered) == sorted(["late", "forgotten", *(f"event {n}" for n in range(5))])


def test_a_prepared_transaction_delivers_when_it_is_committed(
    conn: Connection, connect: Connect, queue: str
) -> None:
    ops.register(conn, queue, "c")
    producer = connect(autocommit=False)
    producer.tpc_begin("delayed")
    insert_at(producer, queue, "prepared", SOON)
    producer.tpc_prepare()
    passed(conn, "100 milliseconds")
    assert move(conn) == 0
    producer.tpc_commit()
    assert move(conn) == 1
    assert ops.deliver(conn, queue, "c") == ["prepared"]


def test_thousands_due_at_once_come_once_each_in_pieces(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "c")
    count = 12_000
    conn.execute(
        "with t as (select now() + interval '300 milliseconds' as at)"
        " select count(pgq.insert_event_at(%s, at, 't', n::text)) from t, generate_series(1, %s) n",
        [queue, count],
    )
    eventually(conn, "select not exists (select from pgq.waiting_event where due > now())")
    pieces = []
    while moved := ops.value(conn, MOVE):
        pieces.append(moved)
    assert len(pieces) > 2
    assert sum(pieces) == count
    assert ops.deliver(conn, queue, "c") == [str(n + 1) for n in range(count)]


def test_a_ticker_that_looked_while_another_was_moving_does_not_move_the_same(
    conn: Connection, connect: Connect, queue: str, calls: Calls
) -> None:
    ops.register(conn, queue, "c")
    insert_at(conn, queue, "event")
    one, gate = connect(autocommit=False), connect(autocommit=False)
    assert ops.value(one, MOVE) == 1
    # A session that comes now sees the progress of passes, then waits for a waiting lock.
    lock = "lock table pgq.delayed_0 in access exclusive mode"
    locked = calls.blocked(psycopg.Connection.execute, gate, lock)
    moved = calls.blocked(ops.value, connect(), MOVE)
    one.commit()
    locked.result()
    gate.rollback()
    assert moved.result() == 0
    assert ops.deliver(conn, queue, "c") == ["event"]


def test_a_pass_that_could_err_is_refused(conn: Connection, connect: Connect, queue: str) -> None:
    other = connect(autocommit=False)
    insert_at(other, queue, "mine")
    with ops.refused("PQ053"):
        other.execute(MOVE)
    other.rollback()
    other.isolation_level = IsolationLevel.REPEATABLE_READ
    with ops.refused("PQ012"):
        other.execute(MOVE)


def test_next_due_tells_how_long_to_sleep(conn: Connection, queue: str) -> None:
    def next_due() -> float | None:
        seconds: float | None = ops.value(
            conn, "select extract(epoch from next_due)::float8 from pgq.maint_delayed_events()"
        )
        return seconds

    assert next_due() is None
    insert_at(conn, queue, "next year", "365 days")
    assert (next_due() or 0) > 364 * 86400
    insert_at(conn, queue, "this hour", "1 hour")
    assert 3000 < (next_due() or 0) < 3601


def test_a_queue_with_delayed_events_is_dropped_by_force_only_and_takes_them_along(
    conn: Connection, queue: str
) -> None:
    insert_at(conn, queue, "one")
    insert_at(conn, queue, "two", "1 hour")
    with ops.refused("PQ007") as refused:
        conn.execute("select pgq.drop_queue(%s)", [queue])
    assert "2 delayed events" in str(refused.value)
    conn.execute("select pgq.drop_queue(%s, true)", [queue])
    conn.execute("select pgq.create_queue(%s)", [queue])
    ops.register(conn, queue, "c")
    assert waiting(conn, queue) == []
    assert move(conn) == 0
    assert ops.deliver(conn, queue, "c") == []


def test_what_waits_is_counted(conn: Connection, queue: str) -> None:
    info = "select delayed_events, next_due > now(), retry_events from pgq.get_delayed_info(%s)"
    assert conn.execute(info, [queue]).fetchone() == (0, None, 0)
    ops.register(conn, queue, "c")
    conn.execute("select pgq.batch_retry(%s, 3600)", [ops.open_batch(conn, queue, "c", "event")])
    insert_at(conn, queue, "one", "1 hour")
    insert_at(conn, queue, "two", "2 hours")
    insert_at(conn, queue, "now")
    assert move(conn) == 1
    assert conn.execute(info, [queue]).fetchone() == (2, True, 1)
