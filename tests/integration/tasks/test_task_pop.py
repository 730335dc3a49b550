"""The vocabulary of queues: pop at most once; reserve, commit and roll back at least once; what has
failed too often is kept apart."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from threading import Thread
from time import monotonic, sleep
from typing import Any

import psycopg
import pytest

from pgqpy.errors import InvalidTask, from_psycopg
from pgqpy.tasks import Task, Tasks, TaskWorker
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connect, Connection

QUEUE = "parcels"
NOBODY_CLAIMS = (
    "select count(*) = 0 from pg_stat_activity where datname = current_database()"
    " and backend_type = 'client backend' and state <> 'idle' and pid <> pg_backend_pid()"
)
Eventually = Callable[[Callable[[], object]], None]


@pytest.fixture
def tasks(conn: Connection) -> Tasks:
    tasks = Tasks(conn, "me")
    tasks.create_queue(QUEUE)
    return tasks


def eventually(condition: Callable[[], object]) -> None:
    deadline = monotonic() + PATIENCE
    while not condition():
        assert monotonic() < deadline
        sleep(0.01)


def pop(conn: Connection, number: int = 1) -> list[Any]:
    rows = conn.execute("select payload from pgq_task.pop(%s, %s)", [QUEUE, number])
    return [row[0] for row in rows]


# --- pop


def test_popped_tasks_come_in_the_order_of_their_times_and_priorities(
    conn: Connection, tasks: Tasks
) -> None:
    tasks.push_many(QUEUE, ["first", "second"])
    tasks.push(QUEUE, "urgent", priority=1)
    tasks.push(QUEUE, "later", delay=3600)
    assert pop(conn) == ["urgent"]
    assert pop(conn, 10) == ["first", "second"]
    assert pop(conn, 10) == []


def test_a_popped_task_is_gone_unless_the_transaction_is_rolled_back(
    conn: Connection, tasks: Tasks
) -> None:
    tasks.push(QUEUE, 1)
    with conn.transaction(force_rollback=True):
        assert pop(conn) == [1]
        assert pop(conn) == []
    assert pop(conn) == [1]
    assert ops.value(conn, "select count(*) from pgq_task.task") == 0


def test_two_sessions_that_pop_at_once_get_different_tasks_and_do_not_wait(
    conn: Connection, connect: Connect, tasks: Tasks
) -> None:
    tasks.push_many(QUEUE, [1, 2])
    other = connect(autocommit=False)
    assert pop(other) == [1]
    assert pop(conn, 10) == [2]
    other.rollback()
    assert pop(conn) == [1]


def test_nothing_is_popped_from_a_queue_that_is_paused(conn: Connection, tasks: Tasks) -> None:
    tasks.push(QUEUE, 1)
    tasks.pause(QUEUE)
    assert pop(conn) == []
    tasks.resume(QUEUE)
    assert pop(conn) == [1]


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("call", "sqlstate"),
    [
        ("pgq_task.pop('none')", "PQ070"),
        ("pgq_task.pop('parcels', 0)", "PQ072"),
        ("pgq_task.pop('parcels', null)", "PQ072"),
        ("pgq_task.pop('parcels', 1, '')", "PQ072"),
    ],
)
def test_a_pop_that_makes_no_sense_is_refused(
    conn: Connection, tasks: Tasks, call: str, sqlstate: str
) -> None:
    with pytest.raises(psycopg.Error) as info:
        conn.execute(f"select {call}".encode())
    assert info.value.sqlstate == sqlstate
    assert info.value.diag.message_hint


# --- reserve, commit, roll back


def reserve(tasks: Tasks, **options: Any) -> Task:
    (task,) = tasks.try_claim(QUEUE, random=False, **options)
    return task


def test_a_reserved_task_cannot_be_claimed_until_it_is_rolled_back(tasks: Tasks) -> None:
    tasks.push_many(QUEUE, [1, 2])
    first = reserve(tasks)
    assert reserve(tasks).payload == 2
    assert tasks.try_claim(QUEUE) == []
    tasks.fail(first, "not now")
    again = reserve(tasks)
    assert (again.payload, again.attempts, again.error) == (1, 2, "not now")
    tasks.finish(again)
    assert tasks.try_claim(QUEUE) == []


def test_a_rolled_back_task_waits_for_its_delay(conn: Connection, tasks: Tasks) -> None:
    tasks.push(QUEUE, 1)
    tasks.fail(reserve(tasks), "not now", delay=3600)
    assert tasks.try_claim(QUEUE) == []
    left = ops.value(conn, "select at - now() from pgq_task.tasks where status = 'scheduled'")
    assert 3500 < left.total_seconds() <= 3600


def test_an_abandoned_reservation_ends_itself(tasks: Tasks) -> None:
    tasks.push(QUEUE, 1)
    first = reserve(tasks, lease=0.05)
    eventually(lambda: tasks.try_claim(QUEUE))
    with pytest.raises(Exception, match="does not have task"):
        tasks.finish(first)


def test_a_task_is_removed_by_its_id_even_while_it_is_claimed(
    conn: Connection, tasks: Tasks
) -> None:
    ids = tasks.push_many(QUEUE, [1, 2])
    first = reserve(tasks)
    for each in ids:
        conn.execute(
            "select pgq_task.modify('admin', deletes => %s, force => true)",
            [f'[{{"id": {each}}}]'],
        )
    assert ops.value(conn, "select count(*) from pgq_task.task") == 0
    with pytest.raises(Exception, match="does not have task"):
        tasks.finish(first)


def test_sizes_and_the_time_of_the_next_task(conn: Connection, tasks: Tasks) -> None:
    tasks.push_many(QUEUE, [1, 2, 3])
    tasks.push(QUEUE, 4, delay=3600)
    reserve(tasks)
    row = conn.execute(
        "select total, available, claimed, scheduled,"
        " next_time between now() + interval '55 minutes' and now() + interval '1 hour'"
        " from pgq_task.get_queue_info(%s)",
        [QUEUE],
    ).fetchone()
    assert row == (4, 2, 1, 1, True)


# --- pause, for all workers


@pytest.fixture
def working(dsn: str) -> Iterator[Callable[[TaskWorker], TaskWorker]]:
    """``working(worker)`` runs it in a thread until the end of the test."""
    running: list[tuple[TaskWorker, Thread]] = []

    def start(worker: TaskWorker) -> TaskWorker:
        thread = Thread(target=worker.run, daemon=True)
        thread.start()
        running.append((worker, thread))
        return worker

    yield start
    for worker, thread in running:
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_pause_is_for_all_workers_and_its_end_wakes_them(
    dsn: str, tasks: Tasks, working: Callable[[TaskWorker], TaskWorker]
) -> None:
    done: list[Any] = []

    class Worker(TaskWorker):
        poll_interval = 3600.0

    for _ in range(2):
        working(Worker(dsn, QUEUE, lambda task: done.append(task.payload)))
    tasks.push(QUEUE, "before")
    eventually(lambda: done == ["before"])
    tasks.pause(QUEUE)
    # A worker that was about to claim has done so.
    eventually(lambda: ops.value(tasks.conn, NOBODY_CLAIMS))
    tasks.push_many(QUEUE, ["while", "it", "lasts"])
    # Both have looked again, found nothing, and wait.
    before = ops.value(tasks.conn, "select max(sweep_id) from pgq_task.sweep")
    eventually(
        lambda: ops.value(tasks.conn, "select max(sweep_id) from pgq_task.sweep") > before + 1
    )
    assert done == ["before"]
    tasks.resume(QUEUE)
    eventually(lambda: sorted(done[1:]) == ["it", "lasts", "while"])


# --- dead letters

KILLED = """
import sys, time
from pgqpy.tasks import TaskWorker

