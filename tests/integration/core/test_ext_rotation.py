"""The memory of pgq_ext stays small by itself, leaves no dead rows, and loses nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from psycopg import IsolationLevel, errors

import pgqpy
from pgqpy import Event, RemoteConsumer, TrackedConsumer
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Calls, Connect, Connection, with_snapshot

TABLES = ("progress_0", "progress_1", "event_0", "event_1")
ROTATE_BYTES = 16384
SIZE = (
    "select sum(pg_relation_size(oid)) from pg_class where relnamespace = 'pgq_ext'::regnamespace"
    " and relname ~ '^(progress|event)_[01]$'"
)


def rotate_early(conn: Connection) -> None:
    call(conn, "set_batch_done('first', 1)")
    conn.execute("update pgq_ext.log set log_rotate_bytes = %s", [ROTATE_BYTES])


def rotations(conn: Connection) -> int:
    return int(ops.value(conn, "select pg_sequence_last_value('pgq_ext.log_seq')"))


def call(conn: Connection, statement: str, *parameters: object) -> Any:
    return ops.value(conn, f"select pgq_ext.{statement}", *parameters)


def do_batches(conn: Connection, consumer: str, first: int, last: int) -> None:
    for batch in range(first, last):
        call(conn, "set_batch_done(%s, %s)", consumer, batch)


def test_batches_and_events_leave_no_dead_rows_while_a_transaction_stays_open(
    conn: Connection, connect: Connect
) -> None:
    rotate_early(conn)
    forgotten = connect(level=IsolationLevel.REPEATABLE_READ)
    forgotten.execute("create temporary table mine ()")
    assert ops.value(forgotten, "select txid_current()")
    sizes = []
    for batch in range(1, 1000):
        call(conn, "set_batch_done('c', %s)", batch)
        call(conn, "set_event_done('e', %s, 1)", batch)
        sizes.append(ops.value(conn, SIZE))
    assert rotations(conn) > 2
    # Two of each at most: those that are written, and those that are to be emptied.
    assert max(sizes) < 6 * ROTATE_BYTES
    conn.execute("select pg_stat_force_next_flush()")
    died = conn.execute(
        "select relname, n_tup_upd + n_tup_del from pg_stat_user_tables"
        " where schemaname = 'pgq_ext' and n_tup_upd + n_tup_del > 0"
    ).fetchall()
    # A row for each step of a rotation, none for a batch or an event.
    assert [name for name, _ in died] == ["log"]
    assert died[0][1] <= 3 * rotations(conn) + 3


def test_rotation_carries_over_what_is_needed(conn: Connection) -> None:
    """Includes consumers that were quiet all the time, and the events of their open batches."""
    rotate_early(conn)
    call(conn, "set_last_tick('quiet', 17)")
    call(conn, "set_batch_done('quiet', 5)")
    for event in range(20):
        call(conn, "set_event_done('quiet', 6, %s)", event)
    call(conn, "set_event_done('quiet', '', 6, 3, 1)")
    call(conn, "set_last_tick('quiet', 18)")
    seen = set()
    for batch in range(1, 1000):
        call(conn, "set_batch_done('busy', %s)", batch)
        if rotations(conn) not in seen:
            seen.add(rotations(conn))
            call(conn, "set_event_done('quiet', 6, %s)", 100 + len(seen))
        if batch % 40 == 0:
            assert call(conn, "get_last_tick('quiet')") == 18
            assert call(conn, "is_batch_done('quiet', 5)")
            assert all(call(conn, "is_event_done('quiet', 6, %s)", n) for n in range(20))
            assert all(
                call(conn, "is_event_done('quiet', 6, %s)", 101 + n) for n in range(len(seen))
            )
            assert call(conn, "is_event_done('quiet', '', 6, 3, 1)")
            assert not call(conn, "is_event_done('quiet', '', 6, 4, 1)")
            assert not call(conn, "is_event_done('quiet', 6, 20)")
            assert call(conn, "is_batch_done('busy', %s)", batch)
    assert len(seen) > 3


def test_many_at_once_lose_nothing(conn: Connection, connect: Connect) -> None:
    rotate_early(conn)

    def work(name: str, own: Connection) -> None:
        batch = 0
        # A step is left out if a session of the moment is in its way.
        while batch < 100 or rotations(own) < 2:
            batch += 1
            with own.transaction():
                done, _ = own.execute(
                    "select * from pgq_ext.begin_batch(%s, 'q', %s, %s, null, %s, null)",
                    [name, batch, batch - 1, batch],
                ).fetchall()[0]
                assert not done
                call(own, "end_batch(%s, 'q', %s, %s, null, null)", name, batch, batch)
            for new in (True, False):
                for event in range(4):
                    assert call(own, "set_event_done(%s, %s, %s)", name, batch, event) is new

    names = [f"c{number}" for number in range(6)]
    for name in names:
        call(conn, "set_last_tick(%s, 'q', 0)", name)
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(work, names, [connect() for _ in names], timeout=PATIENCE))


def test_rotations_do_not_wait_for_readers(conn: Connection, connect: Connect) -> None:
    rotate_early(conn)
    reader = connect(autocommit=False)
    reader.execute("select * from pgq_ext.completed_event")
    conn.execute("set lock_timeout = '20s'")
    do_batches(conn, "c", 1, 1000)
    reader.rollback()
    before = ops.value(conn, SIZE)
    do_batches(conn, "c", 1000, 1010)
    assert ops.value(conn, SIZE) < before


def test_emptying_makes_no_session_wait(conn: Connection, connect: Connect) -> None:
    rotate_early(conn)
    holder, other = connect(), connect()
    batch = 1
    call(other, "set_batch_done('other', 1)")
    while True:
        batch += 1
        holder.execute("begin")
        call(holder, "set_batch_done('holder', %s)", batch)
        if ops.value(
            holder,
            "select count(*) from pg_locks where pid = pg_backend_pid()"
            " and mode = 'AccessExclusiveLock' and relation is not null",
        ):
            break
        holder.execute("commit")
    # More writes of the same transaction must not go into a table that others cannot use.
    do_batches(holder, "holder", batch + 1, batch + 500)
    other.execute("set lock_timeout = '20s'")
    do_batches(other, "other", 2, 200)
    holder.execute("commit")
    assert call(other, "is_batch_done('other', 199)")


def test_an_old_snapshot_is_told_to_start_over(conn: Connection, connect: Connect) -> None:
    rotate_early(conn)
    call(conn, "set_batch_done('c', 1)")
    old = with_snapshot(connect)
    assert ops.value(old, "select txid_current_snapshot() is not null")
    start = rotations(conn)
    batch = 1
    while rotations(conn) < start + 2:
        batch += 1
        call(conn, "set_batch_done('b', %s)", batch)
    with pytest.raises(errors.SerializationFailure):
        call(old, "is_batch_done('c', 1)")
    old.rollback()
    assert call(old, "is_batch_done('c', 1)") is True


def test_of_two_transactions_with_old_snapshots_only_one_does_the_batch(
    conn: Connection, connect: Connect
) -> None:
    call(conn, "set_batch_done('c', 1)")
    first, second = with_snapshot(connect), with_snapshot(connect)
    assert call(first, "is_batch_done('c', 2)") is False
    assert call(second, "is_batch_done('c', 2)") is False
    assert call(first, "set_batch_done('c', 2)") is True
    first.commit()
    with pytest.raises(errors.SerializationFailure):
        call(second, "set_batch_done('c', 2)")


@pytest.mark.parametrize("batch", [1, 2])
def test_an_old_snapshot_does_not_begin_an_event_that_was_done_since(
    conn: Connection, connect: Connect, batch: int
) -> None:
    """Its effect, say a mail, could not be rolled back."""
    event = f"'c', '', %s, {batch}, '2000-01-0{batch}', {batch + 1}, 'today', %s, 0, 'today'"
    call(conn, "end_event('c', '', 1, 1, '2000-01-01', 2, '2000-01-02', 1, 0, 'today')")
    old = with_snapshot(connect)
    call(conn, f"end_event({event})", batch, 2)
    with pytest.raises(errors.SerializationFailure), old.transaction():
        call(old, f"begin_event({event})", batch, 2)
    old.rollback()
    assert call(old, f"begin_event({event})", batch, 2) is True
    assert call(old, f"begin_event({event})", batch, 3) is False
    assert call(old, f"end_event({event})", batch, 3) is True
    old.commit()
    assert call(conn, "is_event_done('c', '', %s, 3)", batch) is True


@pytest.mark.parametrize(
    "isolation_level", [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ]
)
@pytest.mark.parametrize("kind", [RemoteConsumer, TrackedConsumer])
def test_consumers_keep_small_what_is_remembered_whatever_their_isolation_level(
    dsn: str,
    target_dsn: str,
    target: Connection,
    conn: Connection,
    queue: str,
    kind: type[RemoteConsumer | TrackedConsumer],
    isolation_level: IsolationLevel,
) -> None:
    class Copy(kind):  # type: ignore[misc, valid-type]
        target_isolation_level = isolation_level

        def process_remote_event(self, target: pgqpy.Connection, event: Event) -> None:
            done.append(event.data)

        process_tracked_event = process_remote_event

    done: list[str | None] = []
    copy = Copy(dsn, target_dsn=target_dsn, queue=queue, consumer="copy")
    copy.batch_size = 1
    copy.run(until_empty=True)
    call(target, "set_batch_done('other', 1)")
    target.execute("update pgq_ext.log set log_rotate_bytes = 0")
    sent = [str(number) for number in range(12)]
    for data in sent:
        ops.insert_ticked(conn, queue, data)
    copy.run(until_empty=True)
    assert done == sent
    assert rotations(target) >= 2
    assert call(target, "is_batch_done('other', 1)")


def test_the_ticker_rotates_where_no_other_role_can(conn: Connection, connect: Connect) -> None:
    rotate_early(conn)
    old = connect()
    old.execute("set default_transaction_isolation = 'repeatable read'")
    listed = "select * from pgq.maint_operations() where func_name = 'pgq_ext.rotate'"
    batch = 1
    while ops.value(conn, SIZE) <= ROTATE_BYTES:
        assert conn.execute(listed).fetchall() == []
        batch += 1
        call(old, "set_batch_done('c', %s)", batch)
    assert rotations(conn) == 0
    assert conn.execute(listed).fetchall() == [("pgq_ext.rotate", None)]
    while conn.execute(listed).fetchall():
        call(conn, "rotate()")
    assert rotations(conn) == 1
    assert call(conn, "is_batch_done('c', %s)", batch)


def test_what_is_remembered_is_durable_before_the_batch_is_finished_elsewhere(
    conn: Connection,
) -> None:
    for statement in (
        "set_batch_done('c', 1)",
        "set_last_tick('c', 1)",
        "set_event_done('c', 1, 1)",
    ):
        conn.execute("begin")
        conn.execute("set local synchronous_commit = off")
        call(conn, statement)
        assert ops.value(conn, "select current_setting('synchronous_commit')") == "on"
        conn.execute("commit")


def test_late_commits_are_carried_over_too(conn: Connection, connect: Connect) -> None:
    """A long batch of one consumer, while others work."""
    rotate_early(conn)
    call(conn, "set_batch_done('slow', 1)")
    call(conn, "set_event_done('slow', 7, 1)")
    slow = connect(autocommit=False)
    call(slow, "set_batch_done('slow', 2)")
    call(slow, "set_event_done('slow', 7, 2)")
    start = rotations(conn)
    do_batches(conn, "busy", 1, 800)
    assert rotations(conn) > start
    slow.commit()
    for batch in (800, 810):
        assert call(conn, "is_batch_done('slow', 2)") is True
        assert call(conn, "is_event_done('slow', 7, 2)") is True
        do_batches(conn, "busy", batch, batch + 10)


def test_an_event_that_is_carried_over_while_it_is_looked_for_is_found(
    conn: Connection, connect: Connect, calls: Calls
) -> None:
    call(conn, "set_event_done('c', 1, 1)")
    conn.execute("update pgq_ext.log set log_rotations = 1")
    conn.execute("select setval('pgq_ext.log_seq', 1)")
    rotating = connect(autocommit=False)
    assert call(rotating, "_carry_over('0', '1')")
    # A session that looks for the state has looked for the event, or will do so.
    rotating.execute("lock table pgq_ext.progress_1 in access exclusive mode")
    looking = "_has_event(p, 1, 0, null) from pgq_ext.progress_0 p"
    found = calls.blocked(call, connect(), looking)
    rotating.commit()
    assert found.result() is True


def test_an_old_snapshot_is_told_to_start_over_also_after_half_a_rotation(
    conn: Connection, connect: Connect
) -> None:
    """The table it sees is emptied after the change of tables, and nothing else changes then."""
    rotate_early(conn)
    call(conn, "set_batch_done('c', 1)")
    call(conn, "set_event_done('e', 1, 1)")
    assert rotations(conn) == 0
    batch = 1
    while rotations(conn) == 0:
        batch += 1
        call(conn, "set_batch_done('b', %s)", batch)
    old = with_snapshot(connect)
    while ops.value(conn, "select pg_relation_size('pgq_ext.progress_0') > 0"):
        batch += 1
        call(conn, "set_batch_done('b', %s)", batch)
    assert rotations(conn) == 1
    for statement in (
        "is_batch_done('c', 1)",
        "set_batch_done('c', 1)",
        "is_event_done('e', 1, 1)",
        "set_event_done('e', 1, 1)",
        "set_last_tick('c', 1)",
    ):
        with pytest.raises(errors.SerializationFailure), old.transaction():
            call(old, statement)
