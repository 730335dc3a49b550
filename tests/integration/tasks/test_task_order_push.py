"""Tasks that are pushed behind others with their order_key: claims need not step over them.

They are held back at once, by a push that takes no lock. So the one before may end meanwhile, in a
session that knows nothing of them; a sweep sees to that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import LiteralString
from uuid import uuid4

import pytest
from psycopg import IsolationLevel

from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connect, Connection

Q = "orders"
IN_LANE: LiteralString = "select array_agg(id order by id) from pgq_task.task where pos is not null"


@pytest.fixture(autouse=True)
def task_queue(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue(%s)", [Q])


def push(conn: Connection, key: str | None = "k") -> int:
    return tasks.push(conn, Q, order_key=key)


def take(conn: Connection) -> list[int]:
    """All that can be claimed, and finish it."""
    claimed = tasks.claim(conn, Q, number=100)
    for task in claimed:
        conn.execute("select pgq_task.finish('w', %s, %s)", task)
    return [task_id for task_id, _ in claimed]


def sweep(conn: Connection) -> None:
    end = time.monotonic() + PATIENCE
    while not ops.value(conn, "select pgq_task.sweep()"):
        assert time.monotonic() < end
        time.sleep(0.01)


def one_by_one(conn: Connection) -> None:
    for key in "aaabbb":
        push(conn, key)


def in_a_transaction(conn: Connection) -> None:
    with conn.transaction():
        one_by_one(conn)


def in_one_statement(conn: Connection) -> None:
    conn.execute(
        "select pgq_task.push('orders', '1', order_key => k) from unnest('{a,a,a,b,b,b}'::text[]) k"
    )


def many(conn: Connection) -> None:
    conn.execute(
        "select pgq_task.push_many('orders', array_fill('1'::jsonb, array[6]),"
        " order_keys => '{a,a,a,b,b,b}')"
    )


def with_modify(conn: Connection) -> None:
    tasks.modify(conn, inserts=[{"queue": Q, "order_key": key} for key in "aaabbb"])


def with_unique_keys(conn: Connection) -> None:
    for key in "aaabbb":
        tasks.push(conn, Q, order_key=key, unique_key=str(uuid4()))


def moved_there(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue('others')")
    for key in "aaabbb":
        tasks.push(conn, "others", order_key=key)
    conn.execute("""select pgq_task.change_tasks('others', '{}', '{"queue": "orders"}')""")


@pytest.mark.parametrize(
    "way",
    [
        one_by_one,
        in_a_transaction,
        in_one_statement,
        many,
        with_modify,
        with_unique_keys,
        moved_there,
    ],
)
def test_only_the_first_of_each_key_stands_in_the_lane(
    conn: Connection, way: Callable[[Connection], None]
) -> None:
    way(conn)
    assert ops.value(conn, IN_LANE) == [1, 4]
    assert [take(conn) for _ in range(4)] == [[1, 4], [2, 5], [3, 6], []]
    way(conn)
    assert ops.value(conn, IN_LANE) == [7, 10]
    with conn.transaction():
        way(conn)
        assert ops.value(conn, IN_LANE) == [7, 10]


def test_tasks_without_a_key_among_many_stand_in_the_lane(conn: Connection) -> None:
    push(conn, "a")
    conn.execute(
        "select pgq_task.push_many('orders', array_fill('1'::jsonb, array[6]),"
        " order_keys => '{a,null,b,null,b,c}')"
    )
    assert ops.value(conn, IN_LANE) == [1, 3, 4, 5, 7]
    assert take(conn) == [1, 3, 4, 5, 7]


def test_a_push_does_not_hold_up_the_worker_on_the_task_before(
    conn: Connection, connect: Connect
) -> None:
    push(conn)
    pusher = connect(autocommit=False)
    push(pusher)
    conn.execute("set lock_timeout = '1s'")
    assert take(conn) == [1]
    pusher.commit()
    # No session could see that it was to be released.
    assert take(conn) == []
    sweep(conn)
    assert take(conn) == [2]


def test_a_task_pushed_while_the_one_before_is_being_finished_is_found(
    conn: Connection, connect: Connect
) -> None:
    push(conn)
    worker, pusher = connect(autocommit=False), connect()
    ((task, version),) = tasks.claim(conn, Q)
    worker.execute("select pgq_task.finish('w', %s, %s)", [task, version])
    push(pusher)
    for _ in range(2):
        # It is left to the next one, as long as it is not known how that ends.
        sweep(conn)
    worker.commit()
    sweep(conn)
    assert take(conn) == [2]
    sweep(conn)
    assert ops.value(conn, "select count(*) from pgq_task.to_release") == 0


def test_a_task_pushed_with_an_old_snapshot_is_found(conn: Connection, connect: Connect) -> None:
    push(conn)
    pusher = connect(autocommit=False)
    pusher.isolation_level = IsolationLevel.REPEATABLE_READ
    pusher.execute("select 1 from pgq_task.task")
    assert take(conn) == [1]
    push(pusher)
    pusher.commit()
    sweep(conn)
    assert take(conn) == [2]


def test_a_savepoint_that_is_rolled_back_takes_nothing_with_it(conn: Connection) -> None:
    with conn.transaction():
        with conn.transaction(force_rollback=True):
            push(conn)
        second = push(conn)
        with conn.transaction():
            third = push(conn)
        with conn.transaction(force_rollback=True):
            push(conn)
        last = push(conn)
    sweep(conn)
    assert [take(conn) for _ in range(4)] == [[second], [third], [last], []]


def test_a_scheduled_task_keeps_its_time(conn: Connection) -> None:
    push(conn)
    later = tasks.push(conn, Q, order_key="k", delay="1 hour")
    conn.execute(
        "select pgq_task.push_many('orders', array['1'::jsonb], delay => '1 hour',"
        " order_keys => array['k'])"
    )
    assert [
        task_id for task_id, status in tasks.statuses(conn).items() if status == "scheduled"
    ] == [
        later,
        later + 1,
    ]


def test_keys_of_a_queue_that_is_dropped_are_forgotten(conn: Connection) -> None:
    push(conn)
    push(conn)
    assert ops.value(conn, "select count(*) from pgq_task.to_release") == 1
    conn.execute("select pgq_task.drop_queue(%s, true)", [Q])
    sweep(conn)
    assert ops.value(conn, "select count(*) from pgq_task.to_release") == 0
