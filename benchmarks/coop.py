"""Events whose processing takes 5 ms each: one `CoopConsumer`, and eight that share the work.

Each worker is a process; the handler sleeps. The events are in the queue before, with a tick every
50. The time is from the start signal, when all are registered, until the last worker has left.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection as Pipe

import pgqpy
from benchmarks._beside import processes
from benchmarks._servers import CREATE_QUEUE, KEEPER, connect, fill, pgqpy_database
from benchmarks.bench import Bench
from benchmarks.readers import Starting

HANDLER = 0.005
TICK_EVERY = 50
WORKERS = 8
ONE, MANY = "1 worker", f"{WORKERS} workers"

FILL = "select count(pgq.insert_event('q', 'type', n::text)) from generate_series(1, %d) n"
REWIND = "select pgq.register_consumer_at('q', 'shared', 1)"


class Worker(Starting, pgqpy.CoopConsumer):
    queue = "q"
    consumer = "shared"
    batch_size = TICK_EVERY
    events = 0

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        time.sleep(HANDLER)

    def on_batch(self, stats: pgqpy.BatchStats) -> None:
        self.events += stats.events


def work(pipe: Pipe, dsn: str) -> None:
    worker = Worker(dsn)
    worker.pipe = pipe
    worker.run(until_empty=True)
    pipe.send(worker.events)


def process(dsn: str, workers: int, count: int) -> float:
    with connect(dsn) as conn:
        conn.execute(REWIND)
    with processes(work, [(dsn,)] * workers) as (_, pipes):
        began = time.perf_counter()
        for pipe in pipes:
            pipe.send(None)
        done = sum(pipe.recv() for pipe in pipes)
        seconds = time.perf_counter() - began
    assert done == count
    return seconds


def run(bench: Bench) -> None:
    count, rounds = bench.choose((8_000, 3), quick=(800, 1))
    with bench.server() as server:
        dsn = pgqpy_database(server, CREATE_QUEUE, KEEPER)
        with connect(dsn) as conn:
            fill(conn, [FILL % TICK_EVERY] * (count // TICK_EVERY))
        contest = bench.contest(
            "Events whose processing takes 5 ms",
            {ONE: lambda: process(dsn, 1, count), MANY: lambda: process(dsn, WORKERS, count)},
            rounds=rounds,
            items=count,
            unit="events",
        )
    bench.at_least("C1", f"{MANY}, times {ONE}", contest.ratio(MANY, ONE), 7)
