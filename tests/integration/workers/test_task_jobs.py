"""Functions that are put into a queue are run by a worker, with the arguments they were given."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import psycopg
import pytest
from pydantic import BaseModel

from pgqpy.errors import InvalidPayload, InvalidTask
from pgqpy.retry import DeadLetter, FixedDelay, Retry
from pgqpy.tasks import CurrentJob, Flow, Task, TaskApp, Tasks, TaskTimeout, current_job
from pgqpy.tasks._jobs.worker import AppWorker
from tests.fixtures import task_ops as ops
from tests.fixtures.fix_client import PATIENCE, running, wait_until
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import Run
from tests.fixtures.fix_task_worker import aside, run_until_empty
from tests.fixtures.fix_ticker import eventually
from tests.fixtures.task_ops import task_of

QUEUE = "jobs"


class Speed(Enum):
    SLOW = "slow"
    FAST = "fast"


@dataclass(frozen=True)
class Order:
    id: UUID
    amount: Decimal
    placed: datetime

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError("the amount is negative")


class Address(BaseModel):
    city: str
    since: datetime | None = None


ORDER = Order(UUID(int=7), Decimal("10.50"), datetime(2026, 1, 2, tzinfo=UTC))
ADDRESS = Address(city="Kjøbenhavn", since=datetime(2020, 1, 1, tzinfo=UTC))


@pytest.fixture
def app(conn: Connection) -> TaskApp:
    Tasks(conn).create_queue(QUEUE)
    return TaskApp(QUEUE, retry_policy=FixedDelay(0, attempts=3))


@pytest.fixture(params=["sync", "async"])
def work(request: pytest.FixtureRequest, app: TaskApp, dsn: str) -> Callable[[], None]:
    """``work()`` runs what there is, in either kind of worker."""
    make = app.worker if request.param == "sync" else app.async_worker
    return lambda: run_until_empty(make(dsn))


def buried(conn: Connection) -> list[Any]:
    """The tasks in the error queue: (payload, reason)."""
    return [
        (row["payload"], row["headers"]["reason"])
        for row in ops.rows(
            conn, "select * from pgq_task.tasks where queue = 'jobs.failed' order by id"
        )
    ]


@pytest.mark.smoke
def test_arguments_arrive_as_what_their_annotations_say(
    app: TaskApp, conn: Connection, work: Callable[[], None]
) -> None:
    seen: list[object] = []

    @app.task
    def sync_job(
        order: Order, speeds: list[Speed], address: Address | None = None, copies: int = 3
    ) -> None:
        seen.append((order, speeds, address, copies))

    @app.task
    async def async_job(by_key: dict[str, Order], address: Address, anything: Any = None) -> None:
        await asyncio.sleep(0)
        seen.append((by_key, address, anything))

    sync_job.push(conn, ORDER, [Speed.FAST], address=ADDRESS)
    sync_job.push(conn, ORDER, speeds=[], copies=5)
    async_job.push(conn, {"a": ORDER}, ADDRESS, [1, None, "x"])
    work()
    assert sorted(seen, key=repr) == sorted(
        [
            (ORDER, [Speed.FAST], ADDRESS, 3),
            (ORDER, [], None, 5),
            ({"a": ORDER}, ADDRESS, [1, None, "x"]),
        ],
        key=repr,
    )
    assert not ops.rows(conn, "select * from pgq_task.tasks")


class Line(BaseModel):
    price: Decimal


@dataclass
class Cart:
    lines: list[Line]
    gift: Line | None = None


ARGUMENTS: list[tuple[Any, Any]] = [
    (dict[int, str], {1: "a"}),
    (dict[UUID, Speed], {UUID(int=3): Speed.SLOW}),
    (timedelta, timedelta(days=1, microseconds=5)),
    (date, date(2026, 2, 28)),
    (bytes, bytes(range(256))),
    (set[int], {1, 2}),
    (tuple[int, str], (1, "a")),
    (Literal["a", "b"], "b"),
    (Cart, Cart([Line(price=Decimal("1.10"))], None)),
    (Line | None, Line(price=Decimal("-0.0"))),
    (int | str, "5"),
    (float, 1e300),
    (int, 2**100),
]


def test_arguments_arrive_as_they_were(app: TaskApp, conn: Connection, dsn: str) -> None:
    seen: dict[int, object] = {}
    for number, (annotation, value) in enumerate(ARGUMENTS):

        def job(argument: Any, number: int) -> None:
            seen[number] = argument

        job.__annotations__["argument"] = annotation
        app.task(name=f"job {number}")(job).push(conn, value, number)
    app.worker(dsn).run(until_empty=True)
    for number, (_, value) in enumerate(ARGUMENTS):
        assert seen[number] == value
        assert type(seen[number]) is type(value)


def test_a_job_is_called_as_usual(app: TaskApp) -> None:
    @app.task
    def double(number: int) -> int:
        """Twice."""
        return 2 * number

    assert double(4) == 8
    assert double.name == "double"
    assert double.__doc__ == "Twice."
    with pytest.raises(InvalidTask, match="no job is running"):
        current_job()


def test_pushes_into_connections_of_asyncio_are_awaited(
    app: TaskApp, dsn: str, conn: Connection
) -> None:
    @app.task
    def job(number: int) -> None: ...

    async def push() -> tuple[int, list[int]]:
        async with await psycopg.AsyncConnection.connect(dsn) as aconn:
            one = await job.push(aconn, 3)
            many = job.push_many(aconn, [{"number": 4}, {"number": 5}])
            assert not isinstance(many, list)
            return one, await many

    one, many = asyncio.run(push())
    assert set(ops.statuses(conn)) == {one, *many}


def test_a_payload_that_does_not_fit_fails(app: TaskApp, conn: Connection, dsn: str) -> None:
    @app.task
    def job(order: Order, address: Address | None = None) -> None:
        raise AssertionError

    negative = {"id": str(UUID(int=1)), "amount": "-1", "placed": "2026-01-01T00:00:00Z"}
    wrong: list[tuple[Any, str]] = [
        ({"task": "job", "args": {"order": {"id": "no"}}}, r"Invalid UUID - at `\$.order.id`"),
        ({"task": "job", "args": {}}, "missing required field `order`"),
        ({"task": "job", "args": [1]}, "Expected `object`, got `array`"),
        ({"task": "job", "args": {"order": negative}}, "the amount is negative"),
        ({"task": "job", "args": {"order": None, "address": {"city": 1}}}, "string|order"),
        ({"task": 5, "args": {}}, "the payload is no job's"),
        ({"args": {}}, "the payload is no job's"),
        ("text", "the payload is no job's"),
        (None, "the payload is no job's"),
    ]
    ids = [ops.push(conn, QUEUE, payload) for payload, _ in wrong]
    app.worker(dsn).run(until_empty=True)
    for task, (payload, reason) in zip(ids, wrong, strict=True):
        row = task_of(conn, task)
        assert (row["queue"], row["headers"]["attempts"]) == ("jobs.failed", 1)
        assert re.search(reason, row["error"])
        assert row["payload"] == payload


def test_arguments_that_do_not_fit_are_not_pushed(app: TaskApp, conn: Connection) -> None:
    @app.task
    def job(order: Order, copies: int = 1, address: Address | None = None) -> None: ...

    untyped: Any = job
    for wrong in (
        {"order": "x"},
        {"order": ORDER, "copies": "3"},
        {"order": ORDER, "copies": float("nan")},
        {"order": object()},
        {"order": ORDER, "address": {"city": None}},
    ):
        with pytest.raises(InvalidPayload, match="job"):
            untyped.push(conn, **wrong)
    # Those that the function does not take are refused as in a call.
    for args, kwargs in (((), {}), ((1, 2, 3, 4), {}), ((), {"order": ORDER, "other": 1})):
        with pytest.raises(TypeError, match=r"job\(\)"):
            untyped.push(conn, *args, **kwargs)
    assert not ops.statuses(conn)


def test_an_unknown_parameter_is_tried_again_and_an_unknown_job_left_for_a_newer_worker(
    app: TaskApp, conn: Connection, work: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    def job(one: int) -> None: ...

    ops.push(conn, QUEUE, {"task": "unknown", "args": {}})
    ops.push(conn, QUEUE, {"task": "job", "args": {"one": 1, "two": 2}})
    work()
    [(_, parameter)] = buried(conn)
    assert "unknown field `two`" in parameter
    (left,) = Tasks(conn).list(QUEUE)
    assert (left.attempts, left.status) == (0, "scheduled")
    assert left.error is not None
    assert re.fullmatch("left for a newer worker: no job of .+ is called unknown", left.error)
    assert left.error in caplog.text

    @app.task(aliases=["unknown"])
    def known() -> None: ...

    Tasks(conn).change(QUEUE, None, {"delay": 0})
    work()
    assert len(ops.statuses(conn)) == 1
    with pytest.raises(InvalidTask, match="two jobs called unknown"):
        app.task(name="unknown")(lambda: None)


def test_middleware_is_around_each_job_and_sees_its_error(
    app: TaskApp, conn: Connection, work: Callable[[], None]
) -> None:
    seen: list[object] = []

    @app.middleware
    @contextmanager
    def outer(job: CurrentJob) -> Iterator[None]:
        job.state["session"] = job.task.payload["task"]
        try:
            yield
        except ZeroDivisionError:
            seen.append("error")
            raise DeadLetter("divided") from None
        finally:
            seen.append("out")

    @app.middleware
    @contextmanager
    def inner(job: CurrentJob) -> Iterator[None]:
        seen.append("in")
        yield

    @app.task
    def sync_job() -> None:
        seen.append(current_job().state["session"])

    @app.task
    async def async_job() -> None:
        seen.append(1 / 0)

    sync_job.push(conn)
    work()
    assert seen == ["in", "sync_job", "out"]
    seen.clear()
    async_job.push(conn)
    work()
    assert seen == ["in", "error", "out"]
    assert [reason for _, reason in buried(conn)] == ["divided"]


def test_async_middleware_is_for_async_jobs(
    app: TaskApp, conn: Connection, work: Callable[[], None]
) -> None:
    seen: list[str] = []

    @app.middleware
    @asynccontextmanager
    async def around(job: CurrentJob) -> AsyncIterator[None]:
        yield
        seen.append("after")

    @app.task
    async def async_job() -> None:
        seen.append("job")

    @app.task
    def sync_job() -> None:
        seen.append("never")

    async_job.push(conn)
    sync_job.push(conn)
    work()
    assert seen == ["job", "after"]
    [(_, reason)] = buried(conn)
    assert "cannot be used by a sync job" in reason


def test_an_attempt_ends_after_its_timeout(
    app: TaskApp, conn: Connection, work: Callable[[], None]
) -> None:
    begun: list[str] = []

    @app.task(timeout=0.05)
    async def async_job() -> None:
        begun.append("async")
        await asyncio.sleep(PATIENCE)

    @app.task(timeout=0.05)
    def sync_job() -> None:
        begun.append("sync")
        while not current_job().check_cancelled():  # type: ignore[func-returns-value]
            pass

    @app.task(timeout=PATIENCE)
    async def own_error() -> None:
        raise TimeoutError("mine")

    for job in (async_job, sync_job, own_error):
        job.push(conn)
    work()
    assert sorted(begun) == ["async"] * 3 + ["sync"] * 3
    reasons = sorted(reason.partition("\n")[0] for _, reason in buried(conn))
    late = "TaskTimeout: the attempt took more than 0.05 s"
    assert reasons == [late, late, "TimeoutError: mine"]


def test_a_push_has_its_own_timeout_and_attempts(
    app: TaskApp, conn: Connection, work: Callable[[], None]
) -> None:
    @app.task(timeout=PATIENCE, max_attempts=2)
    async def job(seconds: float) -> None:
        await asyncio.sleep(seconds)
        raise ZeroDivisionError

    job.push(conn, 0)
    job.options(timeout=0.02, max_attempts=1).push(conn, PATIENCE)
    # What psql may have written does not count.
    ops.push(conn, QUEUE, {"task": "job", "args": {"seconds": 0}}, headers={"max_attempts": "x"})
    work()
    failed = "select headers ->> 'attempts' as n, headers ->> 'reason' as e from pgq_task.tasks"
    found = [(row["n"], row["e"].split()[0].rstrip(":")) for row in ops.rows(conn, failed)]
    assert sorted(found) == [
        ("1", "TaskTimeout"),
        ("2", "ZeroDivisionError"),
        ("2", "ZeroDivisionError"),
    ]


@pytest.mark.one_database
@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": timedelta()},
        {"max_attempts": 0},
        {"max_attempts": "3"},
        {"unique_while": "running"},
        {"unique_while": "asleep", "unique_key": "key"},
        {"unique_for": 60},
        {"unique_for": 0, "unique_key": "key"},
        {"replace": True},
    ],
)
def test_options_that_cannot_work_are_refused(app: TaskApp, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match="Give "):
        app.task(**options)(lambda: None)


def test_jobs_are_unique_by_arguments_state_and_period(app: TaskApp, conn: Connection) -> None:
    @app.task(unique_key=True)
    def by_arguments(one: int, two: int = 2) -> None: ...

    @app.task(unique_key=True, unique_for=60)
    def by_period(one: int) -> None: ...

    @app.task(unique_key="search", replace=True)
    def newest(one: int) -> None: ...

    first = by_arguments.push(conn, 1)
    assert by_arguments.push(conn, one=1) == first != by_arguments.push(conn, 2)
    # A default that is given is the same call, another value is another one.
    assert by_arguments.push(conn, 1, 2) == first != by_arguments.push(conn, 1, 3)
    ids = by_arguments.push_many(conn, [{"one": 3}, {"one": 1}, {"one": 3}])
    assert isinstance(ids, list)
    assert (ids[1], ids[2]) == (first, ids[0])
    Tasks(conn, "w").claim(QUEUE, max_tasks=9)
    assert by_arguments.options(unique_while="running").push(conn, 1) == first
    assert by_arguments.push(conn, 1) != first
    once = by_period.push(conn, 1)
    conn.execute("delete from pgq_task.task where id = %s", [once])
    assert by_period.push(conn, 1) == once
    replaced = newest.push(conn, 1)
    assert newest.push(conn, 2) == replaced
    assert task_of(conn, replaced)["payload"]["args"] == {"one": 2}


def test_a_job_sees_that_its_worker_stops(app: TaskApp, conn: Connection, dsn: str) -> None:
    seen: list[bool] = []

    @app.task
    def job() -> None:
        seen.append(current_job().stopping)
        worker.stop()
        seen.append(current_job().stopping)
        raise Retry(0)

    job.push(conn)
    worker = app.worker(dsn)
    worker.run()
    assert seen == [False, True]
    assert list(ops.statuses(conn).values()) == ["available"]


def test_a_job_that_its_worker_has_twice_fails_in_neither_attempt(
    app: TaskApp, conn: Connection, dsn: str
) -> None:
    """The lease of the first one was over: the machine had slept."""
    attempts: list[int] = []
    begun, ended = threading.Event(), threading.Event()

    @app.task
    def job() -> None:
        attempts.append(current_job().task.attempts)
        if attempts == [1]:
            conn.execute("update pgq_task.task set lease = now() - interval '1 second'")
            assert begun.wait(PATIENCE)
        else:
            begun.set()
            assert ended.wait(PATIENCE)

    class Worker(AppWorker):
        def handle_task(self, task: Task) -> Any:
            try:
                return super().handle_task(task)
            finally:
                if task.attempts == 1:
                    ended.set()

    job.push(conn)
    with running(Worker(app, dsn, concurrency=2)):
        wait_until(lambda: ended.is_set() and not ops.statuses(conn))
    assert attempts == [1, 2]


@pytest.mark.parametrize("kind", ["worker", "async_worker"])
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_worker_ends_with_an_error_when_all_its_threads_hang(
    app: TaskApp,
    conn: Connection,
    dsn: str,
    kind: str,
    concurrency: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("pgqpy.tasks._jobs.heartbeat._HANGS", 0.2)
    over = threading.Event()
    quick: list[int] = []

    @app.task(timeout=0.1)
    def hangs() -> None:
        over.wait(PATIENCE)

    @app.task
    def beside() -> None:
        wait_until(lambda: " hangs, " in caplog.text)
        quick.append(current_job().task.id)

    hanging = [hangs.push(conn)]
    if concurrency == 2:
        beside.push(conn)
        hanging.append(hangs.push(conn))
    later = beside.push(conn)
    worker = getattr(app, kind)(
        dsn, concurrency=concurrency, random=False, retry_policy=lambda *_: 60
    )
    with pytest.raises(TaskTimeout, match=f"all {concurrency} slots of worker"):
        run_until_empty(worker)
    assert len(quick) == concurrency - 1
    told = [each.__dict__["task_id"] for each in caplog.records if " hangs, " in each.getMessage()]
    assert told == hanging
    assert ops.statuses(conn) == dict.fromkeys(hanging, "scheduled") | {later: "available"}
    for task in hanging:
        error = ops.task_of(conn, task)["error"]
        assert error.startswith("TaskTimeout: the attempt took more than 0.1 s")
    over.set()


@pytest.mark.parametrize(
    ("kind", "transaction"), [("worker", False), ("worker", True), ("async_worker", False)]
)
def test_the_attempt_of_a_job_that_hangs_ends_while_the_other_slots_go_on(
    app: TaskApp,
    conn: Connection,
    dsn: str,
    kind: str,
    transaction: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pgqpy.tasks._jobs.heartbeat._HANGS", 0.2)
    over = threading.Event()
    ended: list[str] = []

    @app.task(timeout=0.1, transaction=transaction)
    def hangs() -> None:
        if transaction:
            current_job().conn.execute("select")
        assert over.wait(PATIENCE)
        ended.append("late")

    @app.task
    def beside() -> None:
        ended.append("beside")

    task = hangs.push(conn)
    worker = getattr(app, kind)(dsn, concurrency=2, retry_policy=lambda *_: 3600)
    with ThreadPoolExecutor() as pool:
        run = pool.submit(run_until_empty, worker)
        try:
            eventually(conn, "select status = 'scheduled' from pgq_task.tasks where id = %s", task)
            error = ops.task_of(conn, task)["error"]
            assert error.startswith("TaskTimeout: the attempt took more than 0.1 s")
            beside.push(conn)
            wait_until(lambda: ended == ["beside"])
        finally:
            over.set()
        run.result(PATIENCE)
    # What ended late changed nothing.
    assert ended == ["beside", "late"]
    assert ops.statuses(conn) == {task: "scheduled"}


def test_a_worker_sweeps_while_all_its_threads_work(
    app: TaskApp, conn: Connection, dsn: str
) -> None:
    begun, over = threading.Event(), threading.Event()

    @app.task(timeout=PATIENCE)
    def job() -> None:
        begun.set()
        assert over.wait(PATIENCE)

    Tasks(conn).set_config(QUEUE, "max_attempts", 1)
    job.push(conn)
    with running(app.worker(dsn)):
        begun.wait(PATIENCE)
        job.push(conn)
        ops.claim(conn, QUEUE, lease="1 ms")
        try:
            eventually(conn, "select count(*) = 1 from pgq_task.tasks where queue = 'jobs.failed'")
        finally:
            over.set()


def test_an_asyncio_worker_does_not_wait_for_a_thread_longer_than_it_has_time(
    app: TaskApp, conn: Connection, dsn: str
) -> None:
    @app.task
    def job() -> None:
        worker.stop()
        seen.append(over.wait(PATIENCE))

    seen: list[bool] = []
    over = threading.Event()
    job.push(conn)
    worker = app.async_worker(dsn, stop_timeout=0)
    asyncio.run(worker.run())
    assert list(ops.statuses(conn).values()) == ["available"]
    assert not seen
    over.set()


@pytest.mark.parametrize(
    ("exit_", "own"), [(SystemExit, ("claimed", 1)), (KeyboardInterrupt, ("available", 0))]
)
def test_a_job_that_ends_the_worker_lets_those_beside_it_end(
    app: TaskApp, conn: Connection, dsn: str, exit_: type[BaseException], own: tuple[str, int]
) -> None:
    begun: list[str] = []
    ended: list[str] = []

    @app.task
    async def job(name: str) -> None:
        begun.append(name)
        while len(begun) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if name == "exits":
            raise exit_
        while not (current_job().stopping and name == "quick"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        ended.append(name)

    for name in ("exits", "quick", "endless", "later"):
        job.push(conn, name)
    with pytest.raises(exit_):
        asyncio.run(app.async_worker(dsn, concurrency=3, stop_timeout=1, random=False).run())
    assert ended == ["quick"]
    listed = [
        (each.payload["args"]["name"], each.status, each.attempts)
        for each in Tasks(conn).list(QUEUE)
    ]
    rest = [(name, "available", 0) for name in ("endless", "later")]
    assert sorted(listed) == sorted([("exits", *own), *rest])


def test_names_stay_when_functions_are_renamed(
    app: TaskApp, conn: Connection, work: Callable[[], None]
) -> None:
    done = []

    @app.task(name="mails.send")
    def renamed_since(to: str) -> None:
        done.append(to)

    ops.push(conn, QUEUE, {"task": "mails.send", "args": {"to": "me"}})
    work()
    assert done == ["me"]
    with pytest.raises(InvalidTask, match=r"two jobs called mails\.send"):
        app.task(name="mails.send")(lambda: None)


def test_each_job_has_its_own_queue_priority_keys_and_retry_policy(
    app: TaskApp, conn: Connection, work: Callable[[], None]
) -> None:
    tried: list[int] = []

    @app.task(
        queue="other",
        priority=7,
        retry_policy=FixedDelay(0, attempts=2),
        unique_key=lambda number: f"number {number}",
        order_key="all",
        limit_key=lambda number: str(number % 2),
    )
    def job(number: int) -> None:
        tried.append(number)
        raise LookupError(f"no {number}")

    assert app.queues == ["other"]
    app.create_queues(conn)
    first = job.push(conn, 1)
    assert job.push(conn, 1) == first
    second = job.options(priority=9, headers={"a": 1}, unique_key=None).push(conn, 1)
    row, other = task_of(conn, first), task_of(conn, second)
    assert (row["queue"], row["priority"]) == ("other", 7)
    assert (row["unique_key"], row["order_key"]) == ("number 1", "all")
    assert row["headers"] == {"limit_key": "1"}
    assert (other["priority"], other["unique_key"]) == (9, None)
    assert other["headers"] == {"a": 1, "limit_key": "1"}
    work()
    assert tried == [1, 1, 1, 1]
    assert (
        ops.rows(conn, "select queue, error ~ 'LookupError: no 1' as said from pgq_task.tasks")
        == [{"queue": "other.failed", "said": True}] * 2
    )


def test_a_job_is_pushed_for_a_tenant_and_run_by_the_workers_of_its_queue(
    app: TaskApp, conn: Connection, work: Callable[[], None]
) -> None:
    seen: list[str] = []

    @app.task(queue="other", tenant=lambda shop: shop)
    def job(shop: str) -> None:
        seen.append(f"{current_job().task.queue} {shop}")

    app.create_queues(conn)
    Tasks(conn).set_config("other", "keep_tenants", "1 day")
    job.push(conn, "acme")
    job.options(tenant="big").push(conn, "small")
    job.push_many(conn, [{"shop": shop} for shop in ("acme", "acme", "bloat")])
    flow = Flow()
    flow.add(job, "flow")
    flow.push(conn)
    with pytest.raises(InvalidTask, match="the tenant is 'a/b'"):
        job.push(conn, "a/b")
    work()
    acme = ["other/acme acme"] * 3
    assert sorted(seen) == [*acme, "other/big small", "other/bloat bloat", "other/flow flow"]


def test_many_are_pushed_in_their_order(app: TaskApp, conn: Connection, dsn: str) -> None:
    seen: list[int] = []

    @app.task
    def job(number: int) -> None:
        seen.append(number)

    @app.task(unique_key=lambda number: str(number % 2))
    def unique(number: int) -> None:
        seen.append(-number)

    ids = job.push_many(conn, [{"number": number} for number in range(500)])
    assert ids == sorted(ids)  # type: ignore[arg-type]
    assert job.push_many(conn, []) == []
    assert len(set(unique.push_many(conn, [{"number": n} for n in (1, 2, 3, 4)]))) == 2  # type: ignore[arg-type]
    worker = app.worker(dsn)
    worker.random = False
    worker.run(until_empty=True)
    assert seen == [*range(500), -1, -2]


def test_what_jobs_return_or_raise_decides(
    app: TaskApp, conn: Connection, work: Callable[[], None]
) -> None:
    Tasks(conn).create_queue("kept")
    conn.execute("select pgq_task.set_queue_config('jobs', 'keep', '1 day')")

    @app.task
    def result() -> Order:
        return ORDER

    @app.task
    async def later() -> Retry:
        return Retry(3600)

    @app.task
    def given_up() -> None:
        raise DeadLetter("hopeless")

    result.push(conn)
    again = later.push(conn)
    given_up.push(conn)
    work()
    [done] = ops.rows(conn, "select * from pgq_task.finished_tasks('jobs')")
    assert done["result"]["amount"] == "10.50"
    assert ops.statuses(conn)[again] == "scheduled"
    assert [reason for _, reason in buried(conn)] == ["hopeless"]


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("error", [StopIteration, asyncio.CancelledError])
def test_an_odd_error_is_its_jobs_failure_in_either_kind_of_worker(
    app: TaskApp,
    conn: Connection,
    work: Callable[[], None],
    error: type[BaseException],
    awaited: bool,
) -> None:
    def fail() -> None:
        raise error

    app.task(aside(fail) if awaited else fail).push(conn)
    work()
    assert re.match("StopIteration|RuntimeError: ", buried(conn)[0][1])


@pytest.mark.parametrize("awaited", [False, True])
def test_what_a_job_with_a_transaction_writes_is_committed_with_its_end(
    app: TaskApp, conn: Connection, dsn: str, awaited: bool
) -> None:
    conn.execute("create table written (number int)")
    statement = "insert into written values (%s)"

    def write(number: int) -> None:
        current_job().conn.execute(statement, [number])
        if number == 0:
            raise LookupError

    async def async_write(number: int) -> None:
        await current_job().conn.execute(statement, [number])
        if number == 0:
            raise LookupError

    functions: list[Any] = [write, async_write]
    job, other = (
        app.task(transaction=True, name=function.__name__)(function)
        for function in (functions[awaited], functions[not awaited])
    )

    @app.task
    def without() -> None:
        with pytest.raises(InvalidTask, match="no transaction"):
            _ = current_job().conn

    def run() -> None:
        run_until_empty(app.async_worker(dsn) if awaited else app.worker(dsn))

    with pytest.raises(InvalidTask, match=f"not for the job {other.name}"):
        run()
    del app.jobs[other.name]
    for number in (0, 1):
        job.push(conn, number)
    without.push(conn)
    run()
    assert ops.rows(conn, "select * from written") == [{"number": 1}]
    assert len(buried(conn)) == 1


def test_wrong_declarations_are_refused(app: TaskApp, conn: Connection, dsn: str) -> None:
    declare: Any = app.task

    def two_kinds(order: Order | Address) -> None: ...

    for call, said in (
        (lambda: declare(name="a")(lambda *numbers: None), r"takes \*numbers"),
        (lambda: declare(name="b", lease=0)(lambda: None), "lease"),
        (lambda: declare(name="c", priority=40000)(lambda: None), "priority"),
        (lambda: declare(5), "no function"),
        (lambda: declare("name"), "no function"),
        (lambda: declare(name="d")(lambda: (yield)), "no function"),
        (lambda: declare(name="")(lambda: None), "is called"),
        (lambda: app.worker(dsn), "has no jobs"),
    ):
        with pytest.raises(InvalidTask, match=said):
            call()
    short, kinds = declare(name="short")(lambda: None), declare(two_kinds)
    for call, said in (
        (lambda: app.worker(dsn).run(until_empty=True), "annotations of two_kinds"),
        (lambda: kinds.options(delays=5), r"There are queue"),
        (lambda: short.options(headers=[1]).push(conn), "headers are"),
        (lambda: short.push("dsn"), "cannot be pushed into"),
    ):
        with pytest.raises(InvalidTask, match=said):
            call()


def test_workers_claim_for_the_longest_lease_of_their_jobs(app: TaskApp, dsn: str) -> None:
    app.task(name="short", lease=5)(lambda: None)
    app.task(name="long", lease=600)(lambda: None)
    app.task(name="elsewhere", lease=900, queue="other")(lambda: None)
    assert app.worker(dsn, QUEUE).lease.total_seconds() == 600  # type: ignore[union-attr]
    assert app.worker(dsn, QUEUE, lease=7).lease == 7


def test_the_example_runs(run: Run, dsn: str, conn: Connection) -> None:
    environment = {"PGQPY_DSN": dsn}
    worker = run(sys.executable, "examples/jobs.py", "work", environment=environment)
    worker.hear("working")
    run(sys.executable, "examples/jobs.py", "push", environment=environment).finish()
    worker.hear("mail to ada@example.org: 3 x tea, 14.70")
    assert worker.terminate() == 0


def test_jobs_of_a_flow_get_the_results_of_those_before_them(
    app: TaskApp, conn: Connection, work: Callable[[], None]
) -> None:
    seen: list[Any] = []

    @app.task
    def fetch(page: int) -> Any:
        return {"page": page} if page < 9 else "x" * 1_000_001

    @app.task
    async def merge() -> None:
        seen.append(current_job().results)

    flow = Flow()
    first, second = (flow.add(fetch, page) for page in (1, 2))
    flow.add(merge.options(priority=3)).after(second, first)
    flow.push(conn)
    work()
    assert seen == [[{"page": 2}, {"page": 1}]]

    flow = Flow()
    flow.add(merge).after(flow.add(fetch, 9))
    with pytest.raises(InvalidTask, match="a step of another flow"):
        Flow().add(merge).after(first)
    with pytest.raises(InvalidTask, match="has a unique_key"):
        flow.add(fetch.options(unique_key="x"), 1)
    with pytest.raises(InvalidPayload):
        flow.add(fetch, "x")  # type: ignore[arg-type]
    number = flow.push(conn)
    work()
    assert isinstance(number, int)
    failed, waiting = Tasks(conn).flow(number)
    assert (failed.state, waiting.state) == ("failed", "waiting")
    assert "1000003 characters" in str(failed.error)
    one, two = (flow.add(fetch, page) for page in (1, 2))
    one.after(two.after(one))
    with pytest.raises(InvalidTask, match="the flow has a cycle: fetch after fetch"):
        flow.push(conn)
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: Flow().push(conn), "the flow has no steps"),
        (lambda: flow.add(fetch(1)), "is no job"),
        (lambda: flow.add(merge).after([one]), "cannot come after"),  # type: ignore[arg-type]
        (lambda: fetch.push(7), "cannot be pushed into 7"),  # type: ignore[call-overload]
    ]
    for call, said in wrong:
        with pytest.raises(InvalidTask, match=said):
            call()
