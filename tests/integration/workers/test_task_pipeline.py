"""Pipelines: tasks go from station to station, at one of them at a time, and find the way out.

At a fork a task becomes several, all of them or none, each at its station once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pgqpy import DeadLetter, FixedDelay, Retry
from pgqpy.errors import InvalidPipeline
from pgqpy.tasks import (
    AsyncPipelineWorker,
    Move,
    Pipeline,
    PipelineWorker,
    Task,
    Tasks,
    TaskWorker,
    To,
)
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_task_worker import aside, run_until_empty
from tests.fixtures.fix_task_worker import left as tasks_left


def nothing(conn: object, task: Task) -> None:
    """A station that does nothing."""


def graph(start: str | list[str], **stations: Any) -> Pipeline:
    """A pipeline of names and successors: one, a choice of several, or None for the end."""
    pipeline = Pipeline("p", start=start)
    for name, targets in stations.items():
        if targets is None:
            pipeline.sink(name)(nothing)
        elif isinstance(targets, str):
            pipeline.direct(name, to=targets)(nothing)
        else:
            pipeline.choice(name, to=targets)(nothing)
    return pipeline


FINE: dict[str, dict[str, Any]] = {
    "sink": {"a": None},
    "line": {"a": "b", "b": "c", "c": None},
    "choice": {"a": ["b", "c"], "b": "d", "c": "d", "d": None},
    "loop to itself": {"a": ["a", "b"], "b": None},
    "loop": {"a": "b", "b": "c", "c": ["a", "d"], "d": None},
}


@pytest.mark.smoke
@pytest.mark.parametrize("way", FINE)
def test_a_pipeline_whose_stations_fit_together_is_fine(way: str) -> None:
    graph("a", **FINE[way]).check()


@pytest.mark.parametrize(
    ("start", "stations", "message", "named"),
    [
        ("a", {}, "starts at 'a', which is no station", ["none yet"]),
        ([], {"a": None}, "has no start", []),
        ("x", {"a": None}, "starts at 'x', which is no station", ["a"]),
        ("a", {"a": "x", "b": None}, "'a' leads to 'x', which is no station", ["a, b"]),
        ("a", {"a": ["b", "x"], "b": None}, "'a' leads to 'x', which is no station", ["a, b"]),
        ("a", {"a": None, "b": "c", "c": None}, "no task ever comes to b, c", ["start"]),
        ("a", {"a": "a"}, "no task that comes to a ever leaves", ["choice"]),
        ("a", {"a": "b", "b": "c", "c": "b"}, "comes to a, b, c ever leaves", ["choice"]),
        (
            "a",
            {"a": ["b", "d"], "b": "c", "c": ["b", "c"], "d": None},
            "comes to b, c ever leaves",
            ["choice"],
        ),
    ],
)
def test_a_pipeline_that_loses_or_traps_tasks_is_refused_with_what_to_do(
    start: str | list[str], stations: dict[str, Any], message: str, named: list[str]
) -> None:
    with pytest.raises(InvalidPipeline, match=message) as info:
        PipelineWorker("dbname=none", graph(start, **stations))
    for word in named:
        assert word in str(info.value.hint)


def test_mistakes_in_a_declaration_are_told_where_they_are_made() -> None:
    pipeline: Any = graph("a", a=None)
    wrong = Pipeline("p", start="a")
    wrong.sink("a")(lambda task: None)  # type: ignore[type-var]

    async def aside(conn: object, task: Task) -> None: ...

    class Awaited:
        async def __call__(self, conn: object, task: Task) -> None: ...

    coroutine, objects = Pipeline("p", start="a"), Pipeline("p", start="a")
    coroutine.sink("a")(aside)
    objects.sink("a")(Awaited())
    dsn, nameless = "dbname=none", ("", None)
    mistakes: list[tuple[Callable[[], object], str]] = [
        (lambda: pipeline.sink("a"), "'a' is declared twice"),
        (lambda: pipeline.choice("c", to="b"), "'c' leads to 'b'"),
        (lambda: pipeline.choice("c", to=[]), r"'c' leads to \[\]"),
        (lambda: pipeline.direct("c", to=["b"]), r"\['b'\] is no name"),
        (lambda: pipeline.sink(nothing), "<function nothing .* is no name"),
        (lambda: pipeline.sink(""), "'' is no name"),
        (lambda: pipeline.sink("b")(7), "7 of station 'b' cannot be called"),
        (lambda: pipeline.queue("x"), "no station 'x'"),
        (lambda: PipelineWorker(dsn, pipeline, stations=["x"]), "no station 'x'"),
        (lambda: AsyncPipelineWorker(dsn, graph("a", a=None)), "'a' is no `async def`"),
        (lambda: PipelineWorker(dsn, wrong), r"'a' takes \(task\)"),
        (lambda: PipelineWorker(dsn, coroutine), "'a' is an `async def`"),
        (lambda: PipelineWorker(dsn, objects), "'a' is an `async def`"),
        *((lambda name=name: Pipeline(name, start="a"), "is no name of") for name in nameless),
    ]
    for call, said in mistakes:
        with pytest.raises(InvalidPipeline, match=said) as info:
            call()
        if "'b'" in said and "is no name" in said:
            assert "@p.direct(station, to=station)" in str(info.value.hint)
    AsyncPipelineWorker(dsn, objects)
    # Nothing is known of those that are written in C.
    fine = Pipeline("p", start="a")
    fine.sink("a")(max)
    PipelineWorker(dsn, fine)


def visits(pipeline: Pipeline, asynchronous: bool) -> Pipeline:
    """A fork, a loop, and two ways out, each visit written to a table."""

    def note(conn: Any, task: Task) -> Any:
        return conn.execute(
            "insert into visit values (%s, %s)",
            [task.payload["item"], task.queue.partition(".")[2]],
        )

    def begin(task: Task) -> Any:
        return task.payload | {"rounds": 0}

    def again(task: Task) -> Any:
        if task.payload["rounds"] < task.payload["item"] % 3:
            return To("again", task.payload | {"rounds": task.payload["rounds"] + 1})
        return "even" if task.payload["item"] % 2 == 0 else To("odd")

    def out(task: Task) -> Any:
        return task.payload["rounds"]

    def station(decide: Any) -> Any:
        def plain(conn: Any, task: Task) -> Any:
            note(conn, task)
            return decide(task)

        async def awaited(conn: Any, task: Task) -> Any:
            await note(conn, task)
            return decide(task)

        return awaited if asynchronous else plain

    pipeline.direct("begin", to="again")(station(begin))
    pipeline.choice("again", to=["again", "even", "odd"])(station(again))
    pipeline.sink("even")(station(out))
    pipeline.sink("odd")(station(out))
    return pipeline


def set_up(conn: Connection, pipeline: Pipeline, *payloads: Any) -> list[int]:
    tasks = Tasks(conn)
    for queue in pipeline.queues:
        tasks.create_queue(queue)
    conn.execute("update pgq_task.queue set queue_keep = '1 hour'")
    return tasks.push_many(pipeline.queue(pipeline.start[0]), payloads)


def results(conn: Connection) -> dict[int, tuple[str, Any]]:
    rows = conn.execute(
        "select f.id, q.queue_name, f.result from pgq_task.finished f"
        " join pgq_task.queue q using (queue_id)"
    )
    return {task: (queue, result) for task, queue, result in rows.fetchall()}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "asyncio"])
def test_each_task_goes_its_way_out(conn: Connection, dsn: str, asynchronous: bool) -> None:
    conn.execute("create table visit (item int, station text)")
    pipeline = visits(Pipeline("numbers", start="begin"), asynchronous)
    items = range(12)
    ids = set_up(conn, pipeline, *({"item": item} for item in items))
    kind: Any = AsyncPipelineWorker if asynchronous else PipelineWorker
    run_until_empty(kind(dsn, pipeline, concurrency=3 if asynchronous else 1))
    assert results(conn) == {
        task: ("numbers.odd" if item % 2 else "numbers.even", item % 3)
        for task, item in zip(ids, items, strict=True)
    }
    expected = sorted(
        [(item, "begin") for item in items]
        + [(item, "again") for item in items for _ in range(item % 3 + 1)]
        + [(item, "odd" if item % 2 else "even") for item in items]
    )
    assert conn.execute("select * from visit order by 1, 2").fetchall() == sorted(expected)
    assert conn.execute("select count(*) from pgq_task.task").fetchone() == (0,)


def left(conn: Connection) -> list[tuple[str, Any, str | None]]:
    return conn.execute("select queue, payload, error from pgq_task.tasks order by id").fetchall()


@pytest.mark.parametrize("kind", ["choice", "fork", "sink"])
def test_a_wrong_return_fails_the_task(conn: Connection, dsn: str, kind: str) -> None:
    values: dict[str, list[tuple[object, str]]] = {
        "choice": [
            ("c", "station 'a' chose 'c'"),
            (To("c"), "station 'a' chose 'c'"),
            (Move("p.b"), "station 'a' returned Move"),
            (None, "station 'a' returned None"),
            (["b"], "station 'a' returned ['b']"),
        ],
        "fork": [
            (None, "station 'a' returned None"),
            ("b", "station 'a' returned 'b'"),
            (To("b"), "station 'a' returned To"),
            (["b", "a"], "station 'a' chose 'a'"),
            (["b", 7], "station 'a' returned 7"),
        ],
        "sink": [(To("a"), "a sink has none")],
    }
    wrong = values[kind]
    # One that is put off and one that is given up are no mistakes.
    allowed: list[object] = [Retry(3600), DeadLetter("spoilt")]
    returned = [*(value for value, _ in wrong), *allowed]
    pipeline = Pipeline("p", start="a")
    declare: Any = getattr(pipeline, kind)
    station = declare("a") if kind == "sink" else declare("a", to=["b"])
    station(lambda conn, task: returned[task.payload])
    if kind != "sink":
        pipeline.sink("b")(nothing)
    set_up(conn, pipeline, *range(len(returned)))
    PipelineWorker(dsn, pipeline, retry_policy=FixedDelay(0, attempts=1)).run(until_empty=True)
    found = left(conn)
    assert [payload for _, payload, _ in found] == [*range(len(returned))]
    for (queue, payload, error), (_, reason) in zip(found[:-2], wrong, strict=True):
        assert queue == "p.a.failed"
        assert reason in str(error), payload
    assert [queue for queue, _, _ in found[-2:]] == ["p.a", "p.a.failed"]


def test_a_direct_station_may_say_more_than_the_payload(conn: Connection, dsn: str) -> None:
    pipeline = Pipeline("p", start="a")
    pipeline.direct("a", to="b")(lambda conn, task: To("b" if task.payload else "a", delay=3600))
    pipeline.sink("b")(nothing)
    set_up(conn, pipeline, 1, 0)
    PipelineWorker(dsn, pipeline, retry_policy=FixedDelay(0, attempts=1)).run(until_empty=True)
    later, lost = Tasks(conn).list("p.b") + Tasks(conn).list("p.a.failed")
    assert (later.payload, later.status) == (1, "scheduled")
    assert "station 'a' chose 'a'" in str(lost.error)


def test_a_station_that_fails_has_written_nothing(conn: Connection, dsn: str) -> None:
    conn.execute("create table visit (item int)")

    def station(conn: Connection, task: Task) -> None:
        conn.execute("insert into visit values (1)")
        raise OSError

    pipeline = Pipeline("p", start="a")
    pipeline.sink("a", retry_policy=FixedDelay(3600))(station)
    set_up(conn, pipeline, 1)
    PipelineWorker(dsn, pipeline).run(until_empty=True)
    assert tasks_left(conn) == [("p.a", "scheduled", 1, 1)]
    assert conn.execute("select * from visit").fetchall() == []


def test_a_worker_serves_the_stations_that_it_is_told_to(conn: Connection, dsn: str) -> None:
    """Other workers serve the others: a pipeline's tasks are ordinary ones."""
    pipeline = graph("a", a="b", b="c", c=None)
    set_up(conn, pipeline, {"kept": 1}, 2)
    PipelineWorker(dsn, pipeline, stations=["a"]).run(until_empty=True)
    assert [row[:2] for row in left(conn)] == [("p.b", {"kept": 1}), ("p.b", 2)]
    PipelineWorker(dsn, pipeline, stations="b").run(until_empty=True)
    seen: list[Any] = []
    worker = TaskWorker(dsn, pipeline.queue("c"), lambda task: seen.append(task.payload))
    worker.run(until_empty=True)
    assert sorted(seen, key=str) == [2, {"kept": 1}]
    assert left(conn) == []


