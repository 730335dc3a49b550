"""Tasks with a unique key: what stands for a push, and that no change is lost."""

from __future__ import annotations

import pytest

from pgqpy.tasks import Pushed, Tasks
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_db import Calls, Connect, Connection

Q = "mails"


@pytest.fixture(autouse=True)
def task_queue(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue(%s)", [Q])


def push(conn: Connection, payload: object = None, **options: object) -> Pushed:
    return Tasks(conn).push_unique(Q, payload, "k", **options)  # type: ignore[arg-type]


def test_a_task_that_waits_stands_for_a_push(conn: Connection) -> None:
    assert push(conn) == (1, True)
    first, inserted = push(conn)
    assert (first, inserted) == (1, False)
    assert Tasks(conn).push(Q, unique_key="k") == 1
    # also for its next attempt
    ((task, version),) = tasks.claim(conn, Q)
    tasks.fail(conn, (task, version), delay="1 hour")
    assert push(conn) == (1, False)
    assert ops.value(conn, "select pushed from pgq_task.get_statistics(%s)", Q) == 1


@pytest.mark.parametrize("way", ["push", "push_unique"])
def test_a_change_while_the_task_is_worked_on_is_not_lost(conn: Connection, way: str) -> None:
    push(conn)
    running = tasks.claim(conn, Q)[0]
    second = push(conn).id if way == "push_unique" else Tasks(conn).push(Q, unique_key="k")
    assert second != running[0]
    assert push(conn) == (second, False)
    tasks.finish(conn, running)
    assert [task for task, _ in tasks.claim(conn, Q, number=9)] == [second]


def test_what_a_worker_may_still_run_does_not_stand_for_a_push(conn: Connection) -> None:
    first = push(conn, 1)
    running = tasks.claim(conn, Q, lease="1 microsecond")[0]
    assert push(conn, 2, replace=True).inserted
    assert tasks.task(conn, first.id)["payload"] == 1  # type: ignore[index]
    tasks.finish(conn, running)
    assert len(tasks.statuses(conn)) == 1


def test_a_task_that_runs_stands_for_a_push_if_that_is_wanted(conn: Connection) -> None:
    push(conn)
    running = tasks.claim(conn, Q)[0]
    assert push(conn, unique_while="running", replace=True) == (running[0], False)
    tasks.finish(conn, running)
    assert push(conn, unique_while="running").inserted


def test_the_key_is_taken_for_a_period_whatever_becomes_of_the_task(conn: Connection) -> None:
    first = push(conn, unique_for=3600)
    assert first.inserted
    tasks.finish(conn, tasks.claim(conn, Q)[0])
    assert push(conn, unique_for=3600) == (first.id, False)
    # It counts for those that ask for a period.
    assert push(conn).inserted
    conn.execute("update pgq_task.unique_period set until = now()")
    waits = ops.value(conn, "select max(id) from pgq_task.task")
    assert push(conn, unique_for=3600) == (waits, False)
    assert push(conn, unique_for=3600) == (waits, False)
    conn.execute("select pgq_task.drop_queue(%s, true)", [Q])
    assert ops.value(conn, "select count(*) from pgq_task.unique_period") == 0


def test_periods_that_are_over_are_forgotten(conn: Connection) -> None:
    push(conn, unique_for=3600)
    conn.execute("update pgq_task.unique_period set until = now()")
    tasks.sweep_twentieth(conn)
    assert ops.value(conn, "select count(*) from pgq_task.unique_period") == 0


def test_the_task_that_waits_is_replaced(conn: Connection) -> None:
    first = push(conn, 1, priority=3)
    again = push(conn, 2, replace=True, delay=3600, headers={"a": 1})
    assert again == (first.id, False)
    assert tasks.claim(conn, Q) == []
    assert push(conn, 3, replace=True, priority=7) == (first.id, False)
    row = tasks.task(conn, first.id)
    assert row is not None
    assert (row["payload"], row["priority"], row["headers"]) == (3, 7, None)
    assert tasks.claim(conn, Q) == [(first.id, 4)]


def test_a_stopped_task_that_is_replaced_stays_stopped(conn: Connection) -> None:
    first = push(conn, 1)
    conn.execute("select pgq_task.stop(%s)", [first.id])
    push(conn, 2, replace=True)
    assert tasks.statuses(conn) == {first.id: "stopped"}


def test_within_the_period_the_task_that_waits_is_replaced_and_no_other(conn: Connection) -> None:
    first = push(conn, 1, unique_for=3600)
    assert push(conn, 2, unique_for=3600, replace=True, priority=7) == (first.id, False)
    row = tasks.task(conn, first.id)
    assert row is not None
    assert (row["payload"], row["priority"]) == (2, 7)
    running = tasks.claim(conn, Q)[0]
    assert push(conn, 3, unique_for=3600, replace=True) == (first.id, False)
    assert tasks.task(conn, first.id)["payload"] == 2  # type: ignore[index]
    tasks.finish(conn, running)
    assert push(conn, 4, unique_for=3600, replace=True) == (first.id, False)
    assert tasks.statuses(conn) == {}


@pytest.mark.parametrize("options", [{}, {"unique_for": 3600}], ids=["waiting", "period"])
def test_a_push_keeps_workers_away_until_its_commit(
    conn: Connection, connect: Connect, options: dict[str, object]
) -> None:
    """Else it might not see what that transaction has changed, and nothing would run later."""
    push(conn, **options)
    pusher = connect(autocommit=False)
    assert not push(pusher, **options).inserted
    assert tasks.claim(conn, Q) == []
    pusher.commit()
    assert len(tasks.claim(conn, Q)) == 1


def test_within_the_period_a_running_task_does_not_wait_for_the_pusher(
    conn: Connection, connect: Connect
) -> None:
    push(conn, unique_for=3600)
    running = tasks.claim(conn, Q)[0]
    pusher = connect(autocommit=False)
    assert not push(pusher, unique_for=3600, replace=True).inserted
    conn.execute("set lock_timeout = '5s'")
    tasks.finish(conn, running)
    pusher.commit()
    assert tasks.statuses(conn) == {}


def test_a_push_waits_for_an_uncommitted_claim(
    conn: Connection, connect: Connect, calls: Calls
) -> None:
    push(conn)
    worker, pusher = connect(autocommit=False), connect()
    tasks.claim(worker, Q)
    pushing = calls.blocked(push, pusher)
    worker.commit()
    assert pushing.result().inserted


def test_pushes_of_one_key_at_once_insert_one_task(connect: Connect, calls: Calls) -> None:
    first, second = connect(autocommit=False), connect()
    one = push(first)
    pushing = calls.blocked(push, second)
    first.commit()
    assert pushing.result() == (one.id, False)
