"""A task that is cancelled, and whose worker is killed: no other begins with it."""

from __future__ import annotations

import pytest

from pgqpy.tasks import Tasks
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import Run
from tests.fixtures.fix_ticker import eventually

WORKER = """
import sys, time
from pgqpy.tasks import TaskWorker
from pgqpy.tasks import TaskApp

dsn, kind = sys.argv[1:]

def work(*_):
    print("begun", flush=True)
    sys.stdin.readline()

if kind == "job":
    app = TaskApp("work")
    app.task(name="job", lease=60)(lambda: work())
    app.worker(dsn).run()
else:
    TaskWorker(dsn, "work", work, lease=60).run()
"""

LEASE_ENDS = """
update pgq_task.task
   set lease = clock_timestamp(), pos = pgq_task._position_of(clock_timestamp())
 where lease is not null
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["job", "task"])
def test_a_cancelled_task_whose_worker_is_killed_does_not_begin_again(
    conn: Connection, dsn: str, kind: str, run_python: Run
) -> None:
    tasks = Tasks(conn)
    tasks.create_queue("work")
    task = tasks.push("work", {"task": "job", "args": {}})
    first = run_python(WORKER, dsn, kind)
    first.hear("begun")
    # This one waits for tasks before the lease ends, which is when the test says so: a worker that
    # gets no processor time for a while must not lose the task before it is cancelled.
    second = run_python(WORKER, dsn, kind)
    assert not tasks.cancel(task, "too expensive")
    first.kill()
    conn.execute(LEASE_ENDS)
    eventually(conn, "select count(*) = 1 from pgq_task.tasks where queue = 'work.failed'")
    second.terminate()
    second.hear_lines(1)
    assert "begun" not in second.lines
    [buried] = tasks.list("work.failed")
    assert buried.error == "cancelled: too expensive"
