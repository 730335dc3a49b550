"""An event with a key is inserted once within the queue's window, whatever the transactions that
try it: all get the id of the first one.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from psycopg import IsolationLevel, errors

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import AsRole, Calls, Connect, Connection, with_snapshot
from tests.fixtures.fix_ticker import eventually
from tests.integration.core.test_invariant_5_dead_rows import dead_rows
from tests.integration.delayed.test_delayed_events import move

ISOLATION = (
    IsolationLevel.READ_COMMITTED,
    IsolationLevel.REPEATABLE_READ,
    IsolationLevel.SERIALIZABLE,
)


@pytest.fixture
def keyed(conn: Connection, queue: str) -> str:
    """A queue that takes keys, with a consumer."""
    conn.execute("select pgq.set_queue_config(%s, 'key_window', '1 hour')", [queue])
    ops.register(conn, queue, "c")
    return queue


def once(conn: Connection, queue: str, key: str | None, data: str) -> int:
    ev_id: int = ops.value(
        conn, "select pgq.insert_event_once(%s, %s, 'test', %s)", queue, key, data
    )
    return ev_id


def many(
    conn: Connection, queue: str, keys: Sequence[str | None], data: Sequence[str]
) -> list[int]:
    rows = conn.execute(
        "select pgq.insert_events_once(%s, %s, array_fill('test'::text, array[%s]), %s)",
        [queue, list(keys), len(data), list(data)],
    ).fetchall()
    return [ev_id for (ev_id,) in rows]


def turns(conn: Connection) -> int:
    """The number of rotations of the tables for keys, as inserting sessions see it."""
    number: int = ops.value(conn, "select pg_sequence_last_value('pgq.event_key_1_seq')")
    return number


def end_window(conn: Connection, queue: str) -> None:
    """Simulate the end of the window."""
    conn.execute(
        "update pgq.queue set queue_key_switch_time = now() - queue_key_window - interval '1 us'"
        " where queue_name = %s",
        [queue],
    )


def rotate_keys(conn: Connection, queue: str) -> bool:
    """Maintenance when the window is over; returns whether the tables have changed places."""
    before = turns(conn)
    end_window(conn, queue)
    for _ in range(2):
        conn.execute("select pgq.maint_rotate_keys(%s)", [queue])
    return turns(conn) > before


def test_a_repeated_insert_returns_the_first_id(conn: Connection, keyed: str) -> None:
    first = once(conn, keyed, "order 1", "first")
    assert once(conn, keyed, "order 1", "again") == first
    assert once(conn, keyed, "order 2", "another") != first
    assert ops.deliver(conn, keyed, "c") == ["first", "another"]
    assert once(conn, keyed, "order 1", "long after") == first
    assert ops.deliver(conn, keyed, "c") == []


def test_keys_belong_to_their_queue(conn: Connection, keyed: str) -> None:
    conn.execute("select pgq.create_queue('other')")
    conn.execute("select pgq.set_queue_config('other', 'key_window', '1 hour')")
    ops.register(conn, "other", "c")
    once(conn, keyed, "key", "here")
    once(conn, "other", "key", "there")
    assert ops.deliver(conn, keyed, "c") == ["here"]
    assert ops.deliver(conn, "other", "c") == ["there"]


def test_all_fields_arrive(conn: Connection, keyed: str) -> None:
    conn.execute("select pgq.insert_event_once(%s, 'k', 't', 'd', 'a', 'b', 'c', 'e')", [keyed])
    ops.tick(conn, keyed)
    assert once(conn, keyed, None, "one") != once(conn, keyed, None, "two"), "without a key"
    (event,) = ops.events(conn, ops.next_batch(conn, keyed, "c"))
    assert event[3:] == (None, "t", "d", "a", "b", "c", "e")


def test_many_at_once_are_told_apart_one_by_one(conn: Connection, keyed: str) -> None:
    first = once(conn, keyed, "b", "b")
    ids = many(conn, keyed, ["z", "b", None, "a", "z", None], ["1", "2", "3", "4", "5", "6"])
    assert ids[1] == first
    assert ids[0] == ids[4]
    assert len(set(ids)) == 5
    assert ops.deliver(conn, keyed, "c") == ["b", "1", "3", "4", "6"], "in the order given"
    assert many(conn, keyed, ["z", "a"], ["7", "8"]) == [ids[0], ids[3]]
    assert many(conn, keyed, [], []) == []
    assert ops.deliver(conn, keyed, "c") == []


def test_a_key_may_come_with_a_time(conn: Connection, keyed: str) -> None:
    insert = "select pgq.insert_event_once(%s, 'k', 't', %s, deliver_at => now() + %s::interval)"
    first = ops.value(conn, insert, keyed, "first", "30 milliseconds")
    assert ops.value(conn, insert, keyed, "second", "1 hour") == first
    eventually(conn, "select pgq.maint_retry_events() = 1")
    assert ops.deliver(conn, keyed, "c") == ["first"]
    assert ops.value(conn, insert, keyed, "third", "-1 hour") == first
    assert move(conn) == 0
    with ops.refused("PQ050"):
        ops.value(conn, insert.replace("now()", "timestamptz 'infinity'"), keyed, "x", "0")


@pytest.mark.usefixtures("keyed")
def test_bad_input_says_what_to_do(conn: Connection) -> None:
    conn.execute("select pgq.create_queue('without')")
    for sqlstate, call in (
        ("PQ001", "pgq.insert_event_once('nope', 'k', 't', 'd')"),
        ("PQ051", "pgq.insert_event_once('without', 'k', 't', 'd')"),
        ("PQ052", "pgq.insert_event_once('test_queue', '', 't', 'd')"),
        ("PQ052", "pgq.insert_event_once('test_queue', repeat('ä', 501), 't', 'd')"),
        ("PQ011", "pgq.insert_events_once('test_queue', array['k'], array['t', 'u'], array['d'])"),
        ("PQ011", "pgq.insert_events_once('test_queue', null, array['t'], array['d'])"),
        ("PQ011", "pgq.set_queue_config('test_queue', 'key_window', 'soon')"),
        ("PQ011", "pgq.set_queue_config('test_queue', 'key_window', '-1 hour')"),
    ):
        with ops.refused(sqlstate):
            conn.execute(f"select {call}".encode())


def test_the_longest_key_and_odd_ones_work(conn: Connection, keyed: str) -> None:
    for key in ("ä" * 500, "'; drop table pgq.queue; --", " ", "Key", "key"):
        assert once(conn, keyed, key, key) == once(conn, keyed, key, "again")
    assert len(ops.deliver(conn, keyed, "c")) == 5


@pytest.mark.parametrize("level", ISOLATION)
def test_what_is_rolled_back_frees_its_key(
    conn: Connection, connect: Connect, keyed: str, level: IsolationLevel
) -> None:
    producer = connect(level=level)
    once(producer, keyed, "key", "rolled back")
    producer.rollback()
    with producer.transaction(force_rollback=True):
        once(producer, keyed, "key", "undone")
    kept = once(producer, keyed, "key", "kept")
    assert once(producer, keyed, "key", "again") == kept
    producer.commit()
    assert once(conn, keyed, "key", "later") == kept
    assert ops.deliver(conn, keyed, "c") == ["kept"]


@pytest.mark.parametrize("committed", [True, False])
def test_of_two_at_once_the_second_waits_for_the_first_to_end(
    conn: Connection, connect: Connect, keyed: str, calls: Calls, committed: bool
) -> None:
    one = connect(autocommit=False)
    first = once(one, keyed, "key", "first")
    second = calls.blocked(once, connect(), keyed, "key", "second")
    one.commit() if committed else one.rollback()
    assert (second.result() == first) == committed
    assert ops.deliver(conn, keyed, "c") == ["first" if committed else "second"]


def test_prepared_transactions_keep_their_key(
    conn: Connection, connect: Connect, keyed: str
) -> None:
    one = connect(autocommit=False)
    one.tpc_begin("key")
    first = once(one, keyed, "key", "first")
    one.tpc_prepare()
    conn.execute("set lock_timeout = '50ms'")
    with pytest.raises(errors.LockNotAvailable):
        once(conn, keyed, "key", "second")
    one.tpc_commit()
    assert once(conn, keyed, "key", "second") == first
    assert ops.deliver(conn, keyed, "c") == ["first"]


@pytest.mark.parametrize("level", ISOLATION[1:])
@pytest.mark.parametrize("rotated", [False, True])
def test_a_snapshot_that_does_not_see_the_key_is_refused(
    conn: Connection, connect: Connect, keyed: str, level: IsolationLevel, rotated: bool
) -> None:
    old = with_snapshot(connect, level)
    first = once(conn, keyed, "key", "first")
    if rotated:
        assert rotate_keys(conn, keyed)
    with pytest.raises(errors.SerializationFailure):
        once(old, keyed, "key", "second")
    old.rollback()
    assert once(old, keyed, "key", "third") == first
    old.commit()
    assert ops.deliver(conn, keyed, "c") == ["first"]


def test_bulk_inserts_of_the_same_keys_in_any_order_do_not_wait_in_a_circle(
    conn: Connection, connect: Connect, keyed: str, calls: Calls
) -> None:
    gate = connect(autocommit=False)
    middle = once(gate, keyed, "m", "m")
    # Each has the locks that come before the gate in its order, or waits for their holder.
    inserts = {
        keys: calls.blocked(many, connect(), keyed, [*keys], [*keys])
        for keys in ("zma", "amz", "mza")
    }
    gate.commit()
    answers = [dict(zip(keys, ids.result(), strict=True)) for keys, ids in inserts.items()]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]["m"] == middle
    assert sorted(ops.deliver(conn, keyed, "c")) == ["a", "m", "z"]


def test_a_key_is_forgotten_after_one_to_two_windows(conn: Connection, keyed: str) -> None:
    first = once(conn, keyed, "key", "first")
    assert ops.value(conn, "select pgq.maint_rotate_keys(%s)", keyed) == 0, "it is not over"
    assert rotate_keys(conn, keyed)
    assert once(conn, keyed, "key", "within the window") == first
    assert rotate_keys(conn, keyed)
    assert once(conn, keyed, "key", "second") > first
    assert ops.deliver(conn, keyed, "c") == ["first", "second"]


def test_maintenance_rotates_keys_when_the_window_is_over(conn: Connection, keyed: str) -> None:
    due = "select func_arg from pgq.maint_operations() where func_name = 'pgq.maint_rotate_keys'"
    assert conn.execute(due).fetchall() == []
    for turn in (1, 2, 3):
        once(conn, keyed, f"key {turn}", "event")
        end_window(conn, keyed)
        for (arg,) in conn.execute(due).fetchall():
            conn.execute("select pgq.maint_rotate_keys(%s)", [arg])
        assert turns(conn) == turn
        assert conn.execute(due).fetchall() == []


def test_rotation_waits_for_sessions_that_insert_or_are_about_to(
    conn: Connection, connect: Connect, keyed: str
) -> None:
    producer = connect(autocommit=False)
    first = once(producer, keyed, "key", "first")
    for _ in range(3):
        assert not rotate_keys(conn, keyed)
    producer.commit()
    assert rotate_keys(conn, keyed)
    assert once(conn, keyed, "key", "second") == first
    # It has locked the table, seen that it is current, and written nothing yet.
    producer.execute("lock table pgq.event_key_1_1 in row exclusive mode")
    assert not rotate_keys(conn, keyed)
    producer.rollback()
    assert rotate_keys(conn, keyed)


def test_an_insert_that_waits_for_a_rotation_goes_into_the_new_table(
    conn: Connection, connect: Connect, keyed: str, calls: Calls
) -> None:
    first = once(conn, keyed, "key", "first")
    maintenance = connect(autocommit=False)
    # As rotation does before it moves on: a session that comes now has seen this table as current.
    maintenance.execute("lock table pgq.event_key_1_0 in share mode")
    inserted = calls.blocked(many, connect(), keyed, ["key", "new"], ["second", "new"])
    assert rotate_keys(maintenance, keyed)
    maintenance.commit()
    ids = inserted.result()
    assert ids[0] == first
    assert rotate_keys(conn, keyed)
    assert once(conn, keyed, "new", "again") == ids[1], "it is as old as one window"


def test_a_rotation_that_fails_at_its_very_end_forgets_nothing(
    conn: Connection, connect: Connect, keyed: str
) -> None:
    assert rotate_keys(conn, keyed)
    first = once(conn, keyed, "key", "first")
    failing = connect(autocommit=False)
    assert rotate_keys(failing, keyed)
    failing.rollback()
    assert once(conn, keyed, "key", "second") == first
    other = once(conn, keyed, "other", "other")
    assert not rotate_keys(conn, keyed), "the row follows the sequence"
    assert rotate_keys(conn, keyed)
    assert once(conn, keyed, "other", "again") == other
    assert ops.deliver(conn, keyed, "c") == ["first", "other"]


def test_after_a_rotation_that_failed_keys_are_remembered_for_a_window(
    conn: Connection, connect: Connect, keyed: str
) -> None:
    """Its window is over for the row, and has just begun for the sequence."""
    first = once(conn, keyed, "key", "first")
    failing = connect(autocommit=False)
    assert rotate_keys(failing, keyed)
    failing.rollback()
    end_window(conn, keyed)
    for _ in range(3):
        assert not ops.value(conn, "select pgq.maint_rotate_keys(%s)", keyed)
        assert turns(conn) == 1
        assert once(conn, keyed, "key", "again") == first


@pytest.mark.parametrize("failure", ["at the first step", "at the second", "of both in one"])
def test_a_rotation_that_fails_at_its_very_end_remembers_no_key_for_longer(
    conn: Connection, connect: Connect, keyed: str, failure: str
) -> None:
    old = once(conn, keyed, "old", "old")
    assert rotate_keys(conn, keyed)
    young = once(conn, keyed, "young", "young")
    end_window(conn, keyed)
    rotate = "select pgq.maint_rotate_keys(%s)"
    if failure == "at the second":
        assert ops.value(conn, rotate, keyed) == 1
    failing = connect(autocommit=False)
    for _ in range(2 if failure == "of both in one" else 1):
        failing.execute(rotate, [keyed])
    failing.rollback()
    # Its client tries again: the queue's row follows, and rotation goes on.
    for _ in range(2):
        conn.execute(rotate, [keyed])
    assert once(conn, keyed, "young", "again") == young, "it is as old as one window"
    assert once(conn, keyed, "old", "again") > old, "it is as old as two windows"
    assert rotate_keys(conn, keyed)
    assert once(conn, keyed, "young", "again") > young, "now that is, too"


def test_keys_leave_no_dead_rows(conn: Connection, keyed: str) -> None:
    for number in range(50):
        once(conn, keyed, f"key {number}", "event")
        once(conn, keyed, f"key {number}", "again")
        if number % 10 == 9:
            assert rotate_keys(conn, keyed)
    assert dead_rows(conn).keys() <= {"queue"}
    assert ops.value(conn, "select count(*) from pgq.event_key_1_0") <= 10


def test_keys_go_with_the_window_and_with_the_queue(conn: Connection, keyed: str) -> None:
    tables = "select count(*) from pg_class where relname ~ '^event_key_'"
    first = once(conn, keyed, "key", "first")
    conn.execute("select pgq.set_queue_config(%s, 'key_window', '2 hours')", [keyed])
    assert once(conn, keyed, "key", "second") == first, "another window keeps the keys"
    conn.execute("select pgq.set_queue_config(%s, 'key_window', null)", [keyed])
    assert ops.value(conn, tables) == 0
    conn.execute("select pgq.set_queue_config(%s, 'key_window', '1 hour')", [keyed])
    assert once(conn, keyed, "key", "third") > first
    conn.execute("select pgq.drop_queue(%s, true)", [keyed])
    assert ops.value(conn, tables) == 0


def test_producers_use_keys_and_see_none(as_role: AsRole, keyed: str) -> None:
    producer = as_role("pgq_writer")
    first = once(producer, keyed, "key", "first")
    assert once(producer, keyed, "key", "second") == first
    with pytest.raises(errors.InsufficientPrivilege):
        producer.execute("select * from pgq.event_key_1_0")


def test_the_limit_of_a_transaction_counts_what_is_inserted(
    conn: Connection, connect: Connect, keyed: str
) -> None:
    conn.execute("select pgq.set_queue_config(%s, 'per_tx_limit', '2')", [keyed])
    producer = connect(autocommit=False)
    many(producer, keyed, ["a", "a", "b", "a"], ["1", "2", "3", "4"])
    with ops.refused("PQ010"), producer.transaction():
        once(producer, keyed, "c", "5")
    producer.commit()
    assert ops.deliver(conn, keyed, "c") == ["1", "3"]
