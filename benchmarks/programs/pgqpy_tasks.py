"""pgqpy's work queue: a worker with batches of 100, or of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import cycle, islice

import psycopg

from benchmarks.programs import protocol
from pgqpy.schema import schema_sql
from pgqpy.tasks import Task, Tasks, TaskWorker

BATCH_SIZE = 100
AT_ONCE = 10_000
QUEUES = [
    "item",
    *(f"item {number}" for number in range(2, int(os.environ.get("QUEUES", "1")) + 1)),
]


def install(dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(schema_sql().encode())
        for queue in QUEUES:
            Tasks(conn).create_queue(queue)


def send(dsn: str, payloads: Iterator[str]) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        tasks = Tasks(conn)
        for queue, payload in zip(cycle(QUEUES), payloads):
            tasks.push(queue, {"sent": payload})


def bulk(dsn: str, payloads: Iterator[str]) -> None:
    with psycopg.connect(dsn) as conn:
        tasks = Tasks(conn)
        while some := [{"sent": payload} for payload in islice(payloads, AT_ONCE)]:
            tasks.push_many("item", some)


def work(dsn: str, log: protocol.Log) -> None:
    def handle(task: Task) -> None:
        log.take(task.payload["sent"])
        if log.complete:
            worker.stop()

    batch_size = 1 if protocol.SINGLY else BATCH_SIZE
    worker = TaskWorker(dsn, QUEUES, handle, batch_size=batch_size)
    log.ready()
    worker.run()


if __name__ == "__main__":
    protocol.main(install, send, bulk, work)
