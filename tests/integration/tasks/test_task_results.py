"""The result of a task is returned to the session that pushed it."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from pgqpy.errors import InvalidTask, TaskFailed
from pgqpy.tasks import AsyncTasks, TaskApp, Tasks
from tests.fixtures import task_ops as ops
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_task_worker import running

QUEUE = "sums"


@pytest.fixture
def tasks(conn: Connection) -> Tasks:
    tasks = Tasks(conn)
    tasks.create_queue(QUEUE)
    tasks.set_config(QUEUE, "keep", "1 hour")
    return tasks


@pytest.mark.any_pg
def test_a_result_is_waited_for(tasks: Tasks, conn: Connection, dsn: str, connect: Connect) -> None:
    app = TaskApp(QUEUE)

    @app.task
    def add(one: int, other: int) -> dict[str, int]:
        return {"sum": one + other}

    @app.task
    def nothing() -> None: ...

    five, none = add.push(conn, 2, 3), nothing.push(conn)
    with pytest.raises(TimeoutError, match="is waiting"):
        tasks.result(five, wait=0)
    with running(app.worker(dsn)):
        assert tasks.result(five, wait=PATIENCE) == {"sum": 5}
        assert tasks.result(none, wait=PATIENCE) is None

        async def ask() -> object:
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as aconn:
                return await AsyncTasks(aconn).result(await add.push(aconn, 4, 5), wait=PATIENCE)

        assert asyncio.run(ask()) == {"sum": 9}


@pytest.mark.any_pg
def test_a_failure_is_a_result_too(tasks: Tasks, conn: Connection, dsn: str) -> None:
    app = TaskApp(QUEUE, retry_policy=lambda attempt, error: None)

    @app.task
    def divide(by: int) -> float:
        return 1 / by

    failed, gone = divide.push(conn, 0), divide.push(conn, 1)
    assert tasks.cancel(gone)
    app.worker(dsn).run(until_empty=True)
    with pytest.raises(TaskFailed, match="ZeroDivisionError"):
        tasks.result(failed)
    with pytest.raises(TaskFailed, match=f"task {gone} was deleted"):
        tasks.result(gone)


def test_a_task_without_a_result_is_not_waited_for(tasks: Tasks, connect: Connect) -> None:
    with connect(autocommit=False) as other:
        task = ops.push(other, QUEUE)
        with pytest.raises(InvalidTask, match="was pushed in this transaction"):
            Tasks(other).result(task, wait=PATIENCE)
    with pytest.raises(TimeoutError, match="is waiting"):
        tasks.result(task, wait=0)
    # Nothing is known of what was not kept.
    tasks.set_config(QUEUE, "keep", 0)
    [claimed] = tasks.try_claim(QUEUE)
    with pytest.raises(TimeoutError, match="is claimed"):
        tasks.result(task, wait=0.05)
    tasks.finish(claimed, 5)
    with pytest.raises(InvalidTask, match="nothing is known"):
        tasks.result(task)


def test_looking_for_a_result_locks_no_queues_but_its_own(tasks: Tasks, conn: Connection) -> None:
    """Locks are limited, and hundreds of queues may keep results."""
    for queue in ("a", "b", "c"):
        tasks.create_queue(queue)
        tasks.set_config(queue, "keep", "1 day")
    task = tasks.push("b", {})
    tasks.finish(tasks.try_claim("b")[0], {"n": 1})
    locked = (
        "select count(distinct substring(relation::regclass::text from 'finished_([0-9]+)'))"
        " from pg_locks where pid = pg_backend_pid()"
    )
    with conn.transaction():
        assert tasks.result(task) == {"n": 1}
        assert conn.execute(locked).fetchone() == (1,)
