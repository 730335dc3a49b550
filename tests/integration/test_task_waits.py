"""Calls that wait for each other's tasks, queues and sequences do it in one order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from pgqpy.errors import TaskQueueNotFound, from_psycopg
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_db import Connect, Connection

Q = "mails"
OTHER = "another"
DROP = "select pgq_task.drop_queue('mails', true)"

Call = Callable[[Connection], Any]
Wait = Callable[[Connection, Call], "Future[Any]"]


@pytest.fixture(autouse=True)
def queues(conn: Connection) -> None:
    for queue in (Q, OTHER):
        ops.value(conn, "select pgq_task.create_queue(%s)", queue)


@pytest.fixture
def wait(conn: Connection) -> Iterator[Wait]:
    """Begin a call that has to wait, and go on when it does, or is done."""
    blocked = "select cardinality(pg_blocking_pids(%s)) > 0"
    with ThreadPoolExecutor(4) as pool:

        def begin(caller: Connection, call: Call) -> Future[Any]:
            begun = pool.submit(call, caller)
            while not begun.done() and not ops.value(conn, blocked, caller.info.backend_pid):
                conn.execute("select pg_sleep(0.01)")
            return begun

        yield begin


def run(statement: str, *parameters: object) -> Call:
    return lambda conn: conn.execute(statement.encode(), parameters).fetchall()


def assert_gone(begun: Future[Any]) -> None:
    """It says that the queue is."""
    with pytest.raises(psycopg.Error) as caught:
        begun.result()
    assert isinstance(from_psycopg(caught.value), TaskQueueNotFound), caught.value


def sequence(conn: Connection, name: str, queue: str = Q) -> str:
    queue_id = ops.value(conn, "select queue_id from pgq_task.queue where queue_name = %s", queue)
    return f"pgq_task.{name.format(queue_id)}"


def push_in_order(conn: Connection, number: int, **options: object) -> list[int]:
    return [tasks.push(conn, Q, **options) for _ in range(number)]


def lock(conn: Connection, task: int) -> None:
    """As somebody does who is about to change it."""
    conn.execute("select from pgq_task.task where id = %s for update", [task])


def test_tasks_are_finished_in_the_order_in_which_others_lock_them(
    conn: Connection, connect: Connect, wait: Wait
) -> None:
    first, second, third = push_in_order(conn, 3)
    versions = dict(tasks.claim(conn, Q, number=3))
    holder, changer, worker = connect(autocommit=False), connect(), connect()
    lock(holder, second)
    changes = [{"id": task} for task in (first, second, third)]
    changing = wait(changer, lambda c: tasks.modify(c, changes=changes, force=True))
    ids = [third, first]
    finishing = wait(
        worker,
        run("select pgq_task.finish_many('w', %s, %s)", ids, [versions[task] for task in ids]),
    )
    holder.rollback()
    assert len(changing.result()) == 3
    assert {row[0] for row in finishing.result()} == {first, third}
