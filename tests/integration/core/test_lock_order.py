"""Calls that lock the same things do so in one order, or do not wait: no deadlocks."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Calls, Connect, Connection, with_snapshot

OTHER = "other_queue"


def create_queue(conn: Connection, name: str) -> None:
    assert ops.value(conn, "select pgq.create_queue(%s)", name) == 1


def configure(conn: Connection, queue: str, parameter: str, value: str) -> None:
    conn.execute("select pgq.set_queue_config(%s, %s, %s)", [queue, parameter, value])


@pytest.fixture
def member(conn: Connection, queue: str) -> int:
    """The member of a group "g" of one partition."""
    conn.execute("select pgq.create_group(%s, 'g', 1, 'ev_extra1')", [queue])
    member_id: int = ops.value(conn, "select member_id from pgq.join_group(%s, 'g', 'w')", queue)
    return member_id


SET_LIMIT: LiteralString = "select pgq.set_queue_config(%s, 'per_tx_limit', '5')"


# --- queues


@pytest.mark.parametrize("backwards", [False, True])
def test_rotation_passes_over_queues_that_are_changed(
    connect: Connect, conn: Connection, queue: str, calls: Calls, backwards: bool
) -> None:
    create_queue(conn, OTHER)
    queues = [OTHER, queue] if backwards else [queue, OTHER]
    for name in queues:
        ops.rotate_whenever_asked(conn, name)
        conn.execute("select pgq.maint_rotate_tables_step1(%s)", [name])
    user, daemon = connect(autocommit=False), connect()
    configure(user, queue, "ticker_max_count", "7")
    done = calls.begin(ops.value, daemon, "select pgq.maint_rotate_tables_step2()")
    configure(user, OTHER, "ticker_max_count", "7")
    user.commit()
    assert done.result() == 0
    conn.execute("select pgq.maint_rotate_tables_step2()")
    assert ops.value(conn, "select count(*) from pgq.queue where queue_switch_step2 is null") == 0


@pytest.mark.parametrize(
    "change",
    [
        "select pgq.drop_queue(%s)",
        "select pgq.restrict_queue(%s)",
        "select pgq.restrict_queue(%s), pgq.restrict_queue(%s, false)",
    ],
)
def test_a_queue_that_an_open_transaction_changes_delays_no_tick_of_others(
    connect: Connect, conn: Connection, queue: str, change: LiteralString
) -> None:
    create_queue(conn, OTHER)
    user = connect(autocommit=False)
    user.execute(change, [queue] * change.count("%s"))
    conn.execute("set lock_timeout = '1s'")
    newest = "select last_tick_id from pgq.get_queue_info(%s)"
    for tick in ("select pgq.ticker()", "select pgq.ticker_round()"):
        ops.value(conn, "select pgq.force_tick(%s)", OTHER)
        before = ops.value(conn, newest, OTHER)
        conn.execute(tick)
        assert ops.value(conn, newest, OTHER) > before
    info = "select queue_name, ev_new is null from pgq.get_queue_info()"
    assert conn.execute(info).fetchall() == [(OTHER, False), (queue, True)]
    # or producers of this one would not wake it afterwards
    assert ops.value(conn, "select pgq._guard_queues()") is False
    user.rollback()
    assert ops.value(conn, "select pgq._guard_queues()") is True
    assert conn.execute(info).fetchall() == [(OTHER, False), (queue, False)]


def test_a_queue_can_be_read_while_another_session_waits_to_drop_it(
    connect: Connect, queue: str, calls: Calls
) -> None:
    reader, user = connect(autocommit=False), connect()
    reader.execute("select * from pgq.get_queue_info()")
    dropped = calls.begin(ops.value, user, "select pgq.drop_queue(%s)", queue)
    reader.execute(f"select * from pgq_queue.{queue}".encode())
    reader.commit()
    assert dropped.result() == 1


def test_a_queue_that_was_dropped_after_the_snapshot_is_still_shown(
    connect: Connect, conn: Connection, queue: str
) -> None:
    reader = with_snapshot(connect)
    conn.execute("select pgq.drop_queue(%s)", [queue])
    info = "select queue_name, ev_new from pgq.get_queue_info()"
    assert reader.execute(info).fetchall() == [(queue, None)]


INSERTS: list[LiteralString] = [
    "select pgq.insert_event(%s, 't', 'd')",
    "select pgq.insert_events(%s, array['t'], array['d'])",
    "select pgq.insert_event_at(%s, pg_catalog.now(), 't', 'd')",
    "select pgq.insert_event_once(%s, 'k', 't', 'd')",
    "select pgq.current_event_table(%s)",
]


# (The first waits for its sequence itself, and says that this is gone.)
@pytest.mark.parametrize("insert", INSERTS[1:])
def test_inserting_while_the_queue_is_dropped_says_that_there_is_none(
    connect: Connect, queue: str, calls: Calls, insert: LiteralString
) -> None:
    user, producer = connect(autocommit=False), connect()
    configure(producer, queue, "key_window", "1 day")
    user.execute("select pgq.drop_queue(%s)", [queue])
    inserting = calls.blocked(ops.value, producer, insert, queue)
    user.commit()
    with pytest.raises(psycopg.Error) as caught:
        inserting.result()
    assert caught.value.sqlstate == "PQ001"


@pytest.mark.parametrize("insert", INSERTS)
def test_a_snapshot_from_before_a_queue_was_dropped_is_a_serialization_failure(
    connect: Connect, conn: Connection, queue: str, insert: LiteralString
) -> None:
    configure(conn, queue, "key_window", "1 day")
    producer = with_snapshot(connect)
    conn.execute("select pgq.drop_queue(%s)", [queue])
    assert ops.value(producer, "select pgq.force_tick(%s)", queue) is None
    with pytest.raises(psycopg.errors.SerializationFailure):
        producer.execute(insert, [queue])


def test_two_sessions_that_register_and_then_configure_do_not_wait_in_a_circle(
    connect: Connect, queue: str, calls: Calls
) -> None:
    one, two = connect(autocommit=False), connect(autocommit=False)
    ops.register(one, queue, "a")
    ops.register(two, queue, "b")
    configured = calls.begin(ops.value, one, SET_LIMIT, queue)
    later = calls.begin(ops.value, two, SET_LIMIT, queue)
    assert configured.result() == 1
    one.commit()
    assert later.result() == 1


def test_creating_does_not_block_limiting(connect: Connect, queue: str, calls: Calls) -> None:
    creator, other = connect(autocommit=False), connect()
    create_queue(creator, OTHER)
    limited = calls.begin(ops.value, other, SET_LIMIT, queue)
    configure(creator, queue, "ticker_max_count", "7")
    creator.commit()
    assert limited.result() == 1


def test_limiting_one_queue_after_the_other_waits_in_no_circle(
    connect: Connect, conn: Connection, queue: str, calls: Calls
) -> None:
    create_queue(conn, OTHER)
    one, two = connect(autocommit=False), connect()
    configure(one, queue, "per_tx_limit", "7")
    later = calls.begin(ops.value, two, SET_LIMIT, OTHER)
    configure(one, OTHER, "per_tx_limit", "7")
    one.commit()
    assert later.result() == 1


@pytest.mark.usefixtures("queue")
def test_creating_the_same_queues_at_once_is_no_deadlock(connect: Connect, calls: Calls) -> None:
    one, two = connect(autocommit=False), connect()
    create_queue(one, "a")
    later = calls.begin(ops.value, two, "select pgq.create_queue('b')")
    create_queue(one, "b")
    one.commit()
    assert later.result() == 0


def test_releasing_a_partitioned_table_waits_for_its_writers_at_the_root(
    connect: Connect, conn: Connection, queue: str, calls: Calls
) -> None:
    conn.execute(
        "create table part (id int primary key) partition by list (id);"
        "create table part_1 partition of part for values in (1);"
        "create table part_2 partition of part for values in (2)"
    )
    conn.execute("select pgq.capture_table('part', %s, 'insert')", [queue])
    # In pg_trigger it comes after those of the partitions now.
    conn.execute(f"alter trigger part_{queue}_insert on part rename to last")
    writer, owner = connect(autocommit=False), connect()
    writer.execute("insert into part values (2)")
    released = calls.begin(ops.value, owner, "select pgq.release_table('part', %s)", queue)
    writer.execute("insert into part values (1)")
    writer.commit()
    assert released.result() == 1


def test_two_sessions_capture_a_table_one_after_the_other(
    connect: Connect, conn: Connection, queue: str, calls: Calls
) -> None:
    conn.execute("create table item (id int primary key)")
    one, two = connect(autocommit=False), connect()
    capture: LiteralString = "select pgq.capture_table('item', %s, replace => true)"
    function = ops.value(one, capture, queue)
    later = calls.begin(ops.value, two, capture, queue)
    one.commit()
    assert later.result() == function


# --- groups


def test_dropping_a_group_does_not_wait_for_creating_its_like_elsewhere(
    connect: Connect, conn: Connection, queue: str, calls: Calls
) -> None:
    create_queue(conn, OTHER)
    conn.execute("select pgq.create_group(%s, 'g', 2, 'ev_extra1')", [queue])
    # It has changed its owner: its row comes after that of partition 1 now.
    conn.execute("update pgq.group_partition set part_member = null where part_nr = 0")
    conn.execute("analyze pgq.group_partition")
    creator, dropper = connect(autocommit=False), connect()
    # As pgq.create_group() does.
    ops.register(creator, OTHER, "g#0")
    dropped = calls.begin(ops.value, dropper, "select pgq.drop_group(%s, 'g')", queue)
    ops.register(creator, OTHER, "g#1")
    creator.commit()
    assert dropped.result() == 1
    assert ops.value(conn, "select count(*) from pgq.consumer") == 2


def test_moving_a_partition_of_a_group_that_is_dropped_registers_a_consumer(
    connect: Connect, conn: Connection, queue: str, calls: Calls
) -> None:
    conn.execute("select pgq.create_group(%s, 'g', 1, 'ev_extra1')", [queue])
    dropper, mover = connect(autocommit=False), connect()
    # As pgq.drop_group() begins.
    dropper.execute("select pgq._lock_position(part_reg) from pgq.group_partition")
    moved = calls.begin(ops.value, mover, "select pgq.register_consumer_at(%s, 'g#0', 1)", queue)
    assert ops.value(dropper, "select pgq.drop_group(%s, 'g')", queue) == 1
    dropper.commit()
    assert moved.result() == 1
    assert ops.value(conn, "select sub_last_tick from pgq.subscription") == 1


def test_joining_a_group_that_is_dropped_meanwhile_fails_clearly(
    connect: Connect, conn: Connection, queue: str, calls: Calls
) -> None:
    conn.execute("select pgq.create_group(%s, 'g', 1, 'ev_extra1')", [queue])
    dropper = connect(autocommit=False)
    dropper.execute("select pgq.drop_group(%s, 'g')", [queue])
    join = "select member_id from pgq.join_group(%s, 'g', 'w')"
    joined = calls.begin(ops.value, connect(), join, queue)
    dropper.commit()
    with ops.refused("PQ036"):
        joined.result()


def test_a_member_leaves_a_group_that_is_dropped(
    connect: Connect, conn: Connection, queue: str, calls: Calls, member: int
) -> None:
    conn.execute("select pgq.next_group_batch(%s, 100)", [member])
    user = connect(autocommit=False)
    user.execute("select from pgq.group_partition for update")
    dropped = calls.begin(ops.value, connect(), "select pgq.drop_group(%s, 'g')", queue)
    left = calls.begin(ops.value, connect(), "select pgq.leave_group(%s)", member)
    user.commit()
    assert dropped.result() == 1
    assert left.result() == 0


def test_two_heartbeats_do_not_wait(connect: Connect, calls: Calls, member: int) -> None:
    late = connect(autocommit=False)
    assert ops.value(late, "select pgq.group_heartbeat(%s)", member)
    other = calls.begin(ops.value, connect(), "select pgq.group_heartbeat(%s)", member)
    late.commit()
    assert other.result()


def test_giving_up_parked_events_does_not_block_parking_more(
    connect: Connect, conn: Connection, queue: str, calls: Calls, member: int
) -> None:
    finish: LiteralString = (
        "select pgq.finish_group_batch(batch_id, generation, %s,"
        " array_fill('bad'::text, array[%s]), array_fill('0 s'::interval, array[%s]))"
        " from pgq.next_group_batch(%s, 100, i_parked => false)"
    )
    events = [insert_keyed(conn, queue, key) for key in "ab"]
    ops.tick(conn, queue)
    assert ops.value(conn, finish, events, 2, 2, member) == 2
    for key in "ba":
        insert_keyed(conn, queue, key)
    ops.tick(conn, queue)
    worker, user = connect(), connect(autocommit=False)
    assert ops.value(user, "select pgq.give_up_parked(%s, 'g', 'a')", queue) == 1
    finished = calls.begin(ops.value, worker, finish, [], 0, 0, member)
    assert ops.value(user, "select pgq.give_up_parked(%s, 'g', 'b')", queue) == 1
    user.commit()
    assert finished.result() == 2
    assert ops.value(conn, "select count(*) from pgq.parked_event") == 2


def insert_keyed(conn: Connection, queue: str, key: str) -> int:
    ev_id: int = ops.value(
        conn, "select pgq.insert_event(%s, 't', 'd', %s, null, null, null)", queue, key
    )
    return ev_id


# --- consumers


def test_a_member_that_is_unregistered_takes_nothing_over(
    connect: Connect, conn: Connection, queue: str, calls: Calls
) -> None:
    for name in ("dead", "alive"):
        conn.execute("select pgq_coop.register_subconsumer(%s, 'c', %s)", [queue, name])
    ops.insert_ticked(conn, queue, "a")
    batch = ops.value(conn, "select pgq_coop.next_batch(%s, 'c', 'dead')", queue)
    worker, admin = connect(autocommit=False), connect()
    # As pgq_coop._take_over() begins.
    worker.execute(
        "select pgq._lock_position(reg_id)"
        " from pgq.registration join pgq.consumer on co_id = sub_consumer"
        " where co_name in ('c', 'c.alive') order by reg_id"
    )
    gone = calls.begin(ops.value, admin, "select pgq.unregister_consumer(%s, 'c.alive')", queue)
    taken = ops.value(worker, "select pgq_coop.next_batch(%s, 'c', 'alive', '0 s')", queue)
    worker.commit()
    assert taken in (None, batch)
    assert gone.result() == (taken is None)
    assert ops.value(conn, "select pgq_coop.next_batch(%s, 'c', 'third', '0 s')", queue) == batch


def test_a_counter_of_rows_is_unregistered_while_it_begins(
    connect: Connect, conn: Connection, queue: str, calls: Calls
) -> None:
    conn.execute("create table item (id int primary key)")
    conn.execute("select pgq.capture_table('item', %s)", [queue])
    ops.register(conn, queue, "counter")
    batch = ops.open_batch(conn, queue, "counter", "a")
    counter, admin = connect(autocommit=False), connect()
    counter.execute(
        "select pgq.start_row_count(%s, 'counter', 'item', 0, txid_current_snapshot(), %s)",
        [queue, batch],
    )
    gone = calls.begin(ops.value, admin, "select pgq.unregister_consumer(%s, 'counter')", queue)
    ops.finish(counter, batch)
    counter.commit()
    assert gone.result() == 1
