"""Workers of task queues: what they claim, renew, and may lose."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

import pgqpy
from pgqpy import FixedDelay
from pgqpy.tasks import AsyncTaskWorker, Task, Tasks, TaskStats, TaskWorker
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_task_worker import STEAL, Batches, Writer, effects, left
from tests.fixtures.fix_ticker import eventually


def versions(conn: Connection) -> Callable[[Task], int]:
    def version(task: Task) -> int:
        ((found,),) = conn.execute(
            "select version from pgq_task.task where id = %s", [task.id]
        ).fetchall()
        return int(found)

    return version


def wait_for_renewals(conn: Connection, task: Task) -> None:
    """Keep the thread busy until the task was renewed three times, so past its lease."""
    end = time.monotonic() + PATIENCE
    while versions(conn)(task) < task.version + 3:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.smoke
def test_leases_are_renewed_while_a_handler_keeps_its_thread(
    dsn: str, conn: Connection, tasks: Tasks
) -> None:
    ends: list[tuple[Any, Any]] = []

    def handle(task: Task) -> None:
        wait_for_renewals(conn, task)
        ((end,),) = conn.execute("select lease from pgq_task.task").fetchall()
        ends.append((task.lease, end))

    tasks.push("work", 1)
    TaskWorker(dsn, "work", handle, lease=1).run(until_empty=True)
    # Each renewal comes at about half of a lease, for another one.
    ((first, last),) = ends
    assert last - first > timedelta(seconds=1)
    assert left(conn) == []


def test_leases_are_renewed_while_a_handler_keeps_the_event_loop(
    dsn: str, conn: Connection, tasks: Tasks
) -> None:
    async def handle(task: Task) -> None:
        wait_for_renewals(conn, task)

    tasks.push("work", 1)
    asyncio.run(AsyncTaskWorker(dsn, "work", handle, lease=1).run(until_empty=True))
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


def test_a_worker_that_lost_a_task_cannot_commit(dsn: str, conn: Connection, tasks: Tasks) -> None:
    lost: list[Any] = []
    stats: list[TaskStats] = []

    class Robbed(Writer):
        def process_task(self, conn: pgqpy.Connection, task: Task) -> None:
            super().process_task(conn, task)
            thief.execute(STEAL, [task.id])

        def on_task_lost(self, task: Task) -> None:
            lost.append(task.payload)

        def on_completed(self, settled: TaskStats) -> None:
            stats.append(settled)

    thief = conn
    tasks.push("work", {"data": "x"})
    Robbed(dsn).run(until_empty=True)
    assert effects(conn) == []
    assert left(conn) == [("work", "claimed", 1, {"data": "x"})]
    assert lost == [{"data": "x"}]
    assert stats == []


def test_a_batch_that_lost_a_task_has_the_effects_of_the_others(
    dsn: str, conn: Connection, tasks: Tasks
) -> None:
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


def test_a_handler_of_asyncio_is_cancelled_when_its_task_is_lost(
    dsn: str, conn: Connection, tasks: Tasks
) -> None:
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


def test_tasks_are_claimed_one_by_one_while_they_take_long(
    dsn: str, conn: Connection, tasks: Tasks
) -> None:
    claimed: list[int] = []

    def handle(task: Task) -> None:
        ((count,),) = conn.execute(
            "select count(*) from pgq_task.tasks where status = 'claimed'"
        ).fetchall()
        claimed.append(count)
        time.sleep(0.2)

    tasks.push_many("work", range(6))
    TaskWorker(dsn, "work", handle).run(until_empty=True)
    assert max(claimed) <= 2


@contextmanager
def renewals_blocked(conn: Connection, connect: Connect) -> Iterator[Callable[[], None]]:
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

    def open_gate() -> None:
        gate.execute("select pg_advisory_unlock(1)")

    yield open_gate


def renewal_waits(conn: Connection) -> None:
    eventually(
        conn, "select count(*) > 0 from pg_locks where locktype = 'advisory' and not granted"
    )


def test_a_task_that_ends_during_its_renewal_is_finished(
    dsn: str, conn: Connection, connect: Connect, tasks: Tasks
) -> None:
    lost: list[Task] = []

    class Worker(TaskWorker):
        queues = "work"
        lease = 1

        def handle_task(self, task: Task) -> None:
            renewal_waits(conn)
            opening.start()

        def on_task_lost(self, task: Task) -> None:
            lost.append(task)

    tasks.push("work", 1)
    with renewals_blocked(conn, connect) as open_gate:
        opening = threading.Timer(0.3, open_gate)
        Worker(dsn).run(until_empty=True)
        opening.join()
    assert lost == []
    assert left(conn) == []


@pytest.mark.parametrize("again", [True, False])
def test_a_renewal_whose_answer_was_lost_does_not_cost_the_task(
    dsn: str, conn: Connection, connect: Connect, tasks: Tasks, again: bool
) -> None:
    lost: list[Task] = []

    class Worker(TaskWorker):
        queues = "work"
        lease = 1

        def handle_task(self, task: Task) -> None:
            renewal_waits(conn)
            assert self._loop is not None
            renewing = self._loop.leases._heartbeat._conn
            assert renewing is not None
            with socket.fromfd(renewing.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as its:
                its.shutdown(socket.SHUT_RDWR)
            open_gate()
            # The server commits, but the worker gets no answer.
            eventually(conn, "select version > %s from pgq_task.task", task.version)
            if again:
                wait_for_renewals(conn, task)

        def on_task_lost(self, task: Task) -> None:
            lost.append(task)

    tasks.push("work", 1)
    with renewals_blocked(conn, connect) as open_gate:
        Worker(dsn).run(until_empty=True)
    assert lost == []
    assert left(conn) == []
