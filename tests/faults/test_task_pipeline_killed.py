"""Workers of a pipeline killed at any moment: no task is lost, none is doubled, none is stuck."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from pgqpy.tasks import Tasks
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import Program, Run
from tests.fixtures.fix_task_worker import await_progress

#: A loop of as many rounds as the item says, a choice, and a fork to as many parts as there were
#: rounds, and one. Each visit is written in the transaction in which the task leaves.
WORKER = """
import logging
import sys
import time
from pgqpy.tasks import Pipeline, PipelineWorker, To

logging.getLogger("pgqpy").setLevel(logging.CRITICAL)
mill = Pipeline("mill", start="begin")

def note(conn, task):
    conn.execute("insert into visit values (%s, %s)",
                 [task.payload["item"], task.queue.partition(".")[2]])
    time.sleep(0.003)  # killed here, most of the time

@mill.direct("begin", to="grind")
def begin(conn, task):
    note(conn, task)
    return task.payload | {"left": task.payload["item"] % 4}

@mill.choice("grind", to=["grind", "fine", "coarse"])
def grind(conn, task):
    note(conn, task)
    if task.payload["left"]:
        return To("grind", task.payload | {"left": task.payload["left"] - 1})
    return "fine" if task.payload["item"] % 2 else "coarse"

@mill.sink("fine")
def fine(conn, task):
    note(conn, task)

@mill.fork("coarse", to=["bag", "label"])
def coarse(conn, task):
    note(conn, task)
    return [To("bag")] * (task.payload["item"] % 4) + ["label"]

@mill.sink("bag")
def bag(conn, task):
    note(conn, task)

@mill.sink("label")
def label(conn, task):
    note(conn, task)

print("ready", flush=True)
PipelineWorker(sys.argv[1], mill, concurrency=int(sys.argv[2]), lease=1, batch_size=10).run()
"""
STATIONS = ["begin", "grind", "fine", "coarse", "bag", "label"]
ITEMS, WORKERS, KILLS = 240, 3, 8


def expected() -> Counter[tuple[int, str]]:
    visits: Counter[tuple[int, str]] = Counter()
    for item in range(ITEMS):
        visits[item, "begin"] += 1
        visits[item, "grind"] += item % 4 + 1
        if item % 2:
            visits[item, "fine"] += 1
        else:
            visits.update({(item, "coarse"): 1, (item, "bag"): item % 4, (item, "label"): 1})
    return visits


@pytest.mark.slow
def test_a_pipeline_whose_workers_are_killed_loses_and_doubles_nothing(
    conn: Connection, dsn: str, run_python: Run
) -> None:
    def start(number: int) -> Program:
        worker = run_python(WORKER, dsn, number % 2 + 1)
        worker.hear("ready")
        return worker

    conn.execute("create table visit (item int, station text)")
    tasks = Tasks(conn)
    for station in STATIONS:
        tasks.create_queue(f"mill.{station}")
    tasks.push_many("mill.begin", [{"item": item} for item in range(ITEMS)])
    random = Random(7)
    total = expected().total()

    visits = "select count(*) from visit"
    workers = [start(number) for number in range(WORKERS)]
    for kill in range(1, KILLS + 1):
        await_progress(conn, visits, total * kill // (KILLS + 2))
        victim = random.randrange(WORKERS)
        workers[victim].kill()
        workers[victim] = start(kill)
    await_progress(conn, visits, total)
    for worker in workers:
        worker.kill()
    assert ops.value(conn, "select count(*) from pgq_task.task") == 0
    assert Counter(conn.execute("select item, station from visit").fetchall()) == expected()
