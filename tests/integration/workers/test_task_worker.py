"""Workers of task queues: three ways to work, and the results of tasks."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import pgqpy
from pgqpy import DeadLetter, FixedDelay, Retry, errors
from pgqpy._runtime.io import AsyncIo, Io
from pgqpy.tasks import AsyncTaskWorker, Move, Task, Tasks, TaskStats, TaskWorker
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._notifier import Notifier
from pgqpy.tasks._settings import settings_of
from pgqpy.tasks._worker import claimer, executor
from pgqpy.tasks._worker.exchange import Exchange
from tests.fixtures.fix_client import PATIENCE, wait_until
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_task_worker import (
    STEAL,
    Batches,
    Writer,
    aside,
    effects,
    error_of,
    left,
    run_until_empty,
    running,
)
from tests.fixtures.fix_ticker import eventually


@pytest.mark.smoke
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("kind", [TaskWorker, AsyncTaskWorker])
def test_each_task_is_handled_once_and_finished(
    dsn: str, conn: Connection, tasks: Tasks, kind: Any, concurrency: int
) -> None:
    seen: list[int] = []

    def handle(task: Task) -> None:
        seen.append(task.id)

    ids = tasks.push_many("work", range(200))
    handler = aside(handle) if kind is AsyncTaskWorker else handle
    run_until_empty(kind(dsn, "work", handler, concurrency=concurrency, batch_size=50))
    assert sorted(seen) == ids
    assert left(conn) == []


def test_a_worker_with_batches_of_one_asks_once_for_each_task(
    dsn: str, conn: Connection, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One statement finishes a task and claims the next."""
    asked: Counter[str] = Counter()

    def count(name: str) -> None:
        method = getattr(Exchange, name)

        def counted(*args: Any, **options: Any) -> Any:
            asked[name] += 1
            return method(*args, **options)

        monkeypatch.setattr(Exchange, name, counted)

    count("ask")
    count("_finish_and_claim")
    seen: list[int] = []
    ids = tasks.push_many("work", range(20))
    TaskWorker(dsn, "work", lambda task: seen.append(task.id), batch_size=1).run(until_empty=True)
    assert sorted(seen) == ids
    assert left(conn) == []
    assert asked["_finish_and_claim"] == 20
    assert asked["ask"] < 30


