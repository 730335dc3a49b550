"""Workers of task queues: what they claim, renew, and may lose."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import pgqpy
from pgqpy import FixedDelay
from pgqpy._runtime.acompat import AsyncInterruptible
from pgqpy._runtime.io import AsyncIo
from pgqpy.tasks import AsyncTaskWorker, Task, Tasks, TaskWorker
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._worker import exchange
from pgqpy.tasks._worker.completer import Completer
from pgqpy.tasks._worker.leases import Leases
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import PATIENCE, wait_until
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_task_worker import (
    STEAL,
    Batches,
    Noting,
    aside,
    effects,
    left,
    run_until_empty,
)
from tests.fixtures.fix_ticker import eventually


def wait_for_renewals(conn: Connection, task: Task) -> None:
    """Keep the thread busy until the task was renewed three times, so past its lease."""
    renewed = "select version >= %s from pgq_task.task where id = %s"
    wait_until(lambda: ops.value(conn, renewed, task.version + 3, task.id))


@pytest.mark.smoke
@pytest.mark.parametrize("kind", [TaskWorker, AsyncTaskWorker])
def test_leases_are_renewed_while_a_handler_keeps_its_thread(
    dsn: str, conn: Connection, tasks: Tasks, kind: Any
) -> None:
    ends: list[timedelta] = []

    def handle(task: Task) -> None:
        wait_for_renewals(conn, task)
        ends.append(ops.value(conn, "select lease from pgq_task.task") - task.lease)

    tasks.push("work", 1)
    run_until_empty(kind(dsn, "work", handle if kind is TaskWorker else aside(handle), lease=1))
    # Each renewal comes at about half of a lease, for another one.
    assert ends[0] > timedelta(seconds=1)
    assert left(conn) == []


def test_a_transaction_that_has_locked_its_task_is_not_in_the_way_of_its_renewal(
    dsn: str, conn: Connection, tasks: Tasks
) -> None:
    class Locking(TaskWorker):
        queues = "work"
        lease = 1
        concurrency = 2

        def process_task(self, conn: pgqpy.Connection, task: Task) -> None:
            conn.execute("insert into effect (data) values ('x')")
            if task.payload == "lock":
                conn.execute("select from pgq_task.task where id = %s for update", [task.id])
                renewed.wait(PATIENCE)
            else:
                wait_for_renewals(globals_conn, task)
                renewed.set()

    globals_conn = conn
    renewed = threading.Event()
    tasks.push("work", "other")
    tasks.push("work", "lock")
    Locking(dsn).run(until_empty=True)
    assert left(conn) == []
    assert effects(conn) == ["x", "x"]


def test_a_task_that_is_stuck_ends_at_the_time_limit_of_its_queue(
    dsn: str, conn: Connection, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker renews its lease in vain, and works on."""
    # After the second claim a slow worker's own sweep could find that lease over before it begins.
    monkeypatch.setattr(exchange, "_SWEEP", 3600.0)
    tasks.set_config("work", "time_limit", "0.4 s")
    tasks.set_config("work", "max_attempts", 2)
    attempts: list[int] = []
    ended: list[str] = []

    async def handle(task: Task) -> None:
        attempts.append(task.attempts)
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.append("cancelled")

    tasks.push("work", 1)
    run_until_empty(AsyncTaskWorker(dsn, "work", handle, lease=0.3))
    assert (attempts, ended) == ([1, 2], ["cancelled"] * 2)


