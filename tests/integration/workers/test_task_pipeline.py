"""Pipelines: tasks go from station to station, at one of them at a time, and find the way out."""

from __future__ import annotations

import asyncio
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


@pytest.mark.smoke
@pytest.mark.parametrize(
    "stations",
    [
        {"a": None},
        {"a": "b", "b": "c", "c": None},
        {"a": ["b", "c"], "b": "d", "c": "d", "d": None},
        {"a": ["a", "b"], "b": None},
        {"a": "b", "b": "c", "c": ["a", "d"], "d": None},
    ],
    ids=["sink", "line", "choice", "loop to itself", "loop"],
)
def test_a_pipeline_whose_stations_fit_together_is_fine(stations: dict[str, Any]) -> None:
    graph("a", **stations).check()


@pytest.mark.one_database
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
    pipeline = graph("a", a=None)
    with pytest.raises(InvalidPipeline, match="'a' is declared twice"):
        pipeline.sink("a")
    with pytest.raises(InvalidPipeline, match="'c' leads to 'b'"):
        pipeline.choice("c", to="b")
    with pytest.raises(InvalidPipeline, match=r"'c' leads to \[\]"):
        pipeline.choice("c", to=[])
    with pytest.raises(InvalidPipeline, match=r"\['b'\] is no name") as info:
        pipeline.direct("c", to=["b"])  # type: ignore[arg-type]
    assert "@p.direct(station, to=station)" in str(info.value.hint)
    with pytest.raises(InvalidPipeline, match=r"<function nothing .* is no name"):
        pipeline.sink(nothing)  # type: ignore[arg-type]
    with pytest.raises(InvalidPipeline, match="'' is no name"):
        pipeline.sink("")
    with pytest.raises(InvalidPipeline, match="no station 'x'"):
        pipeline.queue("x")
    with pytest.raises(InvalidPipeline, match="no station 'x'"):
        PipelineWorker("dbname=none", pipeline, stations=["x"])
    with pytest.raises(InvalidPipeline, match="'a' is no `async def`"):
        AsyncPipelineWorker("dbname=none", pipeline)


def test_functions_that_cannot_be_called_with_a_connection_and_a_task_are_refused() -> None:
    pipeline = Pipeline("p", start="a")
    pipeline.sink("a")(lambda task: None)  # type: ignore[type-var]
    with pytest.raises(InvalidPipeline, match=r"'a' takes \(task\)"):
        PipelineWorker("dbname=none", pipeline)
    with pytest.raises(InvalidPipeline, match="7 of station 'b' cannot be called"):
        pipeline.sink("b")(7)  # type: ignore[type-var]
    for name in ("", None):
        with pytest.raises(InvalidPipeline, match="is no name of a pipeline"):
            Pipeline(name, start="a")  # type: ignore[arg-type]
    # Nothing is known of those that are written in C.
    fine = Pipeline("p", start="a")
    fine.sink("a")(max)
    PipelineWorker("dbname=none", fine)


def test_functions_of_asyncio_need_their_worker() -> None:
    pipeline = Pipeline("p", start="a")

    @pipeline.sink("a")
    async def station(conn: object, task: Task) -> None:
        """Nothing."""

    with pytest.raises(InvalidPipeline, match="'a' is an `async def`"):
        PipelineWorker("dbname=none", pipeline)

    class Awaited:
        async def __call__(self, conn: object, task: Task) -> None:
            """Nothing."""

    objects = Pipeline("p", start="a")
    objects.sink("a")(Awaited())
    AsyncPipelineWorker("dbname=none", objects)
    with pytest.raises(InvalidPipeline, match="'a' is an `async def`"):
        PipelineWorker("dbname=none", objects)


# --- at work


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
def test_each_task_goes_its_way_through_forks_and_loops_and_out(
    conn: Connection, dsn: str, asynchronous: bool
) -> None:
    conn.execute("create table visit (item int, station text)")
    pipeline = visits(Pipeline("numbers", start="begin"), asynchronous)
    items = range(12)
    ids = set_up(conn, pipeline, *({"item": item} for item in items))
    if asynchronous:
        asyncio.run(AsyncPipelineWorker(dsn, pipeline, concurrency=3).run(until_empty=True))
    else:
        PipelineWorker(dsn, pipeline).run(until_empty=True)
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


def test_a_payload_that_a_station_does_not_change_stays(conn: Connection, dsn: str) -> None:
    pipeline = graph("a", a="b", b="c", c=None)
    set_up(conn, pipeline, {"kept": 1})
    PipelineWorker(dsn, pipeline, stations=["a", "b"]).run(until_empty=True)
    assert [row[:2] for row in left(conn)] == [("p.c", {"kept": 1})]


def left(conn: Connection) -> list[tuple[str, Any, str | None]]:
    return conn.execute("select queue, payload, error from pgq_task.tasks order by id").fetchall()