def test_a_worker_with_batches_of_one_asks_for_no_cancellations_besides(
    dsn: str, conn: Connection, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim finds no cancelled task; processes that share a processor begin it a little late."""

    class Late(TaskWorker):
        def on_completed(self, stats: TaskStats) -> None:
            time.sleep(0.005)

    def counted(self: Io, conn: Any, calls: list[Any]) -> Any:
        asked.extend(call for call in calls if call[0] is sql.CANCELLED)
        return send(self, conn, calls)

    asked: list[object] = []
    send = Io.send
    monkeypatch.setattr(Io, "send", counted)
    # On a very busy machine some begin later still.
    assert executor._NEWS < 0.005 < executor._NEWS_OF_ONE
    monkeypatch.setattr(executor, "_NEWS_OF_ONE", PATIENCE)
    tasks.push_many("work", range(50))
    Late(dsn, "work", lambda task: None, batch_size=1).run(until_empty=True)
    assert asked == []


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_task_cancelled_between_its_claim_and_its_begin_does_not_start(
    dsn: str, conn: Connection, tasks: Tasks, batch_size: int
) -> None:
    class Late(TaskWorker):
        def on_completed(self, stats: TaskStats) -> None:
            for (task,) in conn.execute("select id from pgq_task.task where lease is not null"):
                tasks.cancel(task)
            # Longer than an answer counts as new.
            time.sleep(0.1)

    seen: list[int] = []
    tasks.push_many("work", range(4))
    worker = Late(dsn, "work", lambda task: seen.append(task.payload), batch_size=batch_size)
    worker.random = False
    worker.run(until_empty=True)
    assert seen == [0]


def test_slots_that_begin_together_ask_once_which_tasks_were_cancelled(
    dsn: str, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def send(self: AsyncIo, conn: Any, calls: list[Any]) -> Any:
        nonlocal asked
        if calls[0][0] is sql.CANCELLED:
            asked += 1
            # Longer than an answer counts as new.
            await asyncio.sleep(0.005)
        return await original(self, conn, calls)

    async def work(task: Task) -> None:
        await asyncio.sleep(0.003)

    original = AsyncIo.send
    monkeypatch.setattr(AsyncIo, "send", send)
    tasks.push_many("work", range(400))
    worker = AsyncTaskWorker(dsn, "work", work, concurrency=20)
    assert settings_of(worker, until_empty=True).batch_size == 1000
    asyncio.run(worker.run(until_empty=True))
    assert 0 < asked < 400 / 4


def test_without_random_one_worker_keeps_the_order_of_pushes(dsn: str, tasks: Tasks) -> None:
    seen: list[int] = []

    def work(task: Task) -> None:
        seen.append(task.payload)
        if task.payload < 40:
            # While it works, in other batches.
            tasks.push_many("work", range(pushed[0], pushed[0] + 50))
            pushed[0] += 50

    pushed = [50]
    tasks.push_many("work", range(50))
    TaskWorker(dsn, "work", work, random=False).run(until_empty=True)
    assert seen == list(range(50 + 40 * 50))


@pytest.mark.parametrize("concurrency", [1, 3])
def test_effects_and_finish_are_one_transaction(
    dsn: str, conn: Connection, tasks: Tasks, concurrency: int
) -> None:
    tasks.push_many("work", [{"data": str(n)} for n in range(100)])
    tasks.push("work", {"data": "bad", "do": "fail"})
    Writer(dsn, concurrency=concurrency, retry_policy=lambda *_: 3600).run(until_empty=True)
    assert Counter(effects(conn)) == dict.fromkeys(map(str, range(100)), 1)
    assert left(conn) == [("work", "scheduled", 1, {"data": "bad", "do": "fail"})]


def test_a_batch_is_one_transaction_and_each_alone_if_one_fails(
    dsn: str, conn: Connection, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Batches grow, however long they take.
    monkeypatch.setattr("pgqpy.tasks._worker.claimer._QUICK", 1e9)
    tasks.create_queue("next")
    tasks.push_many("work", ["good"] * 90 + ["move"])
    tasks.push("work", "bad", priority=-1)
    Batches(dsn, retry_policy=FixedDelay(3600)).run(until_empty=True)
    assert Counter(effects(conn)) == {"good": 90, "move": 1}
    ((transactions,),) = conn.execute("select count(distinct txid) from effect").fetchall()
    assert transactions < 60
    assert left(conn) == [("next", "available", 0, "move"), ("work", "scheduled", 1, "bad")]


def test_a_batch_with_too_few_outcomes_failed(dsn: str, conn: Connection, tasks: Tasks) -> None:
    class Wrong(Batches):
        def process_batch(self, conn: pgqpy.Connection, tasks: list[Task]) -> list[Any] | None:
            super().process_batch(conn, tasks)
            return []

    tasks.push("work", "x")
    Wrong(dsn, retry_policy=FixedDelay(3600)).run(until_empty=True)
    assert effects(conn) == []
    assert error_of(conn).startswith("ValueError: process_batch returned 0 outcomes of 1 tasks")


@pytest.mark.parametrize("batch_size", [1, 100])
@pytest.mark.parametrize("kind", [TaskWorker, AsyncTaskWorker])
def test_a_payload_that_python_cannot_read_fails_and_ends_no_worker(
    dsn: str, conn: Connection, tasks: Tasks, kind: Any, batch_size: int
) -> None:
    payloads = ["1", "[" * 3000 + "]" * 3000, f'{{"a": {"1" * 5000}}}', "2"]
    for payload in payloads:
        conn.execute("select pgq_task.push('work', %s::jsonb)", [payload])
    conn.execute("select pgq_task.push('work', '3', headers => %s::jsonb)", [payloads[2]])
    seen: list[object] = []

    def handle(task: Task) -> None:
        seen.append(task.payload)

    handler = handle if kind is TaskWorker else aside(handle)
    run_until_empty(kind(dsn, "work", handler, batch_size=batch_size))
    assert sorted(seen, key=str) == [1, 2]
    found = conn.execute("select queue, error from pgq_task.tasks order by id").fetchall()
    assert [queue for queue, _ in found] == ["work.failed"] * 3
    assert all("Python cannot read its JSON" in error for _, error in found)


@pytest.mark.parametrize("raised", [True, False])
@pytest.mark.parametrize("way", ["handle_task", "process_task"])
def test_outcomes(dsn: str, conn: Connection, tasks: Tasks, way: str, raised: bool) -> None:
    tasks.create_queue("next")
    outcomes: list[tuple[Exception, tuple[Any, ...]]] = [
        (Retry(3600), ("work", "scheduled", 0, 0)),
        (DeadLetter("hopeless"), ("work.failed", "available", 0, 1)),
        (Move("next"), ("next", "available", 0, 2)),
        (Move("next", "moved", priority=3), ("next", "available", 0, "moved")),
        (Move("next", None, delay=3600), ("next", "scheduled", 0, None)),
        (Retry(-1), ("work", "scheduled", 1, 5)),
        (ValueError("no luck"), ("work", "scheduled", 1, 6)),
        # Work done outside of the transaction is not repeated.
        (
            Move("missing"),
            ("work.failed", "available", 0, 7)
            if way == "handle_task" or raised
            else ("work", "scheduled", 1, 7),
        ),
    ]
    attempts: list[int] = []

    def work(worker: TaskWorker, *args: Any) -> Any:
        task = args[-1]
        if way == "process_task":
            args[0].execute("insert into effect (data) values (%s)", [task.payload])
        # That some outcome cannot be had is not in the way of those beside it.
        if task.payload == "fine":
            return None
        if task.payload == "at once":
            attempts.append(task.attempts)
            return Retry(timedelta(0)) if len(attempts) == 1 else None
        outcome = outcomes[task.payload][0]
        if raised or isinstance(outcome, ValueError):
            raise outcome
        return outcome

    tasks.push_many("work", [*range(len(outcomes)), "at once", *["fine"] * 20])
    worker = type("Deciding", (TaskWorker,), {way: work})
    worker(dsn, "work", retry_policy=FixedDelay(3600), batch_size=4).run(until_empty=True)
    assert left(conn) == [expected for _, expected in outcomes]
    assert attempts == [1, 1]
    if way == "process_task":
        written = {*effects(conn)} - {"fine", "at once"}
        assert written == (set() if raised else {*"01234"})


def test_a_move_that_cannot_be_sent_is_a_failure(dsn: str, conn: Connection, tasks: Tasks) -> None:
    tasks.create_queue("next")
    moves: list[Callable[[], Move]] = [
        lambda: Move("next", {1}),
        lambda: Move("next", math.nan),
        lambda: Move("next", "a\0b"),
        lambda: Move("next", headers={"size": object()}),
        lambda: Move("next", headers=[1]),  # type: ignore[arg-type]
    ]
    tasks.push_many("work", range(9))
    handled = []

    def handle(task: Task) -> Any:
        handled.append(task.payload)
        return moves[task.payload]() if task.payload < 5 else None

    TaskWorker(dsn, "work", handle, retry_policy=FixedDelay(3600)).run(until_empty=True)
    assert sorted(handled) == [*range(9)]
    assert left(conn) == [("work", "scheduled", 1, number) for number in range(5)]
    # The traceback shows the function that made it.
    assert all("in handle\n" in str(each.error) for each in tasks.list("work"))


def test_failures_come_again_as_the_policy_says(dsn: str, conn: Connection, tasks: Tasks) -> None:
    asked: list[int] = []

    class Failing(TaskWorker):
        def handle_task(self, task: Task) -> None:
            raise ValueError(f"no luck with \0 in attempt {task.attempts}")

        def retry_policy(self, attempt: int, error: Exception) -> float | None:
            asked.append(attempt)
            assert str(error).endswith(f"attempt {attempt}")
            return 0.001 if attempt < 3 else None

    def bad_policy(attempt: int, error: Exception) -> float:
        raise KeyError("policy")

    tasks.push("work", 1)
    # A policy that fails does not lose the task.
    worker = Failing(dsn, "work", retry_policy=bad_policy)
    worker.run(until_empty=True)
    assert left(conn) == [("work", "scheduled", 1, 1)]
    tasks.change("work", None, {"delay": 0, "attempts": 0})
    with running(Failing(dsn, "work")):
        eventually(conn, "select count(*) = 1 from pgq_task.tasks where queue = 'work.failed'")
    assert asked == [1, 2, 3]
    first, _, where = error_of(conn).partition("\n\n")
    assert first == r"ValueError: no luck with \x00 in attempt 3"
    assert where.startswith("Traceback")
    assert "handle_task" in where


def test_outages_cost_no_attempt(dsn: str, conn: Connection, tasks: Tasks) -> None:
    kinds = [errors.RetryTransaction("x", sqlstate="40001"), OSError("away"), None]

    class Worker(TaskWorker):
        queues = "work"
        outages = (OSError,)

        def handle_task(self, task: Task) -> None:
            seen.append(task.attempts)
            error = kinds[len(seen) - 1]
            if error is not None:
                raise error

    seen: list[int] = []
    tasks.push("work", 1)
    with running(Worker(dsn)):
        eventually(conn, "select count(*) = 0 from pgq_task.tasks")
    assert seen == [1, 1, 1]


@pytest.mark.parametrize("way", ["handle_task", "process_task"])
@pytest.mark.parametrize("error_queue", [None, "dead"])
def test_log_and_hook_say_what_became_of_a_task_that_failed(
    dsn: str,
    conn: Connection,
    tasks: Tasks,
    error_queue: str | None,
    way: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[tuple[int, Any, list[str], str]] = []

    def fail(*_: Any) -> None:
        raise ValueError("no luck")

    def hear(worker: object, task: Task, error: Exception, delay: Any) -> None:
        # Its result is committed.
        [(queue, *_)] = left(conn)
        heard.append((task.attempts, delay, getattr(error, "__notes__", []), queue))

    tasks.set_config("work", "max_attempts", 2)
    if error_queue is not None:
        tasks.set_config("work", "error_queue", error_queue)
    queue = error_queue or "work.failed"
    task_id = tasks.push("work", 1)
    worker = type("Failing", (TaskWorker,), {way: fail, "on_task_failed": hear})
    # Its own policy would go on for ever.
    worker(dsn, "work", retry_policy=FixedDelay(0, attempts=None)).run(until_empty=True)
    end = f"goes to the error queue {queue} (max_attempts = 2) after attempt 2"
    said = f"task {task_id} of queue work {end}"
    assert heard == [(1, timedelta(), [], "work"), (2, None, [said], queue)]
    logged = [
        record.getMessage()
        for record in caplog.records
        if record.name == "pgqpy" and record.levelno >= logging.WARNING
    ]
    assert logged == [
        f"task {task_id} of queue work failed in attempt 1, again at once: ValueError: no luck",
        f"{said}: ValueError: no luck",
    ]


@pytest.mark.parametrize("raised", [True, False])
def test_a_task_that_is_given_up_is_told_of_however_that_is_said(
    dsn: str, conn: Connection, tasks: Tasks, raised: bool, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[tuple[str, Any]] = []

    class GivingUp(TaskWorker):
        def handle_task(self, task: Task) -> DeadLetter:
            if raised:
                raise DeadLetter("hopeless")
            return DeadLetter("hopeless")

        def on_task_failed(self, task: Task, error: Exception, delay: Any) -> None:
            heard.append((str(error), delay))

    tasks.push("work", 1)
    GivingUp(dsn, "work").run(until_empty=True)
    assert heard == [("hopeless", None)]
    assert "goes to the error queue work.failed after attempt 1: hopeless" in caplog.text


@pytest.mark.parametrize("listen", [True, False])
def test_a_worker_serves_queues_by_pattern_and_takes_up_new_ones(
    dsn: str, conn: Connection, tasks: Tasks, listen: bool
) -> None:
    done: list[tuple[str, Any]] = []
    worker = TaskWorker(
        dsn, "ten_nt.*", lambda task: done.append((task.queue, task.payload)), listen=listen
    )
    worker.run(until_empty=True)
    with running(worker):
        for name in ("ten_nt.a", "ten_nt.a.failed", "tenant.b"):
            tasks.create_queue(name)
            tasks.push(name, 1)
        wait_until(lambda: done)
        # One more beside it, and one that goes.
        tasks.create_queue("ten_nt.c")
        tasks.push("ten_nt.c", 2)
        wait_until(lambda: len(done) > 1)
        tasks.drop_queue("ten_nt.a", force=True)
        tasks.push("ten_nt.c", 3)
        wait_until(lambda: len(done) > 2)
    assert done == [("ten_nt.a", 1), ("ten_nt.c", 2), ("ten_nt.c", 3)]
    run_until_empty(TaskWorker(dsn, "*", lambda task: done.append((task.queue, task.payload))))
    assert done[3:] == [("tenant.b", 1)]


def test_a_task_that_was_lost_meanwhile_is_not_told_to_have_failed(
    dsn: str, conn: Connection, tasks: Tasks, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    class Robbed(TaskWorker):
        def handle_task(self, task: Task) -> None:
            conn.execute(STEAL, [task.id])
            raise ValueError("no luck")

        def on_task_failed(self, task: Task, error: Exception, delay: Any) -> None:
            heard.append("failed")

        def on_task_lost(self, task: Task) -> None:
            heard.append("lost")

    tasks.push("work", 1)
    Robbed(dsn, "work").run(until_empty=True)
    assert heard == ["lost"]
    assert "attempt 1 had failed: ValueError: no luck" in caplog.text


@pytest.mark.parametrize("way", ["handle_task", "process_task", "process_batch"])
def test_a_conflict_about_what_a_handler_wanted_to_modify_costs_no_attempt(
    dsn: str, conn: Connection, tasks: Tasks, way: str
) -> None:
    seen: list[int] = []
    tasks.create_queue("other")
    other = tasks.push("other", "x")

    def modify(worker: TaskWorker, *args: Any) -> None:
        task = args[-1][0] if way == "process_batch" else args[-1]
        seen.append(task.attempts)
        [found] = tasks.list("other")
        if len(seen) < 3:
            # Another session is quicker.
            tasks.modify(changes=[{"id": other, "version": found.version}])
        client = Tasks(args[0] if len(args) > 1 else conn)
        if way != "process_batch":
            client.modify(depends=[found])
        client.modify(deletes=[found])

    tasks.push("work", 1)
    worker = type("Modifying", (TaskWorker,), {way: modify, "queues": "work"})
    with running(worker(dsn, retry_policy=FixedDelay(0, attempts=1))):
        eventually(conn, "select count(*) = 0 from pgq_task.tasks")
    assert seen == [1, 1, 1]


def test_a_lasting_conflict_is_a_failure(dsn: str, conn: Connection, tasks: Tasks) -> None:
    tasks.push("work", "first", unique_key="k", delay=3600)
    tasks.push("work", 1)

    def insert(task: Task) -> None:
        tasks.modify(inserts=[{"queue": "work", "unique_key": "k"}])

    TaskWorker(dsn, "work", insert, retry_policy=FixedDelay(0, attempts=1)).run(until_empty=True)
    assert ("work.failed", "available", 0, 1) in left(conn)


def test_a_queue_that_is_named_is_looked_at_first(
    dsn: str, conn: Connection, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And then all of them, which asks for notifications again, whatever the first look found."""
    asked: list[tuple[list[str], bool]] = []
    ask = Exchange.ask
    stolen: list[Task] = []

    async def look(self: Exchange, conn: Any, completions: Any, room: int, **how: Any) -> Any:
        if how["named"] and not stolen:
            stolen.extend(tasks.claim("other"))
        found = await ask(self, conn, completions, room, **how)
        if room:
            asked.append((how["named"], how["arm"]))
        return found

    waits = threading.Event()
    wait = Notifier.wait

    async def rest(self: Notifier, *how: Any) -> None:
        waits.set()
        await wait(self, *how)

    monkeypatch.setattr(Exchange, "ask", look)
    monkeypatch.setattr(Notifier, "wait", rest)
    # Without a notification it does not look.
    monkeypatch.setattr(claimer, "_FIRST_LOOK", PATIENCE * 2)
    for queue in ("some", "other"):
        tasks.create_queue(queue)
    handled: list[int] = []
    worker = TaskWorker(
        dsn,
        ["work", "some", "other"],
        lambda task: handled.append(task.id),
        poll_interval=PATIENCE * 2,
    )
    with running(worker):
        for turn in range(2):
            assert waits.wait(PATIENCE)
            waits.clear()
            asked.clear()
            pushed = tasks.push("other", turn)
            assert waits.wait(PATIENCE)
            assert (asked[0], asked[-1]) == ((["other"], False), ([], True))
            waits.set()
    assert len(stolen) == 1
    assert handled == [pushed]


def test_a_worker_is_notified_of_the_first_task_of_a_tenant(dsn: str, tasks: Tasks) -> None:
    done: list[tuple[str, Any]] = []
    tasks.set_config("work", "keep_tenants", "1 day")
    worker = TaskWorker(
        dsn, "work", lambda task: done.append((task.queue, task.payload)), poll_interval=60
    )
    with running(worker):
        tasks.push("work", 0)
        wait_until(lambda: done)
        tasks.push("work/acme", 1)
        wait_until(lambda: len(done) > 1)
    assert done == [("work", 0), ("work/acme", 1)]
