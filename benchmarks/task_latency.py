"""From a push to the function of a waiting worker, everything with default settings.

Producer and worker are processes. The clock starts before the push is sent, and stops when the
function is called. First a task every 50 ms, so that the worker waits; then 500 a second; then a
task every 50 ms to 300 queues in turn, all of one worker.
"""

from __future__ import annotations

import time
from dataclasses import replace

from benchmarks._program import python_program
from benchmarks._servers import database
from benchmarks.bench import Bench
from pgqpy.embedded import Server

TASKS = python_program("pgqpy_tasks")
WAITING, BUSY = "to a worker that waits", "to a busy worker"
MANY = "to a worker of 300 queues"


def delays(server: Server, rate: float, count: int, queues: int = 1) -> list[float]:
    dsn = database(server)
    tasks = replace(TASKS, environment={**TASKS.environment, "QUEUES": str(queues)})
    tasks.install(dsn)
    with tasks.work(dsn, count, count / rate + 20) as work:
        time.sleep(1)
        tasks.send(dsn, count, rate)
        handled = work()
    assert len(handled.handled) == count, f"{len(handled.handled):,} tasks were handled"
    return handled.delays


def run(bench: Bench) -> None:
    slow, fast = bench.choose(((20, 1_200), (500, 15_000)), quick=((20, 40), (100, 200)))
    with bench.server() as server:
        found = bench.delays(
            "Push to function",
            {
                WAITING: delays(server, *slow),
                BUSY: delays(server, *fast),
                MANY: delays(server, *slow, 300),
            },
        )
    bench.at_most("Q5a", f"{WAITING}, p50", found.ms(WAITING, 50), 3, "ms")
    bench.at_most("Q5b", f"{WAITING}, p99", found.ms(WAITING, 99), 10, "ms")
    bench.at_most("Q5c", f"{MANY}, p50", found.ms(MANY, 50), 10, "ms")
