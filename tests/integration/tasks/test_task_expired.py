"""Tasks whose worker is gone do not wait for all that has been pushed since."""

from __future__ import annotations

import time

import pytest

from tests.fixtures import task_ops
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connection

BACKLOG = 500


@pytest.fixture
def task(conn: Connection) -> int:
    """A task claimed long ago, followed by many that wait."""
    conn.execute("select pgq_task.create_queue('work')")
    task = task_ops.push(conn, "work", "first")
    conn.execute(
        "select pgq_task.push_many('work', array_agg(to_jsonb(n))) from generate_series(1, %s) n",
        [BACKLOG],
    )
    task_ops.claim(conn, "work", claimant="dead", lease="1 hour")
    conn.execute("update pgq_task.task set last_attempt = now() - interval '1 minute'")
    return task


def end_lease(conn: Connection, task: int) -> None:
    """Its lease ends, where the sweeps have put it: behind the others."""
    sweep_until(
        conn, "select pos = pgq_task._position_of(lease) from pgq_task.task where id = %s", task
    )
    conn.execute(
        "update pgq_task.task set lease = now, pos = pgq_task._position_of(now)"
        "  from clock_timestamp() now where id = %s",
        [task],
    )


def sweep_until(conn: Connection, condition: str, *parameters: object) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        conn.execute("select pgq_task.sweep()")
        if conn.execute(condition.encode(), parameters).fetchall() == [(True,)]:
            return
        assert time.monotonic() < end, f"never came true: {condition}"
        time.sleep(0.02)


def sweep_more(conn: Connection) -> None:
    """Sweep two rounds, even if others sweep."""
    ((done,),) = conn.execute("select max(sweep_id) from pgq_task.sweep").fetchall()
    sweep_until(conn, "select max(sweep_id) >= %s + 2 from pgq_task.sweep", done)


def claimed_first(conn: Connection) -> int:
    ((task, _),) = task_ops.claim(conn, "work", claimant="alive")
    return task


def test_a_task_of_a_worker_that_died_comes_before_what_was_pushed_since(
    conn: Connection, task: int
) -> None:
    end_lease(conn, task)
    sweep_more(conn)
    # It may stand beside the first of the others, which are all there, in their order.
    claimed = [claimed_first(conn), claimed_first(conn)]
    claimed += [each for each, _ in task_ops.claim(conn, "work", claimant="a", number=BACKLOG)]
    assert task in claimed[:2]
    assert [each for each in claimed if each != task] == [*range(task + 1, task + 1 + BACKLOG)]


def test_it_comes_before_them_once(conn: Connection, task: int) -> None:
    """The task may kill its workers, and must not kill one after the other."""
    conn.execute("update pgq_task.task set attempts = 2 where id = %s", [task])
    end_lease(conn, task)
    sweep_more(conn)
    assert [claimed_first(conn), claimed_first(conn)] == [task + 1, task + 2]


def test_a_task_whose_attempts_are_used_up_is_buried_while_others_wait(
    conn: Connection, task: int
) -> None:
    conn.execute("select pgq_task.set_queue_config('work', 'max_attempts', '3')")
    conn.execute("update pgq_task.task set attempts = 3 where id = %s", [task])
    end_lease(conn, task)
    sweep_until(conn, "select queue = 'work.failed' from pgq_task.tasks where id = %s", task)
    assert claimed_first(conn) == task + 1
