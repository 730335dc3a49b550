"""The number of a group's partitions changes: no key is lost, doubled or out of order."""

from __future__ import annotations

from itertools import chain

import pytest
from psycopg import errors

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Calls, Connect, Connection, with_snapshot
from tests.fixtures.group_ops import (
    GROUP,
    beat,
    create,
    drain,
    fail,
    fill,
    finish,
    join,
    must_take,
    one_batch,
    owned,
    read,
    resize,
    take,
)


def partitions_now(conn: Connection) -> int:
    number: int = ops.value(conn, "select partitions from pgq.get_group_info()")
    return number


def test_resizing_waits_until_all_stand_on_one_tick(conn: Connection, queue: str) -> None:
    create(conn, queue, 2)
    keys = [f"k{number}" for number in range(20)]
    fill(conn, queue, *keys)
    member = join(conn, queue)
    batch = must_take(conn, member)
    first = read(conn, batch)
    assert resize(conn, queue, 5) is not None
    fill(conn, queue, *keys, data="later")
    finish(conn, batch)
    other = must_take(conn, member)
    assert other.partition != batch.partition
    # Not beyond the tick.
    assert sorted(first + read(conn, other)) == sorted((key, "") for key in keys)
    finish(conn, other)
    found = drain(conn, member)
    assert len(found) > 2
    assert sorted(chain(*found.values())) == sorted((key, "later") for key in keys)
    assert partitions_now(conn) == 5


def test_resizing_and_parking_a_key_do_not_wait_for_each_other(
    connect: Connect, conn: Connection, queue: str, calls: Calls
) -> None:
    _, batch = one_batch(conn, queue)
    worker = connect(autocommit=False)
    # As pgq.finish_group_batch() begins, which parks the key then.
    worker.execute("select pgq._lock_position(part_reg) from pgq.group_partition")
    resized = calls.blocked(resize, connect(), queue, 3)
    assert fail(worker, batch, 1) == 1
    worker.commit()
    assert resized.result() is None


def test_two_resizes_wait_in_no_circle(connect: Connect, conn: Connection, queue: str) -> None:
    worker, admin = connect(), connect(autocommit=False)
    member, batch = one_batch(worker, queue)
    assert resize(conn, queue, 2) is not None
    finish(worker, batch)
    # As pgq.resize_group() begins. The positions are next, which must not be the worker's by then.
    admin.execute("select from pgq.consumer_group for no key update")
    worker.execute("set lock_timeout = '5 s'")
    assert beat(worker, member)
    assert take(worker, member) is None
    assert resize(admin, queue, 3) is None
    admin.commit()
    assert partitions_now(conn) == 3


def test_signs_of_life_resize_a_group_whose_workers_ask_under_old_snapshots(
    conn: Connection, connect: Connect, queue: str
) -> None:
    member, batch = one_batch(conn, queue)
    worker = connect()
    worker.execute("set default_transaction_isolation = 'repeatable read'")
    assert must_take(worker, member) == batch
    assert resize(conn, queue, 2) is not None
    finish(worker, batch)
    fill(conn, queue, "a")
    assert take(worker, member) is None
    assert beat(conn, member)
    assert partitions_now(conn) == 2
    assert drain(worker, member) != {}


def test_an_old_snapshot_does_not_go_beyond_the_tick_where_partitions_are_to_meet(
    conn: Connection, connect: Connect, queue: str
) -> None:
    create(conn, queue, 2)
    keys = {ops.value(conn, "select pgq.key_partition(%s, 2)", f"k{n}"): f"k{n}" for n in range(9)}
    fill(conn, queue, keys[0])
    member = join(conn, queue)
    first = must_take(conn, member)
    fill(conn, queue, keys[1], data="beyond")
    old = with_snapshot(connect)
    assert resize(conn, queue, 3) is not None
    with pytest.raises(errors.SerializationFailure):
        take(old, member, after=first.partition)
    old.rollback()
    finish(conn, first)
    assert take(conn, member) is None, "the other one gets there"
    assert list(chain(*drain(conn, member).values())) == [(keys[1], "beyond")]
    assert partitions_now(conn) == 3


def test_a_consumer_with_the_name_of_a_new_partition_stops_the_resizing_and_no_worker(
    conn: Connection, queue: str
) -> None:
    member, batch = one_batch(conn, queue, 2)
    unregister = "select pgq.unregister_consumer(%s, %s)"
    ops.register(conn, queue, f"{GROUP}#3")
    with ops.refused("PQ038"):
        resize(conn, queue, 4)
    conn.execute(unregister, [queue, f"{GROUP}#3"])
    assert resize(conn, queue, 4) is not None
    # And if it comes while the partitions are on their way.
    ops.register(conn, queue, f"{GROUP}#3")
    finish(conn, batch)
    assert drain(conn, member) == {}
    assert beat(conn, member)
    assert partitions_now(conn) == 2
    conn.execute(unregister, [queue, f"{GROUP}#3"])
    assert beat(conn, member)
    assert partitions_now(conn) == 4


def test_resizing_can_be_called_off(conn: Connection, queue: str) -> None:
    member, batch = one_batch(conn, queue, 2)
    assert resize(conn, queue, 5)
    assert resize(conn, queue, 2) is None
    finish(conn, batch)
    drain(conn, member)
    assert partitions_now(conn) == 2


@pytest.mark.parametrize("opened", [False, True], ids=["no batch", "a batch is open"])
def test_a_worker_that_had_read_the_group_before_it_was_resized_takes_no_wrong_keys(
    connect: Connect, conn: Connection, queue: str, calls: Calls, opened: bool
) -> None:
    worker, admin = connect(), connect(autocommit=False)
    create(conn, queue, 2)
    member = join(conn, queue)
    assert take(worker, member) is None
    assert resize(conn, queue, 3) is None
    fill(conn, queue, *"abcdefghij")
    # The worker knows of 3 partitions when it waits for the queue, which is read next.
    admin.execute("lock table pgq.queue")
    taking = calls.blocked(take, worker, member)
    assert resize(admin, queue, 7) is None
    if opened:
        must_take(admin, member)
    admin.commit()
    found = []
    if (batch := taking.result()) is not None:
        found = read(conn, batch)
        finish(conn, batch)
    for events in drain(worker, member).values():
        found += events
    assert sorted(key for key, _ in found if key) == [*"abcdefghij"]


def test_a_group_that_is_up_to_date_is_resized_at_once(conn: Connection, queue: str) -> None:
    create(conn, queue, 2)
    member = join(conn, queue)
    take(conn, member)
    assert resize(conn, queue, 3) is None
    assert owned(conn, member) == []
    fill(conn, queue, "a")
    assert len(drain(conn, member)) == 1
    assert owned(conn, member) == [0, 1, 2]
    assert resize(conn, queue, 1) is None
    assert ops.value(conn, "select count(*) from pgq.subscription") == 1
