"""Forks of pipelines: a task becomes several, all of them or none, each at its station once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pgqpy import DeadLetter, FixedDelay, Retry
from pgqpy.errors import InvalidPipeline
from pgqpy.tasks import AsyncPipelineWorker, Pipeline, PipelineWorker, Task, Tasks, To
from tests.fixtures.fix_db import Connect, Connection

ONCE = FixedDelay(0, attempts=1)


def orders(split: Any) -> Pipeline:
    """A fork to lines and a bill."""
    pipeline = Pipeline("orders", start="split")
    pipeline.fork("split", to=["line", "bill"])(split)
    pipeline.sink("line")(nothing)
    pipeline.sink("bill")(nothing)
    return pipeline


def nothing(conn: object, task: Task) -> None:
    """A station that does nothing."""


def parts(conn: object, task: Task) -> list[str | To]:
    return [*(To("line", line) for line in task.payload["lines"]), "bill"]


async def parts_awaited(conn: object, task: Task) -> list[str | To]:
    return parts(conn, task)


def push(conn: Connection, pipeline: Pipeline, payload: Any, **options: Any) -> int:
    tasks = Tasks(conn)
    for queue in pipeline.queues:
        tasks.create_queue(queue)
        tasks.set_config(queue, "keep", "1 hour")
    return tasks.push(pipeline.queue("split"), payload, **options)


def work(dsn: str, pipeline: Pipeline, *stations: str) -> None:
    PipelineWorker(dsn, pipeline, stations=stations or None, retry_policy=ONCE).run(
        until_empty=True
    )


def left(conn: Connection) -> list[tuple[str, Any]]:
    return conn.execute("select queue, payload from pgq_task.tasks order by id").fetchall()


ORDER = {"lines": ["book", "pen", "book"]}
PARTS = [
    ("orders.line", "book"),
    ("orders.line", "pen"),
    ("orders.line", "book"),
    ("orders.bill", ORDER),
]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "asyncio"])
def test_a_task_becomes_those_that_the_function_names(
    conn: Connection, dsn: str, asynchronous: bool
) -> None:
    pipeline = orders(parts_awaited if asynchronous else parts)
    task = push(conn, pipeline, ORDER)
    if asynchronous:
        asyncio.run(AsyncPipelineWorker(dsn, pipeline, stations="split").run(until_empty=True))
    else:
        work(dsn, pipeline, "split")
    assert left(conn) == PARTS
    (finished,) = Tasks(conn).finished("orders.split")
    ids = [info.id for queue in ("orders.line", "orders.bill") for info in Tasks(conn).list(queue)]
    assert (finished.id, finished.outcome, finished.result) == (task, "finished", ids)


def test_they_are_as_the_one_that_they_come_from_unless_it_is_said(
    conn: Connection, dsn: str
) -> None:
    pipeline = orders(
        lambda conn, task: [
            "line",
            To("bill", None, delay=3600, priority=-1, headers={"copy": True}),
        ]
    )
    push(conn, pipeline, 1, priority=5, headers={"a": 1}, order_key="customer 3", unique_key="once")
    work(dsn, pipeline, "split")
    line, bill = (Tasks(conn).list(queue)[0] for queue in ("orders.line", "orders.bill"))
    assert (line.payload, line.priority, line.headers) == (1, 5, {"a": 1})
    assert (bill.payload, bill.priority, bill.headers) == (None, -1, {"copy": True})
    assert bill.status == "scheduled"
    assert (line.order_key, bill.order_key) == ("customer 3", "customer 3")
    assert (line.unique_key, bill.unique_key, line.attempts) == (None, None, 0)


def test_of_an_empty_list_nothing_becomes_and_the_task_is_done(conn: Connection, dsn: str) -> None:
    pipeline = orders(lambda conn, task: [])
    push(conn, pipeline, 1)
    work(dsn, pipeline)
    assert left(conn) == []
    assert [task.result for task in Tasks(conn).finished("orders.split")] == [[]]


def test_if_one_of_them_cannot_be_there_is_none_and_the_task_stays(
    conn: Connection, dsn: str
) -> None:
    conn.execute("create table visit (item int)")

    def split(conn: Connection, task: Task) -> list[To]:
        conn.execute("insert into visit values (1)")
        return [To("line", "book"), To("bill", float("nan"))]

    pipeline = orders(split)
    push(conn, pipeline, 1)
    work(dsn, pipeline)
    assert left(conn) == [("orders.split.failed", 1)]
    assert conn.execute("select * from visit").fetchall() == []


def test_a_worker_that_lost_the_task_leaves_nothing_of_it(
    conn: Connection, connect: Connect, dsn: str
) -> None:
    """Another worker has it meanwhile, and makes the parts of it."""
    rounds: list[int] = []

    def split(_: object, task: Task) -> list[str | To]:
        rounds.append(task.attempts)
        if len(rounds) == 1:
            Tasks(connect()).change("orders.split", None, {"priority": 1}, claimed=True)
        return parts(_, task)

    pipeline = orders(split)
    push(conn, pipeline, ORDER)
    work(dsn, pipeline, "split")
    assert len(rounds) == 2
    assert left(conn) == PARTS


def test_a_fork_may_lead_back_to_itself(conn: Connection, dsn: str) -> None:
    """For instance to walk a tree; it ends where nothing is left."""
    pipeline = Pipeline("tree", start="split")

    @pipeline.fork("split", to=["split", "leaf"])
    def split(conn: object, task: Task) -> list[To]:
        tree = task.payload
        return [To("split", each) for each in tree] if isinstance(tree, list) else [To("leaf")]

    @pipeline.sink("leaf")
    def leaf(conn: Connection, task: Task) -> None:
        conn.execute("insert into found values (%s)", [task.payload])

    conn.execute("create table found (leaf int)")
    push(conn, pipeline, [1, [2, [3, []], 4], [[5]]])
    work(dsn, pipeline)
    assert left(conn) == []
    found = conn.execute("select leaf from found order by 1").fetchall()
    assert found == [(leaf,) for leaf in (1, 2, 3, 4, 5)]


def test_parts_of_one_key_stay_in_order(conn: Connection, dsn: str) -> None:
    conn.execute("create table visit (nr serial, line text)")
    pipeline = Pipeline("orders", start="split")
    pipeline.fork("split", to=["line"])(
        lambda conn, task: [To("line", f"{task.payload} {number}") for number in range(3)]
    )

    @pipeline.sink("line")
    def line(conn: Connection, task: Task) -> None:
        conn.execute("insert into visit (line) values (%s)", [task.payload])

    push(conn, pipeline, 0, order_key="customer 3")
    for order in range(1, 5):
        Tasks(conn).push("orders.split", order, order_key="customer 3")
    PipelineWorker(dsn, pipeline, concurrency=3).run(until_empty=True)
    lines = conn.execute("select line from visit order by nr").fetchall()
    assert lines == [(f"{order} {number}",) for order in range(5) for number in range(3)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "station 'split' returned None"),
        ("line", "station 'split' returned 'line'"),
        (To("line"), "station 'split' returned To"),
        (["line", "split"], "station 'split' chose 'split'"),
        (["line", 7], "station 'split' returned 7"),
    ],
)
def test_what_a_fork_must_not_return_fails_the_task_with_the_reason(
    conn: Connection, dsn: str, value: object, reason: str
) -> None:
    pipeline = orders(lambda conn, task: value)
    push(conn, pipeline, 1)
    work(dsn, pipeline)
    assert left(conn) == [("orders.split.failed", 1)]
    (failed,) = Tasks(conn).list("orders.split.failed")
    assert reason in str(failed.error)


@pytest.mark.parametrize(
    ("value", "queue"), [(Retry(3600), "orders.split"), (DeadLetter("bad"), "orders.split.failed")]
)
def test_a_fork_may_put_a_task_off_or_give_it_up(
    conn: Connection, dsn: str, value: object, queue: str
) -> None:
    pipeline = orders(lambda conn, task: value)
    push(conn, pipeline, 1)
    work(dsn, pipeline)
    assert left(conn) == [(queue, 1)]


def test_a_fork_from_which_no_way_leads_out_is_refused() -> None:
    pipeline = Pipeline("orders", start="split")
    pipeline.fork("split", to=["split"])(parts)
    with pytest.raises(InvalidPipeline, match="no task that comes to split ever leaves"):
        pipeline.check()
    with pytest.raises(InvalidPipeline, match="leads to 'line'"):
        pipeline.fork("again", to="line")
