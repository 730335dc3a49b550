"""Tasks that kill their workers: they are given up, and cost those beside them no attempt."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pgqpy.tasks import Tasks
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import PATIENCE

POISON = (30, 60, 200)
WORKER = """
import os, signal, sys
from pgqpy.tasks import TaskWorker

def work(tasks):
    for task in tasks:
        if task.payload in (30, 60, 200):
            os.kill(os.getpid(), signal.SIGKILL)

WAYS = {
    "handle_task": lambda worker, task: work([task]),
    "process_task": lambda worker, conn, task: work([task]),
    "process_batch": lambda worker, conn, tasks: work(tasks),
}
Worker = type("Worker", (TaskWorker,), {sys.argv[2]: WAYS[sys.argv[2]]})
Worker(sys.argv[1], "work").run(until_empty=True)
"""

LEASES_END = """
update pgq_task.task
   set lease = clock_timestamp(), pos = pgq_task.position_of(clock_timestamp())
 where lease is not null
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["handle_task", "process_task", "process_batch"])
def test_tasks_that_kill_their_worker_are_given_up_and_no_others(
    conn: Connection, dsn: str, way: str
) -> None:
    tasks = Tasks(conn)
    tasks.create_queue("work")
    tasks.set_config("work", "max_attempts", 2)
    tasks.push_many("work", range(300))
    while not tasks.is_empty("work"):
        subprocess.run([sys.executable, "-c", WORKER, dsn, way], check=False, timeout=PATIENCE)
        conn.execute(LEASES_END)
        conn.execute("select pgq_task.sweep()")
    assert sorted(task.payload for task in tasks.list("work.failed")) == list(POISON)
