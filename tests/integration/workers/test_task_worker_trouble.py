"""Workers of task queues: handlers that misbehave, users that interfere, ends in the middle."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

import pgqpy
from pgqpy import DeadLetter, FixedDelay, errors
from pgqpy.tasks import AsyncTaskWorker, Move, Task, Tasks, TaskStats, TaskWorker
from tests.fixtures.fix_client import PATIENCE, wait_until
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_pool import Pool
from tests.fixtures.fix_task_worker import (
    STEAL,
    Noting,
    Writer,
    aside,
    effects,
    error_of,
    left,
    run_until_empty,
    running,
)
from tests.fixtures.fix_ticker import eventually


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("close", "process_task closed its connection"),
        ("commit", "is not for this connection"),
        ("ignore", "current transaction is aborted"),
    ],
)
def test_a_handler_that_breaks_the_transaction_has_failed_and_written_nothing(
    dsn: str, conn: Connection, tasks: Tasks, statement: str, said: str
) -> None:
    class Breaking(Writer):
        def process_task(self, conn: pgqpy.Connection, task: Task) -> None:
            super().process_task(conn, task)
            if statement == "ignore":
                with suppress(psycopg.Error):
                    conn.execute("select 1 / 0")
            else:
                getattr(conn, statement)()

    tasks.push("work", {"data": "x"})
    tasks.push("work", {"data": "x"})
    Breaking(dsn, retry_policy=FixedDelay(3600)).run(until_empty=True)
    assert [row[:3] for row in left(conn)] == [("work", "scheduled", 1)] * 2
    assert effects(conn) == []
    for task in tasks.list("work"):
        assert said in str(task.error).partition("\n\n")[0]


class Left(BaseException):
    """An end that neither finishes the task nor makes it fail."""


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("way", ["handle_task", "process_task"])
def test_a_handler_that_ends_the_worker_has_the_rest_given_back_at_once(
    dsn: str, conn: Connection, tasks: Tasks, concurrency: int, way: str
) -> None:
    seen: list[int] = []
    late: list[int] = []
    gone = threading.Event()

    def work(*args: Any) -> None:
        seen.append(args[-1].payload)
        if gone.is_set():
            late.append(args[-1].payload)
            # Other threads go on until the worker has noticed; nothing else wakes it for that.
            wait_until(lambda: worker.stopping)
        if args[-1].payload == 150:
            gone.set()
            raise Left

    class Leaving(TaskWorker):
        queues = "work"
        random = False

    setattr(Leaving, way, lambda self, *args: work(*args))
    tasks.push_many("work", range(400))
    worker = Leaving(dsn, concurrency=concurrency)
    with pytest.raises(Left):
        worker.run()
    assert not [each for each in threading.enumerate() if each.name == "pgqpy renew"]
    assert len(late) <= concurrency
    found = left(conn)
    assert {row[3] for row in found} == {*range(400)} - {*seen} | {150}
    # As if its process had died: it is claimed until its lease ends.
    assert [row[3] for row in found if row[1:3] != ("available", 0)] == [150]


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("way", ["handle_task", "process_task"])
def test_a_run_that_is_interrupted_gives_back_what_it_works_on(
    dsn: str, conn: Connection, tasks: Tasks, way: str, concurrency: int
) -> None:
    effect = "insert into effect (data) values ('x')"

    def interrupted(*args: Any) -> None:
        if way == "process_task":
            args[1].execute(effect)
        raise KeyboardInterrupt

    async def main() -> None:
        begun = asyncio.Event()

        async def work(*args: Any) -> None:
            if way == "process_task":
                await args[1].execute(effect)
            begun.set()
            await asyncio.sleep(PATIENCE)

        worker = type("Cancelled", (AsyncTaskWorker,), {way: work, "queues": "work"})
        run = asyncio.create_task(worker(dsn, concurrency=concurrency).run())
        await asyncio.wait_for(begun.wait(), PATIENCE)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    tasks.push_many("work", [1, 1, 1])
    asyncio.run(main())
    if concurrency == 1:
        with pytest.raises(KeyboardInterrupt):
            type("Interrupted", (TaskWorker,), {way: interrupted})(dsn, "work").run()
    assert left(conn) == [("work", "available", 0, 1)] * 3
    assert effects(conn) == []


def test_swallowing_a_cancellation_is_no_end(dsn: str, conn: Connection, tasks: Tasks) -> None:
    class Stubborn(AsyncTaskWorker):
        queues = "work"
        lease = 1
        random = False

        async def handle_task(self, task: Task) -> str:
            if task.payload == "slow":
                conn.execute(STEAL, [task.id])
                try:
                    await asyncio.sleep(PATIENCE)
                except asyncio.CancelledError:
                    return "done anyway"
            return "done"

    tasks.push("work", "slow")
    tasks.push("work", "next")
    asyncio.run(Stubborn(dsn).run(until_empty=True))
    assert left(conn) == [("work", "claimed", 1, "slow")]


def test_a_batch_that_lost_several_is_cancelled_once(
    dsn: str, conn: Connection, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Batches grow, however long they take.
    monkeypatch.setattr("pgqpy.tasks._worker.claimer._QUICK", 1e9)
    robbed: list[str] = []
    lost: list[str] = []
    thief = conn

    class Robbed(AsyncTaskWorker):
        def on_task_lost(self, task: Task) -> None:
            lost.append(task.payload)

        async def process_batch(self, conn: pgqpy.AsyncConnection, tasks: list[Task]) -> None:
            if len(tasks) > 2 and not robbed:
                robbed.extend(task.payload for task in tasks)
                for task in tasks:
                    thief.execute(STEAL, [task.id])
                await asyncio.sleep(PATIENCE)

    tasks.push_many("work", range(20))
    run_until_empty(Robbed(dsn, "work", lease=1, batch_size=8))
    assert sorted(lost) == sorted(robbed) != []
    assert [row[1] for row in left(conn)] == ["claimed"] * len(robbed)


def test_batches_of_before_do_not_disturb_a_worker_that_claims_fewer_now(
    dsn: str, conn: Connection, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both may get a large batch at the same time.
    first = threading.Lock()
    delay: list[int] = []
    meanwhile: list[int] = []

    class Slower(TaskWorker):
        queues = "work"
        batch_size = 64
        concurrency = 2

        def process_batch(self, conn: pgqpy.Connection, tasks: list[Task]) -> None:
            if len(tasks) >= 32 and first.acquire(blocking=False):
                # From here on all batches are too slow.
                monkeypatch.setattr("pgqpy.tasks._worker.claimer._QUICK", -1.0)
                monkeypatch.setattr("pgqpy.tasks._worker.claimer._SLOW", -1.0)
                wait_until(lambda: len(delay) >= 5)
                meanwhile.append(len(delay))
            elif first.locked():
                delay.append(len(tasks))

    monkeypatch.setattr("pgqpy.tasks._worker.claimer._QUICK", 1e9)
    tasks.push_many("work", range(600))
    Slower(dsn).run(until_empty=True)
    assert meanwhile[0] >= 5
    assert left(conn) == []


def test_waiting_tasks_are_finished_by_a_worker_that_takes_one_at_a_time_and_loses_some(
    dsn: str, conn: Connection, tasks: Tasks
) -> None:
    seen: Counter[int] = Counter()

    class Singly(Noting, TaskWorker):
        def handle_task(self, task: Task) -> dict[str, int]:
            seen[task.payload] += 1
            if task.payload % 10 == 0:
                conn.execute(STEAL, [task.id])
            return {"n": task.payload}

    tasks.set_config("work", "keep", "1 hour")
    tasks.push_many("work", range(100))
    worker = Singly(dsn, "work", batch_size=1)
    worker.run(until_empty=True)
    assert seen == Counter(range(100))
    assert sorted(worker.lost) == [*range(0, 100, 10)]
    assert {row[1] for row in left(conn)} == {"claimed"}
    assert worker.finished == 90
    done = tasks.finished("work", max_tasks=None)
    assert sorted(task.result["n"] for task in done) == [n for n in range(100) if n % 10]


@pytest.mark.parametrize(
    ("way", "there"),
    [
        # Work done outside of the transaction is not repeated.
        ("handle_task", ("work.failed", "available", 0)),
        ("process_task", ("work", "scheduled", 1)),
    ],
)
def test_a_move_to_where_its_unique_key_is_taken_is_the_tasks_failure(
    dsn: str, conn: Connection, tasks: Tasks, way: str, there: tuple[str, str, int]
) -> None:
    lost: list[Task] = []
    tasks.create_queue("next")
    tasks.push("work", "second", unique_key="k")
    tasks.push("next", "first", unique_key="k", delay=3600)
    methods = {way: lambda *_: Move("next"), "on_task_lost": lambda _, task: lost.append(task)}
    worker = type("Moving", (TaskWorker,), methods)
    worker(dsn, "work", retry_policy=FixedDelay(3600)).run(until_empty=True)
    assert sorted(left(conn)) == [("next", "scheduled", 0, "first"), (*there, "second")]
    tasks.drop_queue("next", force=True)
    assert "with unique_key 'k': collision" in error_of(conn)
    assert lost == []


@pytest.mark.parametrize("batch_size", [1, 100])
def test_moves_to_a_queue_that_is_missing_fail_these_tasks_and_nothing_else(
    dsn: str, conn: Connection, tasks: Tasks, batch_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Repeated until statements are prepared: a refused one takes its pipeline along."""
    tasks.push_many("work", range(60))

    def handle(task: Task) -> Move | None:
        time.sleep(0.005)
        return None if task.payload % 4 else Move("nowhere")

    options: dict[str, Any] = {"batch_size": batch_size, "retry_policy": FixedDelay(3600)}
    TaskWorker(dsn, "work", handle, **options).run(until_empty=True)
    assert sorted(left(conn)) == [("work.failed", "available", 0, n) for n in range(0, 60, 4)]
    assert "lost the database" not in caplog.text


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize("way", ["handle_task", "process_task", "process_batch", "asyncio"])
def test_what_a_handler_raises_is_its_tasks_failure(
    dsn: str, conn: Connection, tasks: Tasks, way: str
) -> None:
    def fail(*_: Any) -> None:
        error = raised[-1]()
        raise error

    asyncio_way = type("Failing", (AsyncTaskWorker,), {"handle_task": aside(fail)})
    made: Any = asyncio_way if way == "asyncio" else type("Failing", (TaskWorker,), {way: fail})
    outcomes: list[tuple[Callable[[], Exception], str]] = [
        (lambda: DeadLetter(LookupError("no such account")), "LookupError: no such account"),
        (lambda: Move(None), "InvalidTask: a task is moved to None"),  # type: ignore[arg-type]
        (Mute, "Mute: (what it says cannot be told"),
    ]
    raised: list[Callable[[], Exception]] = []
    for outcome, reason in outcomes:
        raised.append(outcome)
        tasks.push("work", 1)
        run_until_empty(made(dsn, "work", retry_policy=FixedDelay(3600, attempts=1)))
        assert error_of(conn).startswith(reason)
        assert tasks.remove("work.failed", None) == 1


