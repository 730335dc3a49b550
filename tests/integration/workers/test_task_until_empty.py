"""`run(until_empty=True)` ends only when no task is available, also none that a claim would miss
until the next sweep."""

from __future__ import annotations

import threading
from time import sleep
from typing import Any

import pytest

from pgqpy.tasks import Pipeline, PipelineWorker, Task, Tasks, TaskWorker
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import PATIENCE, wait_until
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_task_worker import Writer, effects
from tests.fixtures.task_ops import sweep

#: The move of the second task, held back behind the first, is committed after that one is gone.
HOLD_MOVE = """
create function hold() returns trigger language plpgsql as $$
begin
    for n in 1 .. 1000 loop
        exit when not exists (select from pgq_task.task where id < old.id);
        perform pg_sleep(0.01);
    end loop;
    return null;
end $$;
create trigger hold after update of pos on pgq_task.task
   for each row when (new.pos is null and new.payload = '2') execute function hold();
"""


@pytest.mark.parametrize("concurrency", [2, 3])
def test_a_task_that_came_meanwhile_is_done(conn: Connection, dsn: str, concurrency: int) -> None:
    done: list[Any] = []
    pipeline = Pipeline("p", start="a")
    pipeline.direct("a", to="b")(lambda conn, task: None)

    @pipeline.sink("b")
    def station(own: Connection, task: Task) -> None:
        asleep = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'"
        wait_until(lambda: task.payload != 1 or ops.value(conn, asleep))
        done.append(task.payload)

    for queue in pipeline.queues:
        Tasks(conn).create_queue(queue)
    conn.execute(HOLD_MOVE)
    Tasks(conn).push_many("p.a", [1, 2, 3, 4], order_keys=["k"] * 4)
    # The worker's own sweep finds nothing yet, and its next one comes in a second.
    PipelineWorker(dsn, pipeline, concurrency=concurrency).run(until_empty=True)
    assert done == [1, 2, 3, 4]


def test_a_task_pushed_by_a_long_transaction_is_done(
    dsn: str, conn: Connection, connect: Connect, tasks: Tasks
) -> None:
    other = connect()
    tasks.create_queue("more")

    class Pusher(Writer):
        def process_task(self, conn: Connection, task: Task) -> Any:
            if "push" in task.payload:
                Tasks(conn).push("more", {"data": "pushed"})
                # The lane's mark passes the task, which it cannot see.
                sweep(other, 3)
            return super().process_task(conn, task)

    tasks.push("work", {"data": "first", "push": True})
    Pusher(dsn, ["work", "more"]).run(until_empty=True)
    assert effects(conn) == ["first", "pushed"]


def test_a_task_that_a_sweep_has_locked_is_done(
    dsn: str, conn: Connection, connect: Connect, tasks: Tasks
) -> None:
    done: list[Any] = []
    tasks.push("work", 1, order_key="k")
    sweep(conn, 2)
    other = connect(autocommit=False)
    while not ops.value(other, "select pgq_task.sweep()"):
        other.rollback()
    worker = TaskWorker(dsn, "work", lambda task: done.append(task.payload))
    held_up = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
    thread = threading.Thread(target=worker.run, kwargs={"until_empty": True})
    thread.start()
    try:
        # It tries several times.
        for _ in range(3):
            while thread.is_alive() and not ops.value(conn, held_up):
                sleep(0.01)
            sleep(0.15)
        assert thread.is_alive()
        other.commit()
    finally:
        other.close()
        thread.join(PATIENCE)
    assert done == [1]