def handle(task):
    print("begun", flush=True)
    time.sleep(3600)

TaskWorker(sys.argv[1], "parcels", handle, lease=1).run()
"""


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


def test_a_task_that_failed_too_often_is_kept_apart_with_where_it_is_from_and_why(
    conn: Connection, tasks: Tasks
) -> None:
    conn.execute("select pgq_task.set_queue_config(%s, 'max_attempts', '3')", [QUEUE])
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
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(
            "select pgq_task.fail_many('me', %s, %s, array['a', 'b'], finals => array[true, true])",
            [[task.id] * 2, [task.version] * 2],
        )
    assert "failed twice" in str(caught.value)
    assert isinstance(from_psycopg(caught.value), InvalidTask)


def test_attempts_of_workers_that_are_killed_count_too(
    conn: Connection, dsn: str, tasks: Tasks
) -> None:
    conn.execute("select pgq_task.set_queue_config(%s, 'max_attempts', '2')", [QUEUE])
    tasks.push(QUEUE, {"n": 1})
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, dsn], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE)
            assert process.stdout is not None
            process.stdout.close()

    def buried() -> bool:
        tasks.try_claim(QUEUE)
        conn.execute("select pgq_task.sweep()")
        return bool(ops.value(conn, "select queue = 'parcels.failed' from pgq_task.tasks"))

    eventually(buried)
    assert dead_letter(conn) == {"origin": QUEUE, "reason": "the worker was lost", "attempts": 2}


def test_dead_letters_go_back_to_where_they_came_from(conn: Connection, tasks: Tasks) -> None:
    task = tasks.push(QUEUE, {"n": 1}, headers={"from": "shop"}, unique_key="u")
    tasks.fail(reserve(tasks), "no", final=True)
    assert ops.value(conn, "select pgq_task.requeue('parcels.failed')") == 1
    again = reserve(tasks)
    assert (again.id, again.payload, again.attempts, again.unique_key) == (task, {"n": 1}, 1, "u")
