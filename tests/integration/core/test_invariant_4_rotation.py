"""Rotation never truncates what some consumer, open batch or retry has not passed, whichever
transactions are open; and it never waits.
"""

from __future__ import annotations

import pytest
from psycopg import IsolationLevel

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection

pytestmark = pytest.mark.smoke


def test_a_consumer_that_does_not_move_keeps_its_events(conn: Connection, rotating: str) -> None:
    ops.register(conn, rotating, "sleeps")
    expected = [f"event {number}" for number in range(8)]
    for data in expected:
        ops.insert(conn, rotating, data)
        ops.deliver(conn, rotating, "c")
        ops.rotate(conn, rotating)
    assert ops.drain(conn, rotating, "sleeps") == expected


def test_an_open_batch_keeps_its_events(conn: Connection, rotating: str) -> None:
    ops.rotate_idle(conn, rotating, "c", 2)
    ops.deliver(conn, rotating, "c")
    batch = ops.open_batch(conn, rotating, "c", "event")
    moved = 0
    for _ in range(5):
        ops.tick(conn, rotating)
        moved += ops.rotate(conn, rotating)
    assert moved == 1
    assert ops.payloads(conn, batch) == ["event"]


def test_a_retried_event_survives_rotations(conn: Connection, rotating: str) -> None:
    batch = ops.open_batch(conn, rotating, "c", "again")
    assert ops.value(conn, "select pgq.batch_retry(%s, -1)", batch) == 1
    ops.finish(conn, batch)
    ops.rotate_idle(conn, rotating, "c", 4)
    assert ops.value(conn, "select pgq.maint_retry_events()") == 1
    ops.tick(conn, rotating)
    ops.rotate(conn, rotating)
    assert ops.deliver(conn, rotating, "c") == ["again"]


def test_a_transaction_that_has_written_into_a_table_holds_up_its_rotation(
    conn: Connection, connect: Connect, rotating: str
) -> None:
    producer = connect(autocommit=False)
    ops.insert(producer, rotating, "first")
    moved = 0
    for _ in range(5):
        ops.deliver(conn, rotating, "c")
        moved += ops.rotate(conn, rotating)
    assert moved <= 1
    producer.commit()
    assert ops.deliver(conn, rotating, "c") == ["first"]
    for _ in range(3):
        ops.deliver(conn, rotating, "c")
        assert ops.rotate(conn, rotating)


@pytest.mark.parametrize("end", ["rollback", "commit"])
def test_rotation_that_is_on_its_way_or_fails_is_invisible_to_consumers(
    conn: Connection, connect: Connect, rotating: str, end: str
) -> None:
    """A sequence is not undone by a rollback, even by that of a crash."""
    ops.rotate_idle(conn, rotating, "c", 3)
    ops.deliver(conn, rotating, "c")
    batch = ops.open_batch(conn, rotating, "c", "before")

    ticker = connect(autocommit=False)
    ticker.execute("select pgq.maint_rotate_tables_step1(%s)", [rotating])
    getattr(ticker, end)()

    assert ops.payloads(conn, batch) == ["before"]
    ops.finish(conn, batch)
    ops.insert(conn, rotating, "after")
    assert ops.deliver(conn, rotating, "c") == ["after"]
    conn.execute("select pgq.maint_rotate_tables_step2()")
    for number in range(4):
        ops.insert(conn, rotating, f"then {number}")
        assert ops.deliver(conn, rotating, "c") == [f"then {number}"]
        ops.rotate(conn, rotating)
    assert ops.rotations(conn, rotating) > 4


def test_an_event_written_while_step_1_is_not_committed_is_delivered(
    conn: Connection, connect: Connect, rotating: str
) -> None:
    ops.rotate_idle(conn, rotating, "c", 1)
    ops.deliver(conn, rotating, "c")
    producer = connect(autocommit=False)
    old = ops.value(conn, "select pgq.current_event_table(%s)", rotating)
    producer.execute("select txid_current()")
    ticker = connect(autocommit=False)
    ticker.execute("select pgq.maint_rotate_tables_step1(%s)", [rotating])
    ops.copy(producer, old, ["copied"])
    ticker.commit()
    ops.insert(producer, rotating, "inserted")
    producer.commit()
    assert sorted(ops.deliver(conn, rotating, "c")) == ["copied", "inserted"]


