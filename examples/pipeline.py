"""Oranges go through a juice press: sorted, peeled until no peel is left, pressed or thrown away.

A task passes through stations, each with a queue; several processes could serve them. Run it:

    pgqpy migrate
    python examples/pipeline.py
"""

from __future__ import annotations

import pgqpy
from pgqpy.tasks import Pipeline, PipelineWorker, Task, Tasks, To

press = Pipeline("press", start="sort")


@press.choice("sort", to=["peel", "compost"])
def sort(conn: pgqpy.Connection, task: Task) -> str:
    return "peel" if task.payload["ripe"] else "compost"


@press.choice("peel", to=["peel", "juice"])
def peel(conn: pgqpy.Connection, task: Task) -> To:
    orange = task.payload | {"peel": task.payload["peel"] - 1}
    return To("peel" if orange["peel"] else "juice", orange)


@press.sink("juice")
def juice(conn: pgqpy.Connection, task: Task) -> None:
    conn.execute("update glass set oranges = oranges + 1")


@press.sink("compost")
def compost(conn: pgqpy.Connection, task: Task) -> None:
    print(f"orange {task.payload['number']} goes to the compost")


def main() -> None:
    with pgqpy.connect() as conn:
        conn.execute("drop table if exists glass")
        conn.execute("create table glass as select 0 as oranges")
        tasks = Tasks(conn)
        for queue in press.queues:
            tasks.create_queue(queue)
        tasks.push_many(
            press.queue("sort"),
            [{"number": n, "ripe": n % 3 > 0, "peel": n} for n in range(1, 10)],
        )

    PipelineWorker(None, press).run(until_empty=True)

    with pgqpy.connect() as conn:
        for row in conn.execute("select oranges from glass"):
            print(f"a glass of juice of {row[0]} oranges")
        peeled = Tasks(conn).statistics(press.queue("peel"))[0]
        print(f"peeled {peeled.claimed} times, {peeled.moved} of them were done")


if __name__ == "__main__":
    main()
