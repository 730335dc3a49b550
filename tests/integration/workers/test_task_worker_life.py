"""Workers of task queues: how they stop, wait, and go on after what goes wrong around them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import pgqpy
from pgqpy import FixedDelay, errors
from pgqpy.tasks import AsyncTaskWorker, Task, Tasks, TaskWorker
from pgqpy.tasks._worker.exchange import Exchange
from pgqpy.tasks._worker.loop import Loop
from tests.fixtures import task_ops as ops
from tests.fixtures.fix_client import PATIENCE, wait_until
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_pool import Pool
from tests.fixtures.fix_task_worker import Writer, effects, left, running
from tests.fixtures.fix_ticker import eventually


@pytest.mark.smoke
def test_stop_gives_back_what_has_not_begun(dsn: str, conn: Connection, tasks: Tasks) -> None:
    def handle(task: Task) -> None:
        seen.append(task.payload)
        if task.payload == 140:
            worker.stop()

    seen: list[int] = []
    tasks.push_many("work", range(300))
    worker = TaskWorker(dsn, "work", handle, batch_size=64)
    worker.random = False
    worker.run()
    assert seen == list(range(141))
    rest = conn.execute("select status, attempts, payload from pgq_task.tasks order by id")
    assert rest.fetchall() == [("available", 0, n) for n in range(141, 300)]
    # It can be run again.
    worker.run(until_empty=True)
    assert seen == list(range(300))


def test_a_worker_that_always_finds_tasks_sweeps(dsn: str, conn: Connection, tasks: Tasks) -> None:
    def handle(task: Task) -> None:
        tasks.push("work", 1)
        if tasks.list("lost.failed") or time.monotonic() > end:
            worker.stop()

    tasks.create_queue("lost")
    tasks.set_config("lost", "max_attempts", 1)
    tasks.push("lost")
    ops.claim(conn, "lost", lease="1 ms")
    tasks.push_many("work", [1, 1])
    worker = TaskWorker(dsn, "work", handle, batch_size=1)
    end = time.monotonic() + PATIENCE
    worker.run()
    assert len(tasks.list("lost.failed")) == 1


@pytest.mark.parametrize("kind", [TaskWorker, AsyncTaskWorker])
def test_stop_waits_for_all_that_are_worked_on_at_once(
    dsn: str, conn: Connection, tasks: Tasks, kind: Any
) -> None:
    done: list[int] = []
    number = 4 if kind is TaskWorker else 20
    together = threading.Barrier(4)
    all_here = asyncio.Barrier(20)

    def handle(task: Task) -> None:
        together.wait(PATIENCE)
        worker.stop()
        time.sleep(0.05)
        done.append(task.payload)

    async def handle_aside(task: Task) -> None:
        async with asyncio.timeout(PATIENCE):
            await all_here.wait()
        worker.stop()
        await asyncio.sleep(0.05)
        done.append(task.payload)

    tasks.push_many("work", range(number))
    worker = kind(dsn, "work", handle if number == 4 else handle_aside, concurrency=number)
    ended = worker.run()
    if number == 20:
        asyncio.run(ended)
    assert sorted(done) == list(range(number))
    assert left(conn) == []


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("way", ["handler", "transaction", "asyncio", "deaf asyncio"])
def test_after_its_time_to_stop_a_worker_gives_back_what_still_runs(
    dsn: str, conn: Connection, tasks: Tasks, way: str, concurrency: int
) -> None:
    class InTransaction(TaskWorker):
        def process_task(self, conn: pgqpy.Connection, task: Task) -> None:
            conn.execute("insert into effect (data) values ('never')")
            handle(task)

    class Wide(AsyncTaskWorker):
        async def handle_task(self, task: Task) -> None:
            self.stop()
            while not over.is_set():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    cancelled.append(task.payload)
                    if way == "asyncio":
                        raise

    def handle(task: Task) -> None:
        worker.stop()
        over.wait(PATIENCE)
        ended.append(task.payload)

    async def stop_and_look() -> list[Any]:
        await worker.run()
        rest = left(conn)
        over.set()
        return rest

    over = threading.Event()
    cancelled: list[Any] = []
    ended: list[Any] = []
    tasks.push_many("work", range(3))
    options: dict[str, Any] = {"concurrency": concurrency, "stop_timeout": 0.1}
    worker: Any
    if "asyncio" in way:
        worker = Wide(dsn, "work", **options)
        rest = asyncio.run(stop_and_look())
    elif way == "handler":
        worker = TaskWorker(dsn, "work", handle, **options)
    else:
        worker = InTransaction(dsn, "work", **options)
    if "asyncio" not in way:
        worker.run()
        rest = left(conn)
        over.set()
        wait_until(lambda: len(ended) >= 1)
    assert rest == [("work", "available", 0, n) for n in range(3)]
    assert bool(cancelled) is ("asyncio" in way)
    # What went on cannot finish them any more.
    TaskWorker(dsn, "work", lambda task: None).run(until_empty=True)
    assert left(conn) == []
    assert effects(conn) == []


def test_a_worker_that_does_not_listen_gets_what_is_pushed_and_what_becomes_due(
    dsn: str, conn: Connection, tasks: Tasks
) -> None:
    class Waiting(TaskWorker):
        queues = ("other", "work")
        poll_interval = 0.05
        listen = False

        def handle_task(self, task: Task) -> None:
            conn.execute("insert into effect (data) values (%s)", [task.payload])

    tasks.create_queue("other")
    with running(Waiting(dsn)):
        for number in range(10):
            tasks.push("work" if number % 2 else "other", str(number))
            eventually(conn, "select count(*) = %s from effect", number + 1)
        tasks.push("work", "due", delay=0.3)
        eventually(conn, "select count(*) = 11 from effect")


def test_a_worker_that_has_no_room_does_not_spin_when_it_hears_of_tasks(
    dsn: str, conn: Connection, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0
    turn = Loop._turn

    def counted(loop: Loop) -> Any:
        nonlocal turns
        turns += 1
        return turn(loop)

    def handle(task: Task) -> None:
        busy.release()
        assert go_on.wait(PATIENCE)

    monkeypatch.setattr(Loop, "_turn", counted)
    busy = threading.Semaphore(0)
    go_on = threading.Event()
    worker = TaskWorker(dsn, "work", handle, concurrency=2, batch_size=2)
    with running(worker):
        wait_until(
            lambda: worker._loop and worker._loop._notifier and worker._loop._notifier.listening
        )
        for number in range(2):
            tasks.push("work", number)
            assert busy.acquire(timeout=PATIENCE)
        tasks.push_many("work", range(5))
        conn.execute("select pg_notify('pgq_task', 'work')")
        before = turns
        time.sleep(0.5)
        delay = turns
        go_on.set()
        eventually(conn, "select count(*) = 0 from pgq_task.tasks")
    assert delay - before < 50


def test_a_hook_that_raises_ends_the_worker(dsn: str, conn: Connection, tasks: Tasks) -> None:
    class Raising(TaskWorker):
        queues = "work"
        random = False

        def handle_task(self, task: Task) -> None:
            if task.payload == 300:
                raise ValueError

        def on_task_failed(
            self, task: Task, error: Exception, delay: float | timedelta | None
        ) -> None:
            raise KeyError("enough")

    tasks.push_many("work", range(500))
    with pytest.raises(KeyError, match="enough"):
        Raising(dsn).run()
    found = left(conn)
    # The server knew before the hook did; meanwhile others were done.
    assert found[0] == ("work", "scheduled", 1, 300)
    assert len(found) > 1
    assert [row[3] for row in found[1:]] == list(range(501 - len(found), 500))
    assert {row[1:3] for row in found[1:]} == {("available", 0)}


def test_until_empty_includes_what_handlers_push(dsn: str, conn: Connection, tasks: Tasks) -> None:
    def handle(task: Task) -> None:
        seen.append(task.payload)
        if task.payload:
            pusher.push("work", task.payload - 1)

    pusher = Tasks(conn)
    seen: list[int] = []
    tasks.push("work", 5)
    TaskWorker(dsn, "work", handle, concurrency=2).run(until_empty=True)
    assert seen == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_connections_that_break_lose_nothing_and_double_nothing_in_transactions(
    dsn: str, conn: Connection, tasks: Tasks, concurrency: int
) -> None:
    tasks.push_many("work", [{"data": str(n)} for n in range(250)])
    worker = Writer(dsn, concurrency=concurrency, lease=2, retry_policy=FixedDelay(0.01))
    with running(worker):
        for part in range(1, 5):
            eventually(conn, "select count(*) >= %s from effect", part * 40)
            conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name = %s",
                [f"pgqpy {worker.name}"[:63]],
            )
        eventually(conn, "select count(*) = 0 from pgq_task.tasks", patience=3 * PATIENCE)
    assert Counter(effects(conn)) == dict.fromkeys(map(str, range(250)), 1)


def test_what_was_done_in_an_outage_is_reported(dsn: str, conn: Connection, tasks: Tasks) -> None:
    def handle(task: Task) -> None:
        seen.append(task.payload)
        if task.payload % 10 == 0:
            conn.execute(
                "select pg_terminate_backend(pid, 60000) from pg_stat_activity"
                " where application_name = %s",
                [f"pgqpy {worker.name}"[:63]],
            )

    seen: list[int] = []
    tasks.push_many("work", range(50))
    worker = TaskWorker(dsn, "work", handle, lease=3600)
    with running(worker):
        eventually(conn, "select count(*) = 0 from pgq_task.tasks")
    assert sorted(seen) == list(range(50))


def test_a_missing_queue_ends_the_worker(dsn: str, conn: Connection, tasks: Tasks) -> None:
    def handle(task: Task) -> None:
        conn.execute("select pgq_task.drop_queue('work', true)")

    tasks.push("work")
    for queues in (["work", "missing"], "work"):
        with pytest.raises(errors.TaskQueueNotFound):
            TaskWorker(dsn, queues, handle).run()


def test_one_of_its_queues_may_go_and_come_back(dsn: str, conn: Connection, tasks: Tasks) -> None:
    tasks.create_queue("other")
    seen: list[str] = []
    with running(TaskWorker(dsn, ["work", "other"], lambda task: seen.append(task.payload))):
        tasks.push("other", "before")
        eventually(conn, "select count(*) = 0 from pgq_task.tasks")
        conn.execute("select pgq_task.drop_queue('other')")
        tasks.push("work", "meanwhile")
        eventually(conn, "select count(*) = 0 from pgq_task.tasks")
        tasks.create_queue("other")
        tasks.push("other", "after")
        eventually(conn, "select count(*) = 0 from pgq_task.tasks")
    assert seen == ["before", "meanwhile", "after"]


def test_a_queue_that_is_dropped_and_created_again_at_once_is_served_on(
    dsn: str, conn: Connection, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker asks which queues are left when it is there again."""
    asked = threading.Event()
    existing = Exchange._existing

    def late(exchange: Exchange) -> Any:
        tasks.create_queue("work")
        asked.set()
        return existing(exchange)

    seen: list[int] = []
    with running(TaskWorker(dsn, "work", lambda task: seen.append(task.payload))):
        tasks.push("work", 1)
        eventually(conn, "select count(*) = 0 from pgq_task.tasks")
        monkeypatch.setattr(Exchange, "_existing", late)
        tasks.drop_queue("work")
        assert asked.wait(PATIENCE)
        tasks.push("work", 2)
        eventually(conn, "select count(*) = 0 from pgq_task.tasks")
    assert seen == [1, 2]


def test_a_pooler_may_have_fewer_sessions(pool: Pool, conn: Connection, tasks: Tasks) -> None:
    dsn = pool("transaction", size=3)
    workers = [
        Writer(dsn, name=f"w{n}", concurrency=2, lease=2, prepare_threshold=None) for n in range(3)
    ]
    with running(*workers):
        for part in range(1, 5):
            tasks.push_many("work", [{"data": str(n)} for n in range(100)])
            eventually(conn, "select count(*) = %s from effect", part * 100, patience=2 * PATIENCE)
    assert left(conn) == []
    assert Counter(effects(conn)) == dict.fromkeys(map(str, range(100)), 4)
