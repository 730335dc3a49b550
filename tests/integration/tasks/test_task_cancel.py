"""Cancelled tasks are not started, or end as soon as they can; running tasks report progress."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from functools import partial
from queue import Queue
from typing import Any

import pytest

from pgqpy.errors import InvalidTask, TaskConflict
from pgqpy.retry import Retry
from pgqpy.tasks import TaskApp, Tasks, TaskWorker, current_job
from tests.fixtures import task_ops as ops
from tests.fixtures.fix_client import PATIENCE, wait_until
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_task_worker import running
from tests.fixtures.queue_ops import value

QUEUE = "work"


@pytest.fixture
def app(conn: Connection) -> TaskApp:
    Tasks(conn).create_queue(QUEUE)
    return TaskApp(QUEUE, retry_policy=lambda attempt, error: 3600)


@pytest.fixture(params=["sync", "async"])
def started(request: pytest.FixtureRequest, app: TaskApp, dsn: str) -> Iterator[Callable[[], None]]:
    """``started()`` has a worker of either kind in the background."""
    stops: Queue[Callable[[], object]] = Queue()

    async def work() -> None:
        worker = app.async_worker(dsn)
        loop = asyncio.get_running_loop()
        stops.put(lambda: loop.call_soon_threadsafe(worker.stop))
        await worker.run(handle_signals=False)

    with ExitStack() as stack:

        def begin() -> None:
            if request.param == "sync":
                stack.enter_context(running(app.worker(dsn)))
            else:
                thread = threading.Thread(target=lambda: asyncio.run(work()))
                thread.start()
                stack.callback(thread.join)
                stack.callback(stops.get(timeout=PATIENCE))

        yield begin


def is_buried(conn: Connection, task: int) -> bool:
    return bool(ops.task_of(conn, task)["queue"] == "work.failed")


@pytest.mark.any_pg
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
        [progress] = wait_until(tasks.progress)
        assert (progress.id, progress.queue) == (task, QUEUE)
        assert (progress.done, progress.total, progress.note) == (40, 100, "pages")
        assert progress.cancelled is None
        go_on.set()
        wait_until(lambda: tasks.progress(QUEUE, ids=[task])[0].done == 41)
        assert tasks.progress(ids=[task + 1]) == []
    finally:
        go_on.set()
        end.set()
    wait_until(lambda: not ops.statuses(conn))
    assert tasks.progress() == []


@pytest.mark.any_pg
def test_whatever_one_job_says_others_are_heard(app: TaskApp, conn: Connection, dsn: str) -> None:
    end = threading.Event()
    said: list[tuple[Any, ...]] = [(1, None, 7), (2.5, 10, "a\0b"), (Decimal(3), None, "\ud800")]

    @app.task
    def job(number: int) -> None:
        current_job().progress(*said[number])
        assert end.wait(PATIENCE)

    for number in range(3):
        job.push(conn, number)
    with running(app.worker(dsn, concurrency=3)):
        found = wait_until(lambda: len(all_of := Tasks(conn).progress()) == 3 and all_of)
        end.set()
    assert {(each.done, each.note) for each in found} == {(1, "7"), (2.5, "ab"), (3, "?")}


def test_the_last_report_of_progress_counts(app: TaskApp, conn: Connection) -> None:
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
    odd = "select pgq_task.heartbeat('w', %s, %s, %s, %s)"
    for numbers in (["{NaN}", "{1}"], ["{1}", "{infinity}"]):
        ops.refused(partial(conn.execute, odd, [[two], [two], *numbers]))


@pytest.mark.any_pg
def test_a_job_that_looks_hears_that_it_is_cancelled(
    app: TaskApp, conn: Connection, started: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Event()

    @app.task
    def job() -> None:
        begun.set()
        wait_until(lambda: current_job().cancelled)
        # A repeated request a second later changes nothing.
        time.sleep(1.5)
        current_job().progress(1)

    task = job.push(conn)
    caplog.set_level(logging.INFO)
    started()
    assert begun.wait(PATIENCE)
    tasks = Tasks(conn)
    assert not tasks.cancel(task, "too expensive")
    wait_until(lambda: is_buried(conn, task))
    row = ops.task_of(conn, task)
    assert row["headers"]["reason"].startswith("cancelled: too expensive")
    assert sum("is cancelled" in message for message in caplog.messages) == 1


@pytest.mark.any_pg
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
    wait_until(lambda: is_buried(conn, task))
    assert ended == ["cleaned up"]
    # Sent back it is done like any other: it was that attempt which was cancelled.
    begun.clear()

    def other() -> None:
        ended.append("done")

    app.jobs["job"].function = other
    wait_until(lambda: not ops.rows(conn, "select * from pgq_task.cancellation"))
    conn.execute("select pgq_task.requeue('work.failed')")
    wait_until(lambda: not ops.statuses(conn))
    assert ended == ["cleaned up", "done"]


@pytest.mark.any_pg
def test_the_worker_that_takes_over_a_task_learns_of_its_cancelling(
    app: TaskApp, conn: Connection, started: Callable[[], None]
) -> None:
    @app.task
    def job() -> None:
        wait_until(lambda: current_job().cancelled)
        current_job().check_cancelled()

    task = job.push(conn)
    conn.execute("select * from pgq_task.claim('{work}', 'dead', '1 hour')")
    assert not Tasks(conn).cancel(task)
    conn.execute("update pgq_task.task set lease = clock_timestamp()")
    started()
    wait_until(lambda: is_buried(conn, task))


@pytest.mark.parametrize("end", ["finish('w', %s, %s)", "fail('w', %s, %s, 'no luck')"])
def test_cancelling_does_not_wait_for_the_end(
    app: TaskApp, conn: Connection, connect: Connect, end: str
) -> None:
    task = ops.push(conn, QUEUE)
    other = connect(autocommit=False)
    other.execute(f"select pgq_task.{end}".encode(), ops.claim(conn, QUEUE)[0])
    assert not Tasks(conn).cancel(task)
    other.commit()
    # What has failed meanwhile is buried by the next sweep.
    ops.sweep(conn)
    assert ops.statuses(conn) == ({task: "available"} if "fail" in end else {})
    assert "finish" in end or is_buried(conn, task)


def test_cancellations_of_tasks_that_ended_are_forgotten(app: TaskApp, conn: Connection) -> None:
    tasks = Tasks(conn)
    known = "select array_agg(id) from pgq_task.cancellation"
    for _ in range(3):
        ops.push(conn, QUEUE)
        [task] = tasks.try_claim(QUEUE)
        assert not tasks.cancel(task.id)
        tasks.finish(task)
    assert value(conn, known) == [task.id]
    running = ops.push(conn, QUEUE)
    ops.claim(conn, QUEUE)
    assert not tasks.cancel(running)
    ops.sweep(conn)
    assert value(conn, known) == [running]
    # One that is not claimed is deleted.
    free = tasks.push(QUEUE, None, delay=3600)
    assert tasks.cancel(free)
    assert ops.task(conn, free) is None
    with pytest.raises(TaskConflict, match=f"there is no task {free}") as refused:
        tasks.cancel(free)
    assert "It is finished or deleted" in str(refused.value.hint)


@pytest.mark.any_pg
def test_a_cancelled_task_is_done_if_sent_back(app: TaskApp, conn: Connection, dsn: str) -> None:
    tasks = Tasks(conn)
    done: list[bool] = []

    @app.task
    def job() -> None:
        again = bool(done)
        done.append(False)
        if not again:
            assert not tasks.cancel(current_job().task.id, "mistake")
        deadline = time.monotonic() + (1.5 if again else PATIENCE)
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
def test_a_cancellation_ends_with_its_attempts(app: TaskApp, conn: Connection, end: str) -> None:
    ops.modify(conn, inserts=[{"queue": QUEUE, "id": -1}])
    [(task, version)] = ops.claim(conn, QUEUE)
    tasks = Tasks(conn)

    def told() -> list[str]:
        rows = ops.rows(conn, "select reason from pgq_task.heartbeat('w', %s)", [task])
        reasons = [row["reason"] for row in rows]
        assert [each.cancelled for each in tasks.progress()] == reasons
        return reasons

    assert not tasks.cancel(task, "first")
    assert not tasks.cancel(task, "second")
    assert told() == ["first"]
    version = value(conn, "select version from pgq_task.renew('w', %s, %s)", [task], [version])
    assert told() == ["first"]
    if end == "fail":
        ops.fail(conn, (task, version), final=True)
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
            ops.finish(conn, (task, version))
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


@pytest.mark.any_pg
def test_progress_that_makes_no_sense_is_refused(app: TaskApp, conn: Connection, dsn: str) -> None:
    wrong: list[Any] = [(-1, None), (1, -5), (float("nan"), None), (10**400, None), ("x", None)]
    seen: list[object] = []

    @app.task
    def job() -> None:
        for done, total in wrong:
            with pytest.raises(InvalidTask, match="a progress of"):
                current_job().progress(done, total)
            seen.append(done)

    job.push(conn)
    app.worker(dsn).run(until_empty=True)
    assert len(seen) == len(wrong)


NAMED = "jsonb_build_array(jsonb_build_object('id', %(id)s::bigint, 'version', %(version)s::int4"
ENDS = {
    "fail": "select pgq_task.fail('w', %(id)s, %(version)s, 'no luck')",
    "failed for an hour": "select pgq_task.fail('w', %(id)s, %(version)s, 'no luck', '1 h')",
    "release": "select pgq_task.release('w', array[%(id)s], array[%(version)s])",
    "retry": "select pgq_task.release('w', array[%(id)s], array[%(version)s], '{1 h}')",
    "lease": "update pgq_task.task set lease = clock_timestamp() where id = %(id)s",
    "change": f"select pgq_task.modify('w', changes => {NAMED})))",
    "moved to where it is": f"select pgq_task.modify('w', changes => {NAMED}, 'queue', 'work')))",
    "change of many": "select pgq_task.change_tasks('work', jsonb_build_object("
    "'ids', array[%(id)s::bigint]), '{\"priority\": 1}', claimed => true)",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_cancelled_task_is_not_tried_again(app: TaskApp, conn: Connection, end: str) -> None:
    tasks = Tasks(conn)
    tasks.create_queue("other")
    for limit in (None, 5):
        tasks.set_limits(QUEUE, max_running=limit)
        ids = [ops.push(conn, QUEUE, order_key=key) for key in ("k", "k", None)]
        [(task, version)] = ops.claim(conn, QUEUE, number=1)
        assert task == ids[0]
        assert not tasks.cancel(task, "too expensive")
        conn.execute(ENDS[end].encode(), {"id": task, "version": version})
        assert {*ops.ids(ops.claim(conn, QUEUE, number=5))} <= {*ids[1:]}
        if end == "lease":
            ops.push(conn, "other")
            next_one = "select id from pgq_task.finish_and_claim('w', %s, %s, %s)"
            assert value(conn, next_one, *ops.claim(conn, "other")[0], QUEUE) is None
            ops.sweep(conn)
        row = ops.task_of(conn, task)
        assert row["queue"] == "work.failed"
        assert row["headers"]["reason"].startswith("cancelled: too expensive")
        assert ("no luck" in row["error"]) == end.startswith("fail")
        # Tasks behind it go on.
        ops.claim(conn, QUEUE, number=5)
        assert {ops.statuses(conn)[each] for each in ids[1:]} == {"claimed"}
        # Sent back it is done.
        assert tasks.requeue("work.failed") == 1
        assert ops.ids(ops.claim(conn, QUEUE, number=5)) == [task]
        assert not ops.rows(conn, "select * from pgq_task.heartbeat('w', %s)", [task])
        conn.execute("delete from pgq_task.task")


@pytest.mark.any_pg
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
    wait_until(lambda: is_buried(conn, task))
    assert runs == [1]
    if kind == "fails":
        told = "goes to the error queue work.failed (cancelled: too expensive) after attempt 1: Val"
        wait_until(lambda: told in " ".join(caplog.messages))


@pytest.mark.any_pg
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("way", ["handle_task", "process_task", "app"])
def test_a_claimed_task_that_was_cancelled_does_not_start(
    app: TaskApp,
    conn: Connection,
    dsn: str,
    connect: Connect,
    way: str,
    concurrency: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # More are claimed at once, however long they take.
    monkeypatch.setattr("pgqpy.tasks._worker.claimer._QUICK", 1e9)
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
            # The other slot may have asked just before.
            time.sleep(0.05)

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
    never = {*cancelled} - {*seen}
    assert [row["error"] for row in buried] == ["cancelled: all of them"] * len(never)