def test_a_task_is_taken_over_from_a_lost_worker_and_the_log_says_so(
    dsn: str, conn: Connection, tasks: Tasks, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = tasks.push("work", 1)
    conn.execute("select pgq_task.claim('{work}', 'killed', '1 ms')")
    with caplog.at_level(logging.INFO):
        run_until_empty(TaskWorker(dsn, "work", lambda task: None))
    said = f"task {task_id} of queue work is taken over, in attempt 2: the worker was lost"
    (record,) = (each for each in caplog.records if each.getMessage() == said)
    assert (record.levelname, record.__dict__["task_id"]) == ("INFO", task_id)
    assert (record.__dict__["queue"], record.__dict__["attempt"]) == ("work", 2)


def test_a_batch_goes_on_without_a_lost_task(dsn: str, conn: Connection, tasks: Tasks) -> None:
    class Robbed(Batches):
        def process_batch(self, conn: pgqpy.Connection, tasks: list[Task]) -> list[Any] | None:
            for task in tasks:
                if task.payload == "theirs":
                    thief.execute(STEAL, [task.id])
            return super().process_batch(conn, tasks)

    thief = conn
    tasks.push_many("work", ["a", "b", "theirs", "c", "d", "e", "f"])
    Robbed(dsn).run(until_empty=True)
    assert sorted(effects(conn)) == ["a", "b", "c", "d", "e", "f"]
    assert left(conn) == [("work", "claimed", 1, "theirs")]


def test_a_coroutine_is_cancelled_with_its_task(dsn: str, conn: Connection, tasks: Tasks) -> None:
    heard: list[str] = []

    class Robbed(AsyncTaskWorker):
        queues = "work"
        lease = 1

        async def handle_task(self, task: Task) -> None:
            if task.payload == "quick":
                heard.append("quick")
                return
            conn.execute(STEAL, [task.id])
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                heard.append(f"cancelled, has it: {self.has(task)}")
                raise

        def on_task_lost(self, task: Task) -> None:
            heard.append("lost")

    tasks.push("work", "slow", priority=1)
    tasks.push("work", "quick")
    asyncio.run(Robbed(dsn).run(until_empty=True))
    assert heard == ["lost", "cancelled, has it: False", "quick"]
    assert left(conn) == [("work", "claimed", 1, "slow")]


@pytest.mark.parametrize("way", ["handle_task", "process_task"])
def test_a_task_that_is_lost_just_before_its_coroutine_begins_is_cancelled_too(
    dsn: str, conn: Connection, tasks: Tasks, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    heard: list[str] = []

    class Late(AsyncInterruptible):
        def __enter__(self) -> AsyncInterruptible:
            assert worker._loop is not None
            (claim,) = worker._loop.leases.claims().values()
            conn.execute(STEAL, [claim.task.id])
            # The thread of the renewals has the processor.
            worker._loop._completer.lost(claim)
            return super().__enter__()

    async def work(*_: Any) -> None:
        await asyncio.sleep(PATIENCE)
        heard.append("it went on")

    monkeypatch.setattr(AsyncIo, "interruptible", Late)
    tasks.push("work", 1)
    worker: Any = type("Robbed", (AsyncTaskWorker,), {way: work})(dsn, "work")
    run_until_empty(worker)
    assert heard == []
    assert left(conn) == [("work", "claimed", 1, 1)]


def test_a_handler_that_cancels_itself_has_failed(dsn: str, conn: Connection, tasks: Tasks) -> None:
    async def handle(task: Task) -> None:
        inner = asyncio.create_task(asyncio.sleep(PATIENCE))
        inner.cancel()
        await inner

    tasks.push("work", 1)
    asyncio.run(
        AsyncTaskWorker(dsn, "work", handle, retry_policy=FixedDelay(3600)).run(until_empty=True)
    )
    assert left(conn) == [("work", "scheduled", 1, 1)]


def test_what_has_not_begun_by_half_of_its_lease_is_given_back(
    dsn: str, conn: Connection, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More are claimed at once, however long they take.
    monkeypatch.setattr("pgqpy.tasks._worker.claimer._QUICK", 1e9)
    waiting: list[int] = []

    def handle(task: Task) -> None:
        claimed = conn.execute(
            "select array_agg(id) from pgq_task.tasks where status = 'claimed' and id <> %s",
            [task.id],
        ).fetchall()[0][0]
        if not waiting and len(claimed or ()) > 3:
            waiting.extend(claimed)
            eventually(
                conn,
                "select count(*) = %s from pgq_task.tasks"
                " where id = any(%s) and status = 'available' and attempts = 0",
                len(claimed),
                claimed,
            )

    tasks.push_many("work", range(500))
    TaskWorker(dsn, "work", handle, lease=2).run(until_empty=True)
    assert waiting
    assert left(conn) == []


def test_slow_tasks_are_claimed_one_by_one(dsn: str, conn: Connection, tasks: Tasks) -> None:
    claimed: list[int] = []

    def handle(task: Task) -> None:
        ((count,),) = conn.execute(
            "select count(*) from pgq_task.tasks where status = 'claimed'"
        ).fetchall()
        claimed.append(count)
        time.sleep(0.1)

    tasks.push_many("work", range(6))
    TaskWorker(dsn, "work", handle).run(until_empty=True)
    assert max(claimed) <= 2


@pytest.fixture
def open_gate(conn: Connection, connect: Connect) -> Callable[[], None]:
    """Renewals wait, in their transactions, until the function is called."""
    conn.execute(
        """
        create function gate() returns trigger language plpgsql as
            'begin perform pg_advisory_xact_lock_shared(1); return new; end';
        create trigger gate before update on pgq_task.task for each row
            when (old.claimant = new.claimant and old.version < new.version)
            execute function gate();
        """
    )
    gate = connect()
    gate.execute("select pg_advisory_lock(1)")
    return gate.close


def renewal_waits(conn: Connection) -> None:
    eventually(
        conn, "select count(*) > 0 from pg_locks where locktype = 'advisory' and not granted"
    )


@pytest.mark.parametrize("answer", ["late", "lost", "lost, and again"])
def test_a_task_whose_renewal_has_no_answer_when_it_ends_is_finished(
    dsn: str, conn: Connection, tasks: Tasks, open_gate: Callable[[], None], answer: str
) -> None:
    opening = threading.Timer(0.3, open_gate)

    class Worker(Noting, TaskWorker):
        def handle_task(self, task: Task) -> None:
            renewal_waits(conn)
            if answer == "late":
                opening.start()
                return
            assert self._loop is not None
            renewing = self._loop.leases._heartbeat._conn
            assert renewing is not None
            with socket.fromfd(renewing.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as its:
                its.shutdown(socket.SHUT_RDWR)
            open_gate()
            # The server commits, but the worker gets no answer.
            eventually(conn, "select version > %s from pgq_task.task", task.version)
            if "again" in answer:
                wait_for_renewals(conn, task)

    tasks.push("work", 1)
    worker = Worker(dsn, "work", lease=1)
    worker.run(until_empty=True)
    opening.cancel()
    assert worker.lost == []
    assert left(conn) == []


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_task_whose_renewal_is_answered_just_now_is_finished(
    dsn: str,
    conn: Connection,
    tasks: Tasks,
    monkeypatch: pytest.MonkeyPatch,
    in_transaction: bool,
) -> None:
    """On the server it has a version that the worker is about to learn."""
    renewed, ending = threading.Event(), threading.Event()
    ask, prepare = Leases._ask, Completer.prepare

    def late(leases: Leases, its: Connection, statement: bytes, *arguments: Any) -> Any:
        rows = ask(leases, its, statement, *arguments)
        if statement is sql.RENEW:
            renewed.set()
            assert ending.wait(PATIENCE)
            # For one that does not wait for the answer.
            time.sleep(0.2)
        return rows

    def noted(completer: Completer, *arguments: Any) -> Any:
        if renewed.is_set():
            ending.set()
        return prepare(completer, *arguments)

    class Worker(Noting, TaskWorker):
        def handle_task(self, task: Task) -> None:
            assert renewed.wait(PATIENCE)

    class Transactional(Noting, TaskWorker):
        def process_task(self, conn: pgqpy.Connection, task: Task) -> None:
            conn.execute("insert into effect (data) values ('x')")
            assert renewed.wait(PATIENCE)

    monkeypatch.setattr(Leases, "_ask", late)
    monkeypatch.setattr(Completer, "prepare", noted)
    tasks.push("work", 1)
    worker = (Transactional if in_transaction else Worker)(dsn, "work", lease=1)
    worker.run(until_empty=True)
    assert worker.lost == []
    assert left(conn) == []
