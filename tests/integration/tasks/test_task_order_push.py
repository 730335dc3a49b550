"""Tasks that are pushed behind others with their order_key: claims need not step over them.

They are held back at once, by a push that takes no lock. So the one before may end meanwhile, in a
session that knows nothing of them; a sweep sees to that.
"""

from __future__ import annotations

from typing import LiteralString

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_db import Connect, Connection, with_snapshot
from tests.fixtures.task_ops import sweep

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
    tasks.finish(conn, *claimed)
    return tasks.ids(claimed)


KEYS = " from unnest('{a,a,a,b,b,b}'::text[]) k"
MANY = "push_many('orders', array_fill('1'::jsonb, array[6]), order_keys => '{a,a,a,b,b,b}')"
WAYS = {
    "one by one": "",
    "in one statement": f"push('orders', '1', order_key => k) {KEYS}",
    "many": MANY,
    "modify": "modify('w', (select jsonb_agg("
    f"jsonb_build_object('queue', 'orders', 'order_key', k)) {KEYS}))",
    "unique keys": "push('orders', '1', order_key => k, unique_key => gen_random_uuid()::text)"
    + KEYS,
    "moved there": """change_tasks('others', '{}', '{"queue": "orders"}')""",
}


def push_all(conn: Connection, way: str) -> None:
    """Three tasks of each of two keys."""
    if way == "moved there":
        conn.execute("select pgq_task.create_queue('others')")
        conn.execute(f"select pgq_task.{MANY.replace('orders', 'others')}".encode())
    if WAYS[way]:
        conn.execute(f"select pgq_task.{WAYS[way]}".encode())
    else:
        for key in "aaabbb":
            push(conn, key)


@pytest.mark.parametrize("way", WAYS)
def test_only_the_first_of_each_key_stands_in_the_lane(conn: Connection, way: str) -> None:
    push_all(conn, way)
    assert ops.value(conn, IN_LANE) == [1, 4]
    assert [take(conn) for _ in range(4)] == [[1, 4], [2, 5], [3, 6], []]
    with conn.transaction():
        push_all(conn, way)
        assert ops.value(conn, IN_LANE) == [7, 10]
    push_all(conn, way)
    assert ops.value(conn, IN_LANE) == [7, 10]


def test_tasks_without_a_key_among_many_stand_in_the_lane(conn: Connection) -> None:
    push(conn, "a")
    conn.execute(
        "select pgq_task.push_many('orders', array_fill('1'::jsonb, array[6]),"
        " order_keys => '{a,null,b,null,b,c}')"
    )
    assert ops.value(conn, IN_LANE) == [1, 3, 4, 5, 7]
    assert take(conn) == [1, 3, 4, 5, 7]


def test_a_push_does_not_hold_up_a_worker(conn: Connection, connect: Connect) -> None:
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


def test_a_task_pushed_while_the_head_ends_is_found(conn: Connection, connect: Connect) -> None:
    push(conn)
    worker, pusher = connect(autocommit=False), connect()
    tasks.finish(worker, *tasks.claim(conn, Q))
    push(pusher)
    # It is left to the next one, as long as it is not known how that ends.
    sweep(conn, 2)
    worker.commit()
    sweep(conn)
    assert take(conn) == [2]
    sweep(conn)
    assert ops.value(conn, "select count(*) from pgq_task.to_release") == 0


def test_a_task_pushed_with_an_old_snapshot_is_found(conn: Connection, connect: Connect) -> None:
    push(conn)
    pusher = with_snapshot(connect)
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
    found = [task for task, status in tasks.statuses(conn).items() if status == "scheduled"]
    assert found == [later, later + 1]
