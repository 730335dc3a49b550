"""The vocabulary of queues: pop at most once; reserve, commit and roll back at least once; what has
failed too often is kept apart."""

from __future__ import annotations

from typing import Any

import pytest

from pgqpy.errors import TaskConflict
from pgqpy.tasks import Task, Tasks, TaskWorker
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_task_worker import running
from tests.fixtures.task_ops import refused, sweep_until

QUEUE = "parcels"
IDLE = (
    "select count(*) = 0 from pg_stat_activity where datname = current_database()"
    " and backend_type = 'client backend' and state <> 'idle' and pid <> pg_backend_pid()"
)


@pytest.fixture
def tasks(conn: Connection) -> Tasks:
    tasks = Tasks(conn, "me")
    tasks.create_queue(QUEUE)
    return tasks


def pop(conn: Connection, number: int = 1) -> list[Any]:
    rows = conn.execute("select payload from pgq_task.pop(%s, %s)", [QUEUE, number])
    return [row[0] for row in rows]


def test_pops_have_the_order_of_priorities_and_times(conn: Connection, tasks: Tasks) -> None:
    tasks.push_many(QUEUE, ["first", "second"])
    tasks.push(QUEUE, "urgent", priority=1)
    tasks.push(QUEUE, "later", delay=3600)
    tasks.pause(QUEUE)
    assert pop(conn) == []
    tasks.resume(QUEUE)
    with conn.transaction(force_rollback=True):
        assert pop(conn) == ["urgent"]
        assert pop(conn) == ["first"]
    assert pop(conn) == ["urgent"]
    assert pop(conn, 10) == ["first", "second"]
    assert pop(conn, 10) == []


def test_two_sessions_that_pop_at_once_get_different_tasks_and_do_not_wait(
    conn: Connection, connect: Connect, tasks: Tasks
) -> None:
    tasks.push_many(QUEUE, [1, 2])
    other = connect(autocommit=False)
    assert pop(other) == [1]
    assert pop(conn, 10) == [2]
    other.rollback()
    assert pop(conn) == [1]


def reserve(tasks: Tasks, **options: Any) -> Task:
    (task,) = tasks.try_claim(QUEUE, random=False, **options)
    return task


def test_a_reserved_task_cannot_be_claimed(conn: Connection, tasks: Tasks) -> None:
    tasks.push_many(QUEUE, [1, 2])
    first = reserve(tasks)
    assert reserve(tasks).payload == 2
    assert tasks.try_claim(QUEUE) == []
    tasks.fail(first, "not now")
    again = reserve(tasks, lease=0.05)
    assert (again.payload, again.attempts, again.error) == (1, 2, "not now")
    # An abandoned reservation ends itself.
    [last] = wait_until(lambda: tasks.try_claim(QUEUE))
    with pytest.raises(TaskConflict, match="does not have task"):
        tasks.finish(again)
    tasks.fail(last, "not now", delay=3600)
    assert tasks.try_claim(QUEUE) == []
    left = ops.value(conn, "select at - now() from pgq_task.tasks where status = 'scheduled'")
    assert 3500 < left.total_seconds() <= 3600


@pytest.mark.any_pg
def test_a_pause_is_for_all_workers_and_its_end_wakes_them(dsn: str, tasks: Tasks) -> None:
    done: list[Any] = []
    workers = [TaskWorker(dsn, QUEUE, lambda task: done.append(task.payload)) for _ in range(2)]
    for worker in workers:
        worker.poll_interval = 3600.0
    with running(*workers):
        tasks.push(QUEUE, "before")
        wait_until(lambda: done == ["before"])
        tasks.pause(QUEUE)
        # A worker that was about to claim has done so.
        wait_until(lambda: ops.value(tasks.conn, IDLE))
        tasks.push_many(QUEUE, ["while", "it", "lasts"])
        # Both have looked again, found nothing, and wait.
        last = "select max(sweep_id) from pgq_task.sweep"
        before = ops.value(tasks.conn, last)
        wait_until(lambda: ops.value(tasks.conn, last) > before + 1)
        assert done == ["before"]
        tasks.resume(QUEUE)
        wait_until(lambda: sorted(done[1:]) == ["it", "lasts", "while"])


def dead_letter(conn: Connection) -> dict[str, Any]:
    row = conn.execute(
        "select queue, payload, attempts, unique_key, error, headers from pgq_task.tasks"
    ).fetchone()
    assert row is not None
    queue, payload, attempts, unique_key, error, headers = row
    assert (queue, payload, attempts, unique_key) == ("parcels.failed", {"n": 1}, 0, None)
    assert error == headers["reason"]
    assert headers.pop("failed_at")
    return dict(headers)


def test_a_task_that_failed_too_often_is_kept_apart(conn: Connection, tasks: Tasks) -> None:
    tasks.set_config(QUEUE, "max_attempts", 3)
    tasks.push(QUEUE, {"n": 1}, headers={"from": "shop"}, unique_key="u")
    gone = [tasks.fail(reserve(tasks), f"reason {number}") for number in (1, 2, 3)]
    assert gone == [False, False, True]
    assert dead_letter(conn) == {
        "from": "shop",
        "origin": QUEUE,
        "reason": "reason 3",
        "attempts": 3,
        "unique_key": "u",
    }


def test_a_task_fails_once_at_a_time(conn: Connection, tasks: Tasks) -> None:
    """Else the second failure would bury it in the error queue of the error queue."""
    tasks.push(QUEUE, {})
    task = reserve(tasks)
    twice = "select pgq_task.fail_many('me', %s, %s, array['a', 'b'], finals => '{true,true}')"
    both = [[task.id] * 2, [task.version] * 2]
    assert "failed twice" in refused(lambda: conn.execute(twice, both))


def test_attempts_of_workers_that_are_lost_count_too(conn: Connection, tasks: Tasks) -> None:
    tasks.set_config(QUEUE, "max_attempts", 2)
    tasks.push(QUEUE, {"n": 1})
    for _ in range(2):
        wait_until(lambda: tasks.try_claim(QUEUE, lease=0.001))
    buried = "select queue = 'parcels.failed' from pgq_task.tasks"
    sweep_until(conn, lambda: tasks.try_claim(QUEUE) or ops.value(conn, buried))
    assert dead_letter(conn) == {"origin": QUEUE, "reason": "the worker was lost", "attempts": 2}
