"""A pipeline with choices, loops and a fork: each number goes through stations until it is 1.

``odd`` and ``even`` send it on to each other or to ``last``; ``one`` makes parts of it, and of each
``part`` is written down how often the number was moved. So the result is known exactly, and what is
lost or made twice shows.
"""

from __future__ import annotations

from collections.abc import Iterable

import pgqpy
from pgqpy import FixedDelay
from pgqpy.tasks import Pipeline, PipelineWorker, Task, Tasks, To

LEASE = 2
PARTS = 3

pipeline = Pipeline("collatz", start=["odd", "even", "last"])


def station(number: int) -> str:
    return "last" if number == 1 else "odd" if number % 2 else "even"


def moved(payload: dict[str, int], number: int) -> To:
    return To(station(number), payload | {"number": number, "moves": payload["moves"] + 1})


@pipeline.choice("odd", to=["even"])
def odd(conn: pgqpy.Connection, task: Task) -> To:
    return moved(task.payload, 3 * task.payload["number"] + 1)


@pipeline.choice("even", to=["odd", "even", "last"])
def even(conn: pgqpy.Connection, task: Task) -> To:
    return moved(task.payload, task.payload["number"] // 2)


@pipeline.direct("last", to="one")
def last(conn: pgqpy.Connection, task: Task) -> dict[str, int]:
    payload: dict[str, int] = task.payload
    return payload


@pipeline.fork("one", to=["part"])
def one(conn: pgqpy.Connection, task: Task) -> list[To]:
    return [To("part", task.payload | {"part": number}) for number in range(PARTS)]


@pipeline.sink("part")
def part(conn: pgqpy.Connection, task: Task) -> None:
    conn.execute("insert into arrived values (%(start)s, %(moves)s, %(part)s)", task.payload)


def moves(number: int) -> int:
    """The result for a number."""
    count = 0
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        count += 1
    return count


def create(conn: pgqpy.Connection) -> None:
    conn.execute("create table arrived (start int, moves int, part int)")
    for queue in pipeline.queues:
        Tasks(conn).create_queue(queue)
        Tasks(conn).set_config(queue, "lease", f"{LEASE} seconds")


def push(conn: pgqpy.Connection, numbers: Iterable[int]) -> None:
    for number in numbers:
        payload = {"start": number, "number": number, "moves": 0}
        Tasks(conn).push(pipeline.queue(station(number)), payload)


if __name__ == "__main__":
    worker = PipelineWorker(
        None, pipeline, batch_size=10, concurrency=2, retry_policy=FixedDelay(1, attempts=None)
    )
    worker.reconnect_cap = 1
    worker.run()