def test_each_round_of_a_loop_begins_with_no_attempts(conn: Connection, dsn: str) -> None:
    pipeline = Pipeline("p", start="a")
    seen: list[tuple[int, int, bool]] = []

    @pipeline.choice("a", to=["a", "b"])
    def station(conn: Connection, task: Task) -> To:
        seen.append((task.payload, task.attempts, task.error is not None))
        if task.attempts == 1 and task.payload == 2:
            raise OSError
        return To("a" if task.payload < 4 else "b", task.payload + 1)

    pipeline.sink("b")(nothing)
    set_up(conn, pipeline, 1)
    PipelineWorker(dsn, pipeline, retry_policy=FixedDelay(0)).run(until_empty=True)
    assert seen == [(1, 1, False), (2, 1, False), (2, 2, True), (3, 1, False), (4, 1, False)]


# --- forks: a task becomes several, all of them or none

ONCE = FixedDelay(0, attempts=1)


def orders(split: Any, kind: str = "fork") -> Pipeline:
    """A fork to lines and a bill, or a choice."""
    pipeline = Pipeline("orders", start="split")
    getattr(pipeline, kind)("split", to=["line", "bill"])(split)
    pipeline.sink("line")(nothing)
    pipeline.sink("bill")(nothing)
    return pipeline


