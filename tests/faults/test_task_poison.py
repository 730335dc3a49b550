"""Tasks that kill their workers: they are given up, and cost those beside them no attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pgqpy.tasks import Tasks
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import Run

pytestmark = pytest.mark.slow

POISON = (30, 60, 200)
WORKER = """
import asyncio, os, signal, sys, time
from pgqpy import FixedDelay
from pgqpy.tasks import AsyncTaskWorker, Pipeline, PipelineWorker, TaskWorker
from pgqpy.tasks import TaskApp

dsn, way, policy, concurrency, pause = sys.argv[1:]
options = {"concurrency": int(concurrency)}
if policy != "default":
    options["retry_policy"] = FixedDelay(0, attempts=None if policy == "endless" else int(policy))

def work(payloads):
    for payload in payloads:
        if payload in (30, 60, 200):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(float(pause))

async def handle(task):
    work([task.payload])

WAYS = {
    "handle_task": lambda worker, task: work([task.payload]),
    "process_task": lambda worker, conn, task: work([task.payload]),
    "process_batch": lambda worker, conn, tasks: work([task.payload for task in tasks]),
}
if way in WAYS:
    type("Worker", (TaskWorker,), {way: WAYS[way]})(dsn, "work", **options).run(until_empty=True)
elif way == "asyncio":
    asyncio.run(AsyncTaskWorker(dsn, "work", handle, **options).run(until_empty=True))
elif way == "job":
    app = TaskApp("work")
    app.task(name="job")(lambda number: work([number]))
    app.worker(dsn, **options).run(until_empty=True)
else:
    line = Pipeline("line", start="work")
    line.sink("work")(lambda conn, task: work([task.payload]))
    PipelineWorker(dsn, line, **options).run(until_empty=True)
"""

LEASES_END = """
update pgq_task.task
   set lease = clock_timestamp(), pos = pgq_task._position_of(clock_timestamp())
 where lease is not null
"""


Lives = Callable[..., int]


@pytest.fixture
def lives(conn: Connection, dsn: str, run_python: Run) -> Lives:
    """``lives("job", "endless")``: the number of workers killed until nothing is left to do."""

    def count(way: str, policy: str, concurrency: int = 1, pause: float = 0) -> int:
        deaths = 0
        while not Tasks(conn).is_empty("line.work" if way == "pipeline" else "work"):
            worker = run_python(WORKER, dsn, way, policy, concurrency, pause)
            deaths += worker.wait() != 0
            conn.execute(LEASES_END)
            conn.execute("select pgq_task.sweep()")
            assert deaths < 30
        return deaths

    return count


@pytest.mark.parametrize("way", ["handle_task", "process_task", "process_batch"])
def test_tasks_that_kill_their_worker_are_given_up_and_no_others(
    conn: Connection, lives: Lives, way: str
) -> None:
    tasks = Tasks(conn)
    tasks.create_queue("work")
    tasks.set_config("work", "max_attempts", 2)
    tasks.push_many("work", range(300))
    lives(way, "default")
    assert sorted(task.payload for task in tasks.list("work.failed")) == list(POISON)


@pytest.mark.parametrize(
    ("way", "policy", "limit", "most"),
    [
        # The queue's own limit, where the policy has none.
        ("handle_task", "default", None, 5),
        ("process_task", "endless", 2, 2),
        ("asyncio", "endless", 2, 2),
        ("job", "endless", 2, 2),
        ("pipeline", "endless", 2, 2),
        # The limit of the retry policy.
        ("handle_task", "3", None, 3),
        ("process_batch", "2", None, 2),
        ("job", "2", None, 2),
        ("pipeline", "2", None, 2),
    ],
)
def test_a_task_that_kills_workers_is_given_up_even_without_a_limit(
    conn: Connection, lives: Lives, way: str, policy: str, limit: int | None, most: int
) -> None:
    tasks = Tasks(conn)
    queue = "line.work" if way == "pipeline" else "work"
    tasks.create_queue(queue)
    payload: Any = {"task": "job", "args": {"number": 30}} if way == "job" else 30
    if limit is not None:
        tasks.set_config(queue, "max_attempts", limit)
    tasks.push(queue, payload)
    assert lives(way, policy) == most
    [given_up] = tasks.list(f"{queue}.failed")
    assert given_up.payload == payload
    assert "the worker was lost" in str(given_up.error)


def test_tasks_that_run_beside_one_that_kills_workers_are_done(
    conn: Connection, lives: Lives
) -> None:
    tasks = Tasks(conn)
    tasks.create_queue("work")
    innocents = [*range(1, 13)]
    # Each of them takes longer than those that kill.
    tasks.push_many("work", [30, *innocents, 60])
    deaths = lives("handle_task", "endless", concurrency=4, pause=0.3)
    assert sorted(task.payload for task in tasks.list("work.failed")) == [30, 60]
    assert deaths <= 10
