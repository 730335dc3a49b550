"""Workers for a table killed at any moment: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import random

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import Program, Run
from tests.fixtures.fix_ticker import PATIENCE, eventually

WORKER = """
import random, sys, time
from pgqpy.retry import FixedDelay
from pgqpy.tasks import TableWorker

def send(conn, row):
    conn.execute("insert into sent values (%s)", [row["id"]])
    time.sleep(random.random() / 100)
    if random.random() < 0.1:
        raise RuntimeError("bad luck")

print("started", flush=True)
TableWorker(
    sys.argv[1], "mail", send,
    batch_size=int(sys.argv[2]), concurrency=2, retry_policy=FixedDelay(0, attempts=None),
).run()
"""
ROWS = 600
KILLS = 8


@pytest.mark.slow
def test_rows_are_done_once_whichever_process_is_killed(
    conn: Connection, dsn: str, run_python: Run
) -> None:
    def start(number: int) -> Program:
        return run_python(WORKER, dsn, 1 + 9 * (number % 2))

    def await_sent(number: int) -> None:
        eventually(conn, "select count(*) >= %s from sent", number, patience=3 * PATIENCE)

    conn.execute("create table mail (id int primary key)")
    # Whatever is done twice is an error here, and the row would never be done.
    conn.execute("create table sent (id int primary key)")
    conn.execute("select pgq_task.add_columns('mail'), pgq_task.notify_workers('mail')")
    workers = [start(number) for number in range(3)]
    for kill in range(KILLS):
        number = kill % len(workers)
        workers[number].hear("started")
        before = ops.value(conn, "select count(*) from sent")
        conn.execute(
            "insert into mail select n from generate_series(%s + 1, %s) n",
            [kill * ROWS // KILLS, (kill + 1) * ROWS // KILLS],
        )
        # This many rows are left to be sent, whatever the others have done meanwhile.
        await_sent(before + random.randint(1, 40))
        workers[number].kill()
        workers[number] = start(kill)
    await_sent(ROWS)
    for worker in workers:
        worker.kill()
    assert ops.value(conn, "select count(*) from sent") == ROWS
    assert ops.value(conn, "select count(*) from mail where status = 'succeeded'") == ROWS
    assert ops.value(conn, "select sum(attempts) from mail") > ROWS
