"""Events whose processing takes 5 ms each: one `CoopConsumer`, and eight that share the work.

Each worker is a process; the handler sleeps. The events are in the queue before, with a tick every
50. The time is from the start signal, when all are registered, until the last worker has left.
"""

from __future__ import annotations

import time
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier

import pgqpy
from benchmarks._servers import CREATE_QUEUE, connect, database, fill
from benchmarks.bench import Bench
from pgqpy.schema import schema_sql

HANDLER = 0.005
TICK_EVERY = 50
WORKERS = 8
ONE, MANY = "1 worker", f"{WORKERS} workers"

FILL = "select count(pgq.insert_event('q', 'type', n::text)) from generate_series(1, %d) n"
REWIND = "select pgq.register_consumer_at('q', 'shared', 1)"


class Worker(pgqpy.CoopConsumer):
    queue = "q"
    consumer = "shared"
    batch_size = TICK_EVERY
    barrier: Barrier
    events = 0
    begun = False

    def wants_batch(self, conn: pgqpy.Connection) -> bool:
        if not self.begun:
            self.begun = True
            self.barrier.wait()
        return True

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        time.sleep(HANDLER)

    def on_batch(self, stats: pgqpy.BatchStats) -> None:
        self.events += stats.events


def work(dsn: str, barrier: Barrier, events: SimpleQueue[int]) -> None:
    worker = Worker(dsn)
    worker.barrier = barrier
    worker.run(until_empty=True)
    events.put(worker.events)


def process(dsn: str, workers: int, count: int) -> float:
    with connect(dsn) as conn:
        conn.execute(REWIND)
    context = get_context("spawn")
    barrier, events = context.Barrier(workers + 1), context.SimpleQueue()
    processes = [context.Process(target=work, args=(dsn, barrier, events)) for _ in range(workers)]
    for process in processes:
        process.start()
    barrier.wait(60)
    began = time.perf_counter()
    done = sum(events.get() for _ in processes)
    seconds = time.perf_counter() - began
    assert done == count
    for process in processes:
        process.join()
    return seconds


def run(bench: Bench) -> None:
    count, rounds = bench.choose((8_000, 3), quick=(800, 1))
    with bench.server() as server:
        dsn = database(server, "coop", schema_sql(), CREATE_QUEUE)
        with connect(dsn) as conn:
            fill(conn, [FILL % TICK_EVERY] * (count // TICK_EVERY))
        contest = bench.contest(
            "Events whose processing takes 5 ms",
            {
                ONE: lambda: process(dsn, 1, count),
                MANY: lambda: process(dsn, WORKERS, count),
            },
            rounds=rounds,
            items=count,
            unit="events",
        )
    bench.at_least("C1", f"{MANY}, times {ONE}", contest.ratio(MANY, ONE), 7)