def test_a_sweep_that_is_held_up_disturbs_no_worker(
    dsn: str, connect: Connect, conn: Connection, tasks: Tasks
) -> None:
    other = connect(autocommit=False)
    other.execute("lock table pgq_task.sweep in access exclusive mode")
    tasks.push("work", 1)
    with running(TaskWorker(dsn, "work", lambda task: None)):
        eventually(conn, "select count(*) = 0 from pgq_task.task")


def test_a_database_with_another_isolation_level_by_default_is_worked_on_and_swept(
    dsn: str, conn: Connection, tasks: Tasks, caplog: pytest.LogCaptureFixture
) -> None:
    (name,) = conn.execute("select current_database()").fetchone() or ()
    conn.execute(f"alter database {name} set default_transaction_isolation = serializable".encode())
    tasks.set_config("work", "max_attempts", 1)
    tasks.push("work", "dead")
    conn.execute("select pgq_task.claim('{work}', 'killed', '1 ms')")
    with running(TaskWorker(dsn, "work", lambda task: None)):
        tasks.push("work", "alive")
        eventually(conn, "select count(*) = 1 from pgq_task.tasks where queue = 'work.failed'")
        eventually(conn, "select count(*) = 0 from pgq_task.tasks where queue = 'work'")
    assert "lost the database" not in caplog.text


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_hook_that_raises_after_the_commit_ends_the_worker_and_fails_no_task(
    dsn: str, conn: Connection, tasks: Tasks, concurrency: int
) -> None:
    failed: list[Task] = []

    class Raising(Noting, Writer):
        def on_completed(self, stats: TaskStats) -> None:
            raise ValueError("the metrics are away")

        def on_task_failed(self, task: Task, error: Exception, delay: Any) -> None:
            failed.append(task)

    tasks.push("work", {"data": "x"})
    worker = Raising(dsn, concurrency=concurrency)
    with pytest.raises(ValueError, match="the metrics are away"):
        worker.run()
    assert worker.lost == failed == []
    assert effects(conn) == ["x"]
    assert left(conn) == []


