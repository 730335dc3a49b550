"""A finished job is not repeated because of its return value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pgqpy
from pgqpy import FixedDelay, Retry
from pgqpy.embedded import Server
from pgqpy.errors import InvalidConsumer
from pgqpy.schema import schema_sql
from pgqpy.tasks import (
    AsyncPipelineWorker,
    AsyncTableWorker,
    AsyncTaskWorker,
    Pipeline,
    PipelineWorker,
    TableWorker,
    Task,
    TaskApp,
    Tasks,
    TaskWorker,
)
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_task_worker import aside, left, run_until_empty

Return = Callable[[], Any]

AT_ONCE: dict[str, Any] = {"retry_policy": FixedDelay(0)}


class Secretive:
    """A value that its encoder does not expect."""

    def model_dump_json(self, **_: Any) -> str:
        raise LookupError("no")

    def __repr__(self) -> str:
        raise LookupError("no")


def nested() -> list[Any]:
    inner: list[Any] = []
    for _ in range(100_000):
        inner = [inner]
    return inner


RETURNS: dict[str, Return] = {
    "object": object,
    "error": lambda: ValueError("returned"),
    "generator": lambda: (n for n in "ab"),
    "nan": lambda: math.nan,
    "set": lambda: {1, 2},
    "keys": lambda: {(1, 2): 3, object: 4},
    "NUL": lambda: "\0",
    "surrogate": lambda: "\ud800",
    "nested": nested,
    "secretive": Secretive,
}
#: Those that a batch may return: of two rows for one.
OUTCOMES = ("generator",)


def worker(way: str, returned: Return | None, done: list[Any], *, awaited: bool) -> Any:
    """A class of workers that note their tasks, and return a given value."""

    def work(self: object, *args: Any) -> Any:
        tasks = args[-1] if way == "process_batch" else [args[-1]]
        done.extend(task.payload for task in tasks)
        values = [(returned or RETURNS[task.payload])() for task in tasks]
        return values if way == "process_batch" else values[0]

    if awaited:
        return type("Async", (AsyncTaskWorker,), {way: aside(work)})
    return type("Sync", (TaskWorker,), {way: work})


@pytest.fixture
def latin1_dsn(server: Server) -> Iterator[str]:
    name = "latin1_tasks"
    with pgqpy.connect(server.dsn, autocommit=True) as conn:
        conn.execute(
            f"create database {name} template template0 encoding 'LATIN1' locale 'C'".encode()
        )
        try:
            with pgqpy.connect(server.dsn_of(name)) as inside:
                inside.execute(schema_sql().encode())
            yield server.dsn_of(name)
        finally:
            conn.execute(f"drop database {name} with (force)".encode())


def history(tasks: Tasks, queue: str = "work") -> list[tuple[Any, Any, int]]:
    return [(each.result, each.error, each.attempts) for each in tasks.finished(queue)]


@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "asyncio"])
@pytest.mark.parametrize("way", ["handle_task", "process_task", "process_batch"])
def test_a_task_whose_result_is_no_json_is_finished_without_it(
    dsn: str, tasks: Tasks, way: str, awaited: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for keep in ("0", "1 hour"):
        done: list[Any] = []
        caplog.clear()
        tasks.set_config("work", "keep", keep)
        tasks.push_many("work", list(RETURNS))
        run_until_empty(worker(way, None, done, awaited=awaited)(dsn, "work", **AT_ONCE))
        assert sorted(done) == sorted(RETURNS)
        assert tasks.list() == []
        assert sum("is finished, but" in each for each in caplog.messages) == len(RETURNS)
    found = history(tasks)
    assert [(result, attempts) for result, _, attempts in found] == [(None, 1)] * len(RETURNS)
    assert all(error.startswith("the result is not kept: ") for _, error, _ in found)


def test_the_other_results_are_kept(dsn: str, tasks: Tasks, conn: Connection) -> None:
    class Half(TaskWorker):
        def process_batch(self, conn: pgqpy.Connection, tasks: list[Task]) -> list[Any]:
            return [object() if task.payload % 2 else {"n": task.payload} for task in tasks]

    tasks.set_config("work", "keep", "1 hour")
    tasks.push_many("work", range(10))
    run_until_empty(Half(dsn, "work", **AT_ONCE))
    found = tasks.finished("work")
    assert {each.payload: each.result for each in found} == {
        number: None if number % 2 else {"n": number} for number in range(10)
    }
    assert {each.payload for each in found if each.error is None} == {0, 2, 4, 6, 8}


def test_a_batch_that_returns_no_list_is_done(dsn: str, tasks: Tasks, conn: Connection) -> None:
    calls: list[int] = []
    returns: list[Any] = [5, "abc", {1, 2}, {}]

    class Counting(TaskWorker):
        def process_batch(self, conn: pgqpy.Connection, tasks: list[Task]) -> Any:
            calls.append(len(tasks))
            return returns[len(calls) % 4]

    tasks.set_config("work", "keep", "1 hour")
    tasks.push_many("work", range(8))
    run_until_empty(Counting(dsn, "work", batch_size=2, **AT_ONCE))
    assert sum(calls) == 8
    assert {(result, attempts) for result, _, attempts in history(tasks)} == {(None, 1)}
    assert all("process_batch returned" in error for _, error, _ in history(tasks))
    # Outcomes are none the less taken as such.
    for later in (lambda: iter([Retry(3600)]), lambda: Retry(3600)):
        one = type("One", (TaskWorker,), {"process_batch": lambda *_, made=later: made()})
        tasks.push("work", 1)
        run_until_empty(one(dsn, "work", batch_size=1))
    assert left(conn) == [("work", "scheduled", 0, 1)] * 2


@pytest.mark.parametrize("way", ["handle_task", "process_task", "process_batch"])
def test_a_coroutine_that_was_not_awaited_is_not_taken_for_done(
    dsn: str, tasks: Tasks, conn: Connection, way: str
) -> None:
    async def later() -> None: ...

    done: list[Any] = []
    for awaited in (False, True):
        tasks.push("work", 1)
        run_until_empty(worker(way, later, done, awaited=awaited)(dsn, "work", **AT_ONCE))
    assert done == [1, 1]
    assert left(conn) == [("work.failed", "available", 0, 1)] * 2


def test_a_task_whose_result_the_server_does_not_take_is_finished_without_it(
    latin1_dsn: str,
) -> None:
    snow = "\N{SNOWMAN}"
    done: list[Any] = []

    def returned() -> str:
        return (snow, "plain", snow * 20_000)[len(done) % 3]

    def write(self: object, conn: Connection, task: Task) -> str:
        conn.execute("insert into effect default values")
        done.append(task.payload)
        return returned()

    with pgqpy.connect(latin1_dsn, autocommit=True) as conn:
        tasks = Tasks(conn)
        conn.execute("create table effect (nr serial)")
        for way in ("handle_task", "process_task", "process_batch"):
            done.clear()
            tasks.create_queue("work")
            tasks.set_config("work", "keep", "1 hour")
            tasks.push_many("work", range(6))
            made = worker(way, returned, done, awaited=False)
            if way == "process_task":
                made.process_task = write
            run_until_empty(made(latin1_dsn, "work", **AT_ONCE))
            assert sorted(done) == [*range(6)]
            assert tasks.list() == []
            found = tasks.finished("work")
            assert all(each.result in (None, "plain") for each in found)
            assert any(each.error and "the result is not kept" in each.error for each in found)
            tasks.drop_queue("work")
        assert ops.value(conn, "select count(*) from effect") == 6


@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "asyncio"])
@pytest.mark.parametrize("transaction", [False, True])
def test_a_job_whose_result_is_no_json_is_finished_without_it(
    dsn: str, tasks: Tasks, conn: Connection, transaction: bool, awaited: bool
) -> None:
    app = TaskApp("work", **AT_ONCE)
    done: list[str] = []

    def job(kind: str) -> object:
        done.append(kind)
        return RETURNS[kind]()

    made = app.task(transaction=transaction)(aside(job) if awaited else job)
    tasks.set_config("work", "keep", "1 hour")
    made.push_many(conn, [{"kind": kind} for kind in RETURNS])
    run_until_empty(app.async_worker(dsn) if awaited else app.worker(dsn))
    assert sorted(done) == sorted(RETURNS)
    assert left(conn) == []
    found = history(tasks)
    assert [attempts for _, _, attempts in found] == [1] * len(RETURNS)
    # A set is a list for msgspec.
    assert [result for result, _, _ in found if result is not None] == [[1, 2]]
    assert all("the result is not kept: " in error for result, error, _ in found if result is None)


@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "asyncio"])
@pytest.mark.parametrize("kind", ["sink", "direct", "choice", "fork"])
def test_a_station_is_not_asked_again_because_of_what_it_returned(
    dsn: str, tasks: Tasks, conn: Connection, kind: str, awaited: bool
) -> None:
    pipeline = Pipeline("p", start="a")
    done: list[Any] = []

    def station(conn: object, task: Task) -> Any:
        done.append(task.payload)
        return RETURNS[task.payload]()

    def end(conn: object, task: Task) -> None: ...

    function = aside(station) if awaited else station
    if kind == "sink":
        pipeline.sink("a")(function)
    else:
        declare: Any = getattr(pipeline, kind)
        declare("a", to="b" if kind == "direct" else ["b"])(function)
        pipeline.sink("b")(aside(end) if awaited else end)
    for queue in pipeline.queues:
        tasks.create_queue(queue)
    tasks.set_config("p.a", "keep", "1 hour")
    tasks.push_many("p.a", list(RETURNS))
    made: Any = AsyncPipelineWorker if awaited else PipelineWorker
    run_until_empty(made(dsn, pipeline, **AT_ONCE))
    assert sorted(done) == sorted(RETURNS)
    if kind == "sink":
        assert left(conn) == []
        assert all("the result is not kept: " in error for _, error, _ in history(tasks, "p.a"))
    else:
        # Its result would have been the next one's payload, or where it goes.
        assert sorted(left(conn)) == sorted(("p.a.failed", "available", 0, n) for n in RETURNS)


@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "asyncio"])
@pytest.mark.parametrize("way", ["process_row", "process_batch"])
def test_a_row_whose_handler_returns_whatever_is_done(
    dsn: str, conn: Connection, way: str, awaited: bool
) -> None:
    kinds = [kind for kind in RETURNS if way == "process_row" or kind not in OUTCOMES]
    conn.execute("create table mail (id text primary key)")
    conn.execute("select pgq_task.add_columns('mail')")
    conn.cursor().executemany("insert into mail values (%s)", [(kind,) for kind in kinds])
    done: list[str] = []

    def work(self: object, conn: object, rows: Any) -> Any:
        [row] = rows if way == "process_batch" else [rows]
        done.append(row["id"])
        return RETURNS[row["id"]]()

    if awaited:
        made: Any = type("Mine", (AsyncTableWorker,), {way: aside(work)})
    else:
        made = type("Mine", (TableWorker,), {way: work})
    run_until_empty(made(dsn, "mail", **AT_ONCE))
    assert sorted(done) == sorted(kinds)
    assert ops.value(conn, "select array_agg(distinct status) from mail") == ["succeeded"]


def test_a_hook_that_raises_takes_back_no_other_row(dsn: str, conn: Connection) -> None:
    conn.execute("create table mail (id int primary key)")
    conn.execute("select pgq_task.add_columns('mail')")
    conn.execute("insert into mail values (1), (2), (3)")
    done: list[int] = []

    class Hooked(TableWorker):
        def process_row(self, conn: pgqpy.Connection, row: dict[str, Any]) -> None:
            if row["id"] == 2:
                raise ValueError("no luck")
            done.append(row["id"])

        def on_row_failed(self, *_: Any) -> None:
            raise LookupError("hook")

    with pytest.raises(LookupError, match="hook"):
        run_until_empty(Hooked(dsn, "mail", batch_size=3, retry_policy=FixedDelay(3600)))
    assert done == [1, 3]
    states = conn.execute("select id, status from mail order by id").fetchall()
    assert states == [(1, "succeeded"), (2, "failed"), (3, "succeeded")]


def test_a_generator_is_no_handler(dsn: str, tasks: Tasks) -> None:
    def handle(task: Task) -> Any:
        yield task

    with pytest.raises(InvalidConsumer, match="has a yield"):
        TaskWorker(dsn, "work", handle).run(until_empty=True)
    with pytest.raises(InvalidConsumer, match="has a yield"):
        type("Mine", (TaskWorker,), {"handle_task": lambda self, task: (yield)})(dsn, "work").run()