def test_a_worker_serves_the_stations_that_it_is_told_to(conn: Connection, dsn: str) -> None:
    pipeline = graph("begin", begin="end", end=None)
    set_up(conn, pipeline, 1, 2)
    PipelineWorker(dsn, pipeline, stations=["begin"]).run(until_empty=True)
    assert [queue for queue, _, _ in left(conn)] == ["p.end", "p.end"]
    PipelineWorker(dsn, pipeline, stations="end").run(until_empty=True)
    assert left(conn) == []


def one_station(function: Any, **options: Any) -> Pipeline:
    pipeline = Pipeline("p", start="a")
    pipeline.choice("a", to=["b"], **options)(function)
    pipeline.sink("b")(nothing)
    return pipeline


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("c", "station 'a' chose 'c'"),
        (To("c"), "station 'a' chose 'c'"),
        (Move("p.b"), "station 'a' returned Move"),
        (None, "station 'a' returned None"),
    ],
)
def test_what_a_choice_must_not_choose_fails_the_task_with_the_reason(
    conn: Connection, dsn: str, value: object, reason: str
) -> None:
    pipeline = one_station(lambda conn, task: value)
    set_up(conn, pipeline, 1)
    PipelineWorker(dsn, pipeline, retry_policy=FixedDelay(0, attempts=1)).run(until_empty=True)
    ((queue, _, error),) = left(conn)
    assert queue == "p.a.failed"
    assert error is not None
    assert reason in error


def test_tasks_do_not_go_on_from_a_sink(conn: Connection, dsn: str) -> None:
    pipeline = Pipeline("p", start="a")
    pipeline.sink("a")(lambda conn, task: To("a"))
    set_up(conn, pipeline, 1)
    PipelineWorker(dsn, pipeline, retry_policy=FixedDelay(0, attempts=1)).run(until_empty=True)
    ((queue, _, error),) = left(conn)
    assert queue == "p.a.failed"
    assert "a sink has none" in str(error)


def test_a_direct_station_may_say_more_of_its_tasks_than_the_payload(
    conn: Connection, dsn: str
) -> None:
    pipeline = Pipeline("p", start="a")
    pipeline.direct("a", to="b")(lambda conn, task: To("b" if task.payload else "a", delay=3600))
    pipeline.sink("b")(nothing)
    set_up(conn, pipeline, 1, 0)
    PipelineWorker(dsn, pipeline, retry_policy=FixedDelay(0, attempts=1)).run(until_empty=True)
    later, lost = Tasks(conn).list("p.b") + Tasks(conn).list("p.a.failed")
    assert (later.payload, later.status) == (1, "scheduled")
    assert "station 'a' chose 'a'" in str(lost.error)


def test_what_a_station_wrote_is_gone_if_it_fails_and_the_task_is_still_there(
    conn: Connection, dsn: str
) -> None:
    conn.execute("create table visit (item int)")

    def station(conn: Connection, task: Task) -> str:
        conn.execute("insert into visit values (1)")
        raise OSError

    pipeline = one_station(station, retry_policy=FixedDelay(3600))
    set_up(conn, pipeline, 1)
    PipelineWorker(dsn, pipeline).run(until_empty=True)
    assert [queue for queue, _, _ in left(conn)] == ["p.a"]
    assert conn.execute("select * from visit").fetchall() == []
    assert conn.execute("select status, attempts from pgq_task.tasks").fetchone() == (
        "scheduled",
        1,
    )


@pytest.mark.parametrize(
    ("value", "queue"), [(Retry(3600), "p.a"), (DeadLetter("spoilt"), "p.a.failed")]
)
def test_a_station_may_put_a_task_off_or_give_it_up(
    conn: Connection, dsn: str, value: object, queue: str
) -> None:
    pipeline = one_station(lambda conn, task: value)
    set_up(conn, pipeline, 1)
    PipelineWorker(dsn, pipeline).run(until_empty=True)
    assert [row[0] for row in left(conn)] == [queue]


def test_a_pipelines_tasks_are_ordinary_ones_that_other_workers_can_serve(
    conn: Connection, dsn: str
) -> None:
    pipeline = graph("a", a="b", b=None)
    set_up(conn, pipeline, {"n": 1})
    PipelineWorker(dsn, pipeline, stations=["a"]).run(until_empty=True)
    seen: list[Any] = []
    TaskWorker(dsn, pipeline.queue("b"), lambda task: seen.append(task.payload)).run(
        until_empty=True
    )
    assert seen == [{"n": 1}]


def test_tasks_of_one_key_stay_in_order_from_station_to_station(
    conn: Connection, connect: Connect, dsn: str
) -> None:
    conn.execute("create table visit (nr serial, item int)")
    pipeline = Pipeline("p", start="a")
    pipeline.direct("a", to="b")(nothing)

    @pipeline.sink("b")
    def station(conn: Connection, task: Task) -> None:
        conn.execute("insert into visit (item) values (%s)", [task.payload])

    set_up(conn, pipeline)
    Tasks(conn).push_many("p.a", range(30), order_keys=["k"] * 30)
    PipelineWorker(dsn, pipeline, concurrency=3).run(until_empty=True)
    rows = conn.execute("select item from visit order by nr").fetchall()
    assert [item for (item,) in rows] == list(range(30))


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