def test_an_outage_costs_all_tasks_that_it_met_the_same_pause(
    dsn: str,
    conn: Connection,
    tasks: Tasks,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Batches grow, however long they take.
    monkeypatch.setattr("pgqpy.tasks._worker.claimer._QUICK", 1e9)

    class Away(TaskWorker):
        queues = "work"
        batch_size = 16

        def process_batch(self, conn: pgqpy.Connection, tasks: list[Task]) -> None:
            if len(tasks) > 4 and not met:
                met.extend(tasks)
                raise errors.RetryTransaction("deadlock detected", sqlstate="40P01")

    met: list[Task] = []
    tasks.push_many("work", range(60))
    with caplog.at_level(logging.WARNING):
        Away(dsn).run(until_empty=True)
    pauses = [record.pause for record in caplog.records if hasattr(record, "pause")]
    assert len(pauses) == len(met) > 4
    # The fifth of pauses that double would be 1.6 s.
    assert max(pauses) < 1


@pytest.mark.parametrize(
    "interference",
    [
        "remove_tasks('work', null, claimed => true)",
        "change_tasks('work', null, '{\"queue\": \"next\"}', claimed => true)",
        "drop_queue('work', true)",
    ],
    ids=["deleted", "moved", "queue dropped"],
)
def test_a_task_that_people_take_away_while_it_is_worked_on_leaves_no_effect(
    dsn: str, conn: Connection, tasks: Tasks, interference: str
) -> None:
    people = conn

    class Disturbed(Noting, Writer):
        def process_task(self, conn: pgqpy.Connection, task: Task) -> None:
            super().process_task(conn, task)
            people.execute(f"select pgq_task.{interference}".encode())
            self.stop()

    tasks.create_queue("next")
    tasks.push("work", {"data": "x"})
    worker = Disturbed(dsn)
    worker.run()
    assert effects(conn) == []
    assert worker.lost == [{"data": "x"}]
    assert [row[0] for row in left(conn)] == ["next"] * ("next" in interference)


def test_a_worker_is_told_of_a_lost_task_once(dsn: str, conn: Connection, tasks: Tasks) -> None:
    thief = conn

    class Robbed(Noting, Writer):
        def process_task(self, conn: pgqpy.Connection, task: Task) -> None:
            super().process_task(conn, task)
            thief.execute(STEAL, [task.id])
            wait_until(lambda: self.lost)
            assert not self.has(task)

    tasks.push("work", {"data": "x"})
    worker = Robbed(dsn, lease=1)
    worker.run(until_empty=True)
    assert worker.lost == [{"data": "x"}]
    assert effects(conn) == []


def test_a_worker_may_lose_a_task_to_itself(dsn: str, conn: Connection, tasks: Tasks) -> None:
    had: list[bool] = []
    people = conn

    class Twice(Noting, Writer):
        def process_task(self, conn: pgqpy.Connection, task: Task) -> None:
            super().process_task(conn, task)
            if task.attempts == 1:
                # As if the machine had slept, and no other worker had come.
                people.execute("update pgq_task.task set lease = now() - interval '1 second'")
                wait_until(lambda: self.lost)
                had.append(self.has(task))

    tasks.push("work", {"data": "x"})
    worker = Twice(dsn, concurrency=2, lease=3600)
    with running(worker):
        eventually(conn, "select count(*) = 0 from pgq_task.tasks")
    assert (len(worker.lost), had) == (1, [False])
    assert effects(conn) == ["x"]


def test_a_renewal_that_waits_for_its_tasks_session_is_not_waited_for(
    pool: Pool, conn: Connection, tasks: Tasks
) -> None:
    class Long(Noting, Writer):
        listen = False

        def process_task(self, conn: pgqpy.Connection, task: Task) -> None:
            assert self._loop is not None
            leases = self._loop.leases
            # It is connected before the task has the only session.
            wait_until(lambda: leases._heartbeat._conn)
            super().process_task(conn, task)
            wait_until(leases.renewing.locked)

    tasks.push("work", {"data": "x"})
    worker = Long(pool("transaction", size=1), prepare_threshold=None, lease=2)
    with running(worker):
        eventually(conn, "select count(*) = 0 from pgq_task.tasks", patience=PATIENCE)
    assert worker.lost == []
    assert effects(conn) == ["x"]


def test_a_renewal_that_begins_just_now_is_not_waited_for_in_a_transaction(
    dsn: str, conn: Connection, tasks: Tasks
) -> None:
    class Busy:
        """The lock of a renewal that is under way, though it did not seem so."""

        def locked(self) -> bool:
            return False

        def acquire(self, blocking: bool = True) -> bool:
            assert not blocking, "behind a pooler each would wait for the other"
            return False

        def __enter__(self) -> None:
            self.acquire()

        def __exit__(self, *_: object) -> None: ...

    class Unlucky(Writer):
        def process_task(self, conn: pgqpy.Connection, task: Task) -> None:
            super().process_task(conn, task)
            assert self._loop is not None
            leases: Any = self._loop.leases
            self.lock, leases.renewing = leases.renewing, Busy()

        def on_completed(self, stats: TaskStats) -> None:
            assert self._loop is not None
            self._loop.leases.renewing = self.lock

    tasks.push("work", {"data": "x"})
    Unlucky(dsn).run(until_empty=True)
    assert effects(conn) == ["x"]
    assert left(conn) == []