def test_step_2_is_a_transaction_of_its_own(conn: Connection, connect: Connect, queue: str) -> None:
    ops.rotate_whenever_asked(conn, queue)
    ticker = connect(autocommit=False)
    for within in ("", "savepoint s"):
        if within:
            ticker.execute(within.encode())
        ticker.execute("select pgq.maint_rotate_tables_step1(%s)", [queue])
        with ops.refused("PQ013"):
            ticker.execute("select pgq.maint_rotate_tables_step2()")
        ticker.rollback()


def test_a_second_step_1_waits_for_step_2(conn: Connection, queue: str) -> None:
    ops.rotate_whenever_asked(conn, queue)
    for _ in range(3):
        conn.execute("select pgq.maint_rotate_tables_step1(%s)", [queue])
    assert ops.rotations(conn, queue) == 1
    conn.execute("select pgq.maint_rotate_tables_step2()")
    assert ops.rotate(conn, queue)


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_ticks_and_rotation_refuse_to_decide_by_an_old_snapshot(
    connect: Connect, rotating: str, level: IsolationLevel
) -> None:
    ticker = connect(level=level)
    for call in (
        "pgq.maint_rotate_tables_step1('test_queue')",
        "pgq.maint_rotate_tables_step2()",
        "pgq.maint_rotate_logs()",
        "pgq.ticker('test_queue')",
    ):
        ticker.execute("select pgq.force_tick(%s)", [rotating])
        with ops.refused("PQ012"):
            ticker.execute(f"select {call}".encode())
        ticker.rollback()


def test_rotation_skips_a_table_that_a_reader_has_locked_and_never_waits(
    conn: Connection, connect: Connect, rotating: str
) -> None:
    """pg_dump reads every table and keeps its locks to the end."""
    ops.rotate_idle(conn, rotating, "c", 1)
    dump = connect(autocommit=False)
    dump.execute("select count(*) from pgq.event_template")
    conn.execute("set lock_timeout = '10 s'")
    for _ in range(3):
        assert ops.deliver(conn, rotating, "c") == []
        assert not ops.rotate(conn, rotating)
        ops.insert(conn, rotating, "goes on")
        assert ops.deliver(conn, rotating, "c") == ["goes on"]
    ops.rotate_logs(conn)
    dump.rollback()
    ops.deliver(conn, rotating, "c")
    assert ops.rotate(conn, rotating)


def test_the_logs_rotate_under_consumers_without_losing_a_position(
    conn: Connection, connect: Connect, queue: str
) -> None:
    names = [f"consumer {number}" for number in range(5)]
    for name in names:
        ops.register(conn, queue, name)
    delivered: dict[str, list[str]] = {name: [] for name in names}
    for number in range(10):
        ops.insert_ticked(conn, queue, f"event {number}")
        busy = connect(autocommit=False)
        late = ops.next_batch(busy, queue, names[number % 5])
        ops.rotate_logs(conn)
        delivered[names[number % 5]] += ops.payloads(busy, late)
        ops.finish(busy, late)
        busy.commit()
        ops.rotate_logs(conn)
        for name in names[number % 5 + 1 :]:
            delivered[name] += ops.drain(conn, queue, name)
    expected = [f"event {number}" for number in range(10)]
    for name in names:
        assert delivered[name] + ops.drain(conn, queue, name) == expected
    assert ops.value(conn, "select min(log_rotations) from pgq.log where log_name <> 'moved'") > 3


def test_of_early_ticks_the_log_keeps_the_newest_and_those_that_positions_name(
    conn: Connection, queue: str
) -> None:
    ops.register(conn, queue, "c")
    newest = ops.insert_ticked(conn, queue, "event")
    batch = ops.next_batch(conn, queue, "c")
    for _ in range(3):
        newest = ops.tick(conn, queue)
    for log in ("tick_0", "tick_1"):
        conn.execute(f"update pgq.{log} set tick_early = true".encode())
    named = conn.execute("select sub_last_tick, sub_next_tick from pgq.subscription").fetchall()
    ops.rotate_logs(conn)
    kept = conn.execute("select tick_id from pgq.tick order by tick_id").fetchall()
    assert [tick for (tick,) in kept] == [*named[0], newest]
    assert ops.payloads(conn, batch) == ["event"]
