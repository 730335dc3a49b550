"""Cancelled tasks are not started, or end as soon as they can; running tasks report progress."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from pgqpy.errors import InvalidTask, TaskConflict
from pgqpy.retry import Retry
from pgqpy.tasks import TaskApp, Tasks, TaskWorker, current_job
from tests.fixtures import task_ops as ops
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.queue_ops import value

QUEUE = "work"


@pytest.fixture
def app(conn: Connection) -> TaskApp:
    Tasks(conn).create_queue(QUEUE)
    return TaskApp(QUEUE, retry_policy=lambda attempt, error: 3600)


@pytest.fixture(params=["sync", "async"])
def started(request: pytest.FixtureRequest, app: TaskApp, dsn: str) -> Iterator[Callable[[], None]]:
    """``started()`` has a worker of either kind in the background."""
    stops: list[Callable[[], object]] = []
    threads: list[threading.Thread] = []

    def begin() -> None:
        if request.param == "sync":
            worker = app.worker(dsn)
            stops.append(worker.stop)
            run = threading.Thread(target=worker.run, kwargs={"handle_signals": False})
        else:
            ready = threading.Event()

            async def work() -> None:
                other = app.async_worker(dsn)
                loop = asyncio.get_running_loop()
                stops.append(lambda: loop.call_soon_threadsafe(other.stop))
                ready.set()
                await other.run(handle_signals=False)

            run = threading.Thread(target=lambda: asyncio.run(work()))
        threads.append(run)
        run.start()
        if request.param == "async":
            assert ready.wait(PATIENCE)

    yield begin
    for stop in stops:
        stop()
    for thread in threads:
        thread.join()


def wait_for(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_progress_is_seen_while_a_job_runs(
    app: TaskApp, conn: Connection, started: Callable[[], None]
) -> None:
    go_on, end = threading.Event(), threading.Event()

    @app.task
    def job() -> None:
        current_job().progress(40, 100, "pages")
        assert go_on.wait(PATIENCE)
        current_job().progress(41)
        assert end.wait(PATIENCE)

    task = job.push(conn)
    started()
    tasks = Tasks(conn)
    try:
        [progress] = wait_for(tasks.progress)
        assert (progress.id, progress.queue) == (task, QUEUE)
        assert (progress.done, progress.total, progress.note) == (40, 100, "pages")
        assert progress.cancelled is None
        go_on.set()
        wait_for(lambda: tasks.progress(QUEUE, ids=[task])[0].done == 41)
        assert tasks.progress(ids=[task + 1]) == []
    finally:
        go_on.set()
        end.set()
    wait_for(lambda: not ops.statuses(conn))
    assert tasks.progress() == []


def test_of_a_task_that_says_more_than_once_how_far_it_is_the_last_counts(
    app: TaskApp, conn: Connection
) -> None:
    one, two = ops.push(conn, QUEUE), ops.push(conn, QUEUE)
    ops.claim(conn, QUEUE, number=2)
    conn.execute(
        "select pgq_task.heartbeat('w', %s, %s, '{1,5,2}', '{10,null,10}', '{a,b,c}')",
        [[one, two], [one, two, one]],
    )
    said = [(each.id, each.done, each.total, each.note) for each in Tasks(conn).progress()]
    assert said == [(one, 2, 10, "c"), (two, 5, None, "b")]
    # of how many, and of what, may be left out
    conn.execute("select pgq_task.heartbeat('w', %s, %s, '{3}')", [[two], [two]])
    assert [(each.done, each.note) for each in Tasks(conn).progress(ids=[two])] == [(3, None)]


def test_whatever_one_job_says_others_are_heard(app: TaskApp, conn: Connection, dsn: str) -> None:
    end = threading.Event()
    said: list[tuple[Any, ...]] = [(1, None, 7), (2.5, 10, "a\0b"), (Decimal(3), None, "\ud800")]

    @app.task
    def job(number: int) -> None:
        current_job().progress(*said[number])
        assert end.wait(PATIENCE)

    for number in range(3):
        job.push(conn, number)
    worker = app.worker(dsn, concurrency=3)
    thread = threading.Thread(target=worker.run, kwargs={"handle_signals": False})
    thread.start()
    try:
        wait_for(lambda: len(Tasks(conn).progress()) == 3)
        heard = {(each.done, each.note) for each in Tasks(conn).progress()}
        assert heard == {(1, "7"), (2.5, "ab"), (3, "?")}
    finally:
        end.set()
        worker.stop()
        thread.join()


def test_a_job_that_looks_hears_that_it_is_cancelled(
    app: TaskApp,
    conn: Connection,
    started: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun = threading.Event()

    @app.task
    def job() -> None:
        begun.set()
        wait_for(lambda: current_job().cancelled)
        # A repeated request a second later changes nothing.
        time.sleep(1.5)
        current_job().progress(1)

    task = job.push(conn)
    caplog.set_level(logging.INFO)
    started()
    assert begun.wait(PATIENCE)
    tasks = Tasks(conn)
    assert not tasks.cancel(task, "too expensive")
    wait_for(lambda: (ops.task(conn, task) or {})["queue"] == "work.failed")
    row = ops.task(conn, task)
    assert row is not None
    assert row["headers"]["reason"].startswith("cancelled: too expensive")
    told = [record for record in caplog.records if "is cancelled" in record.message]
    assert len(told) == 1


def test_a_job_of_asyncio_is_interrupted(
    app: TaskApp, conn: Connection, started: Callable[[], None]
) -> None:
    begun = threading.Event()
    ended: list[str] = []

    @app.task
    async def job() -> None:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.append("cleaned up")

    task = job.push(conn)
    started()
    assert begun.wait(PATIENCE)
    assert not Tasks(conn).cancel(task)
    wait_for(lambda: (ops.task(conn, task) or {})["queue"] == "work.failed")
    assert ended == ["cleaned up"]
    # Sent back it is done like any other: it was that attempt which was cancelled.
    begun.clear()

    def other() -> None:
        ended.append("done")

    app.jobs["job"].function = other
    wait_for(lambda: not ops.rows(conn, "select * from pgq_task.cancellation"))
    conn.execute("select pgq_task.requeue('work.failed')")
    wait_for(lambda: not ops.statuses(conn))
    assert ended == ["cleaned up", "done"]


def test_an_unclaimed_task_is_deleted(app: TaskApp, conn: Connection) -> None:
    tasks = Tasks(conn)
    task = tasks.push(QUEUE, None, delay=3600)
    assert tasks.cancel(task)
    assert not ops.statuses(conn)
    with pytest.raises(TaskConflict, match=f"there is no task {task}"):
        tasks.cancel(task)


def test_the_worker_that_takes_over_a_task_learns_of_its_cancelling(
    app: TaskApp, conn: Connection, started: Callable[[], None]
) -> None:
    @app.task
    def job() -> None:
        wait_for(lambda: current_job().cancelled)
        current_job().check_cancelled()

    task = job.push(conn)
    conn.execute("select * from pgq_task.claim('{work}', 'dead', '1 hour')")
    assert not Tasks(conn).cancel(task)
    conn.execute("update pgq_task.task set lease = clock_timestamp()")
    started()
    wait_for(lambda: (ops.task(conn, task) or {})["queue"] == "work.failed")


def test_cancelling_does_not_wait_for_finishing(
    app: TaskApp, conn: Connection, connect: Connect
) -> None:
    task = ops.push(conn, QUEUE)
    [(_, version)] = ops.claim(conn, QUEUE)
    other = connect(autocommit=False)
    other.execute("select pgq_task.finish('w', %s, %s)", [task, version])
    assert not Tasks(conn).cancel(task)
    other.commit()
    assert not ops.statuses(conn)


def test_cancelled_tasks_are_forgotten_where_no_worker_looks(
    app: TaskApp, conn: Connection
) -> None:
    tasks = Tasks(conn)
    for _ in range(3):
        ops.push(conn, QUEUE)
        [task] = tasks.try_claim(QUEUE)
        assert not tasks.cancel(task.id)
        tasks.finish(task)
    assert len(ops.rows(conn, "select * from pgq_task.cancellation")) == 1


def test_a_task_that_was_cancelled_is_done_when_it_is_sent_back(
    app: TaskApp, conn: Connection, dsn: str
) -> None:
    tasks = Tasks(conn)
    done: list[bool] = []

    @app.task
    def job() -> None:
        again = bool(done)
        done.append(False)
        if not again:
            assert not tasks.cancel(current_job().task.id, "mistake")
        deadline = time.monotonic() + (2.5 if again else PATIENCE)
        while time.monotonic() < deadline:
            current_job().check_cancelled()
            time.sleep(0.05)
        done[-1] = True

    job.push(conn)
    app.worker(dsn).run(until_empty=True)
    # Before a worker looks again.
    assert tasks.requeue("work.failed") == 1
    app.worker(dsn).run(until_empty=True)
    assert done == [False, True]
    assert not ops.statuses(conn)


@pytest.mark.parametrize("end", ["fail", "move", "lost", "finish", "delete", "pop"])
def test_a_cancellation_holds_for_as_long_as_the_task_is_where_it_was(
    app: TaskApp, conn: Connection, end: str
) -> None:
    ops.modify(conn, inserts=[{"queue": QUEUE, "id": -1}])
    [(task, version)] = ops.claim(conn, QUEUE)
    tasks = Tasks(conn)

    def told() -> list[str]:
        reasons = [
            row["reason"]
            for row in ops.rows(conn, "select * from pgq_task.heartbeat('w', %s)", [task])
        ]
        assert [each.cancelled for each in tasks.progress()] == reasons
        return reasons

    def renew() -> int:
        return int(
            value(conn, "select version from pgq_task.renew('w', %s, %s)", [task], [version])
        )

    assert not tasks.cancel(task, "first")
    assert not tasks.cancel(task, "second")
    assert told() == ["first"]
    version = renew()
    assert told() == ["first"]
    if end == "fail":
        conn.execute("select pgq_task.fail('w', %s, %s, 'x', final => true)", [task, version])
        conn.execute("select pgq_task.requeue('work.failed')")
    elif end == "lost":
        conn.execute("select pgq_task._lost_to_error_queue(%s)", [task])
        conn.execute("select pgq_task.requeue('work.failed')")
    elif end == "move":
        tasks.create_queue("other")
        for queue in ("other", QUEUE):
            [(_, _, _, moved)] = ops.modify(
                conn, changes=[{"id": task, "version": version, "queue": queue}]
            )
            assert moved is not None
            version = moved
    else:
        if end == "finish":
            conn.execute("select pgq_task.finish('w', %s, %s)", [task, version])
        elif end == "delete":
            ops.modify(conn, deletes=[(task, version)])
        else:
            # Given back it goes to the error queue.
            ops.modify(conn, changes=[{"id": task, "version": version}])
            conn.execute("select pgq_task.pop('work.failed')")
        ops.modify(conn, inserts=[{"queue": QUEUE, "id": task}])
    [(_, version)] = ops.claim(conn, QUEUE)
    assert told() == []
    # It can be cancelled again.
    assert not tasks.cancel(task, "third")
    assert told() == ["third"]


def test_cancelled_tasks_are_forgotten_by_a_sweep(app: TaskApp, conn: Connection) -> None:
    ops.push(conn, QUEUE)
    ops.push(conn, QUEUE)
    claimed = ops.claim(conn, QUEUE, number=2)
    for task, _ in claimed:
        assert not Tasks(conn).cancel(task)
    conn.execute("select pgq_task.finish('w', %s, %s)", claimed[0])
    assert value(conn, "select pgq_task.sweep()")
    assert ops.rows(conn, "select id from pgq_task.cancellation") == [{"id": claimed[1][0]}]


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("done", "total"), [(-1, None), (1, -5), (float("nan"), None), (10**400, None), ("x", None)]
)
def test_progress_that_makes_no_sense_is_refused(
    app: TaskApp, conn: Connection, dsn: str, done: Any, total: float | None
) -> None:
    seen: list[str] = []

    @app.task
    def job() -> None:
        with pytest.raises(InvalidTask, match="a progress of"):
            current_job().progress(done, total)
        seen.append("refused")

    job.push(conn)
    app.worker(dsn).run(until_empty=True)
    assert seen == ["refused"]


# --- a cancellation outlives attempts


ENDS = {
    "fail": "select pgq_task.fail('w', %(id)s, %(version)s, 'no luck')",
    "failed for an hour": "select pgq_task.fail('w', %(id)s, %(version)s, 'no luck', '1 h')",
    "release": "select pgq_task.release('w', array[%(id)s], array[%(version)s])",
    "retry": "select pgq_task.release('w', array[%(id)s], array[%(version)s], '{1 h}')",
    "lease": "update pgq_task.task set lease = clock_timestamp() where id = %(id)s",
    "change": """
        select pgq_task.modify('w', changes => jsonb_build_array(
            jsonb_build_object('id', %(id)s::bigint, 'version', %(version)s::int4)))""",
    "moved to where it is": """
        select pgq_task.modify('w', changes => jsonb_build_array(
            jsonb_build_object('id', %(id)s::bigint, 'version', %(version)s::int4)
            || '{"queue": "work"}'))""",
    "change of many": """
        select pgq_task.change_tasks(
            'work', jsonb_build_object('ids', array[%(id)s::bigint]), '{"priority": 1}',
            claimed => true)""",
}


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_a_cancelled_task_is_not_tried_again_however_its_attempt_ends(
    app: TaskApp, conn: Connection, end: str, limited: bool
) -> None:
    tasks = Tasks(conn)
    if limited:
        tasks.set_limits(QUEUE, max_running=5)
    keys = ["k", "k", None]
    ids = [ops.push(conn, QUEUE, order_key=key) for key in keys]
    [(task, version)] = ops.claim(conn, QUEUE, number=1)
    assert task == ids[0]
    assert not tasks.cancel(task, "too expensive")
    conn.execute(ENDS[end].encode(), {"id": task, "version": version})
    assert {each for each, _ in ops.claim(conn, QUEUE, number=5)} <= {*ids[1:]}
    if end == "lease":
        tasks.create_queue("other")
        ops.push(conn, "other")
        [other] = ops.claim(conn, "other")
        next_one = "select id from pgq_task.finish_and_claim('w', %s, %s, %s)"
        assert value(conn, next_one, *other, QUEUE) is None
        assert value(conn, "select pgq_task.sweep()")
    row = ops.task(conn, task)
    assert row is not None
    assert row["queue"] == "work.failed"
    assert row["headers"]["reason"].startswith("cancelled: too expensive")
    assert ("no luck" in row["error"]) == end.startswith("fail")
    # Tasks behind it go on.
    ops.claim(conn, QUEUE, number=5)
    assert {ops.statuses(conn)[each] for each in ids[1:]} == {"claimed"}
    # Sent back it is done.
    assert tasks.requeue("work.failed") == 1
    assert [each for each, _ in ops.claim(conn, QUEUE, number=5)] == [task]
    assert not ops.rows(conn, "select * from pgq_task.heartbeat('w', %s)", [task])


def test_what_is_failed_while_it_is_cancelled_is_buried_by_the_next_sweep(
    app: TaskApp, conn: Connection, connect: Connect
) -> None:
    task = ops.push(conn, QUEUE)
    [(_, version)] = ops.claim(conn, QUEUE)
    other = connect(autocommit=False)
    other.execute("select pgq_task.fail('w', %s, %s, 'no luck')", [task, version])
    assert not Tasks(conn).cancel(task, "too expensive")
    other.commit()
    assert value(conn, "select pgq_task.sweep()")
    assert (ops.task(conn, task) or {})["queue"] == "work.failed"


@pytest.mark.parametrize("kind", ["fails", "asks for Retry", "raises Retry"])
def test_a_job_that_is_cancelled_and_does_not_look_runs_no_second_time(
    app: TaskApp,
    conn: Connection,
    started: Callable[[], None],
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs: list[int] = []
    tasks = Tasks(conn)
    app.retry_policy = lambda attempt, error: 0

    @app.task
    def job() -> Any:
        runs.append(1)
        assert not tasks.cancel(current_job().task.id, "too expensive")
        if kind == "fails":
            raise ValueError("no luck")
        if kind == "raises Retry":
            raise Retry(0)
        return Retry(0)

    task = job.push(conn)
    started()
    wait_for(lambda: (ops.task(conn, task) or {})["queue"] == "work.failed")
    assert runs == [1]
    if kind == "fails":
        wait_for(lambda: [each for each in caplog.messages if "goes to the error queue" in each])
        assert "work.failed (cancelled: too expensive) after attempt 1: ValueError" in caplog.text


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("way", ["handle_task", "process_task", "app"])
def test_a_claimed_task_that_was_cancelled_does_not_start(
    app: TaskApp, conn: Connection, dsn: str, connect: Connect, way: str, concurrency: int
) -> None:
    seen: list[int] = []
    cancelling = connect(autocommit=True)
    lock = threading.Lock()

    def work(number: int) -> None:
        seen.append(number)
        with lock:
            # All of the claim but itself, as soon as there is more than one.
            claimed = ops.rows(
                cancelling, "select id, payload from pgq_task.task where lease is not null"
            )
            if len(claimed) < 2 * concurrency + 2 or cancelled:
                return
            for each in claimed:
                payload = each["payload"]
                other = payload["args"]["number"] if way == "app" else payload
                if other not in seen:
                    assert not Tasks(cancelling).cancel(each["id"], "all of them")
                    cancelled.append(other)

    cancelled: list[int] = []
    if way == "app":
        job = app.task(name="job")(work)
        job.push_many(conn, [{"number": number} for number in range(200)])
        worker: TaskWorker = app.worker(dsn, concurrency=concurrency)
    else:
        ways: dict[str, Any] = {
            "handle_task": lambda self, task: work(task.payload),
            "process_task": lambda self, conn, task: work(task.payload),
        }
        Tasks(conn).push_many(QUEUE, range(200))
        made = type("Made", (TaskWorker,), {way: ways[way]})
        worker = made(dsn, QUEUE, concurrency=concurrency, batch_size=50)
    worker.run(until_empty=True)
    assert cancelled
    # Tasks that began while they were being cancelled, with two workers.
    begun = {*cancelled} & {*seen}
    assert len(begun) < concurrency
    assert {*seen} | {*cancelled} == {*range(200)}
    buried = ops.rows(conn, "select error from pgq_task.tasks where queue = 'work.failed'")
    assert [row["error"] for row in buried] == ["cancelled: all of them"] * len(
        {*cancelled} - {*seen}
    )