def parts(conn: object, task: Task) -> list[str | To]:
    return [*(To("line", line) for line in task.payload["lines"]), "bill"]


def work(dsn: str, pipeline: Pipeline, *stations: str) -> None:
    worker = PipelineWorker(dsn, pipeline, stations=stations or None, retry_policy=ONCE)
    worker.run(until_empty=True)


def push(conn: Connection, pipeline: Pipeline, payload: Any, **options: Any) -> int:
    set_up(conn, pipeline)
    return Tasks(conn).push(pipeline.queue("split"), payload, **options)


def places(conn: Connection) -> list[tuple[str, Any]]:
    return [(queue, payload) for queue, payload, _ in left(conn)]


ORDER = {"lines": ["book", "pen", "book"]}
PARTS = [
    ("orders.line", "book"),
    ("orders.line", "pen"),
    ("orders.line", "book"),
    ("orders.bill", ORDER),
]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "asyncio"])
def test_a_task_becomes_several(conn: Connection, dsn: str, asynchronous: bool) -> None:
    pipeline = orders(aside(parts) if asynchronous else parts)
    task = push(conn, pipeline, ORDER)
    kind: Any = AsyncPipelineWorker if asynchronous else PipelineWorker
    run_until_empty(kind(dsn, pipeline, stations="split"))
    assert places(conn) == PARTS
    (finished,) = Tasks(conn).finished("orders.split")
    ids = [info.id for queue in ("orders.line", "orders.bill") for info in Tasks(conn).list(queue)]
    assert (finished.id, finished.outcome, finished.result) == (task, "finished", ids)


def test_the_parts_of_a_task_are_like_it_by_default(conn: Connection, dsn: str) -> None:
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


@pytest.mark.parametrize("kind", ["fork", "choice"])
def test_of_an_empty_list_nothing_becomes_and_the_task_is_done(
    conn: Connection, dsn: str, kind: str
) -> None:
    pipeline = orders(lambda conn, task: [], kind)
    push(conn, pipeline, 1)
    work(dsn, pipeline)
    assert places(conn) == []
    assert [task.result for task in Tasks(conn).finished("orders.split")] == [[]]


def test_a_worker_that_lost_it_leaves_nothing(conn: Connection, connect: Connect, dsn: str) -> None:
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
    assert places(conn) == PARTS


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
    assert places(conn) == []
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


def test_a_fork_from_which_no_way_leads_out_is_refused() -> None:
    pipeline = Pipeline("orders", start="split")
    pipeline.fork("split", to=["split"])(parts)
    with pytest.raises(InvalidPipeline, match="no task that comes to split ever leaves"):
        pipeline.check()
    with pytest.raises(InvalidPipeline, match="leads to 'line'"):
        pipeline.fork("again", to="line")
