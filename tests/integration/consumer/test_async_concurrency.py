"""AsyncConsumer with several events at once keeps the promises that it makes with one."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest

import pgqpy
from pgqpy import (
    Admin,
    AsyncBatch,
    AsyncConsumer,
    BatchStats,
    Consumer,
    Event,
    FixedDelay,
    Producer,
    RetryPolicy,
)
from tests.fixtures.fix_client import PATIENCE, Tick
from tests.fixtures.fix_db import Connection


class Several(AsyncConsumer):
    """Writes each event's data down; those that begin with "bad" fail then."""

    consumer = "several"
    concurrency = 5
    retry_policy: RetryPolicy | None = FixedDelay(0, attempts=1)
    listen = False
    backoff_first = 0.01

    def __init__(self, dsn: str, queue: str) -> None:
        super().__init__(dsn, queue=queue)
        self.calls: list[str] = []
        self.running = 0
        self.most_running = 0
        self.stats: list[BatchStats] = []

    async def process_event(self, conn: pgqpy.AsyncConnection, event: Event) -> None:
        assert event.data is not None
        self.calls.append(event.data)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.work(conn, event.data)
        finally:
            self.running -= 1

    async def work(self, conn: pgqpy.AsyncConnection, data: str) -> None:
        await asyncio.sleep(0)
        await write(conn, data)
        if data.startswith("bad"):
            raise ValueError(data)

    async def on_batch(self, stats: BatchStats) -> None:
        self.stats.append(stats)


async def write(conn: pgqpy.AsyncConnection, data: str) -> None:
    await conn.execute("insert into seen values (%s)", [data])


@pytest.fixture(autouse=True)
def seen(conn: Connection, queue: str) -> None:
    conn.execute("create table seen (data text not null)")
    Admin(conn).register_consumer(queue, "several")


def insert(conn: Connection, queue: str, tick: Tick, *data: str) -> None:
    Producer(queue).insert_events(conn, [("t", each) for each in data])
    tick()


def written(conn: Connection) -> list[str]:
    return sorted(data for (data,) in conn.execute("select data from seen"))


def dead(conn: Connection) -> list[str]:
    return sorted(data for (data,) in conn.execute("select ev_data from pgq.dead_letter"))


def run(consumer: AsyncConsumer) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            await consumer.run(until_empty=True)

    asyncio.run(main())


def test_as_many_events_as_are_allowed_are_under_way_and_no_more(
    dsn: str, conn: Connection, queue: str, tick: Tick
) -> None:
    class Meeting(Several):
        async def work(self, conn: pgqpy.AsyncConnection, data: str) -> None:
            await barrier.wait()
            await write(conn, data)

    barrier = asyncio.Barrier(5)
    data = [f"{n:03}" for n in range(500)]
    insert(conn, queue, tick, *data)
    consumer = Meeting(dsn, queue)
    run(consumer)
    assert consumer.most_running == 5
    assert consumer.calls == data
    assert written(conn) == data
    assert [stats.events for stats in consumer.stats] == [500]


def test_bad_events_are_dead_letters_and_the_others_take_effect_once(
    dsn: str, conn: Connection, queue: str, tick: Tick
) -> None:
    data = [f"{'bad' if n % 7 == 3 else 'good'} {n:03}" for n in range(200)]
    insert(conn, queue, tick, *data)
    consumer = Several(dsn, queue)
    run(consumer)
    assert written(conn) == [each for each in sorted(data) if each.startswith("good")]
    assert dead(conn) == [each for each in sorted(data) if each.startswith("bad")]
    assert consumer.most_running == 5
    assert len(consumer.calls) <= 2 * len(data)


def test_bad_events_that_have_written_nothing_make_no_event_run_twice(
    dsn: str, conn: Connection, queue: str, tick: Tick
) -> None:
    class Late(Several):
        async def work(self, conn: pgqpy.AsyncConnection, data: str) -> None:
            await asyncio.sleep(0)
            if data.startswith("bad"):
                raise ValueError(data)
            await write(conn, data)

    data = [f"{'bad' if n % 7 == 3 else 'good'} {n:03}" for n in range(200)]
    insert(conn, queue, tick, *data)
    consumer = Late(dsn, queue)
    run(consumer)
    assert consumer.calls == data
    assert written(conn) == [each for each in sorted(data) if each.startswith("good")]


def test_savepoints_of_events_at_once_do_not_get_into_each_other(
    dsn: str, conn: Connection, queue: str, tick: Tick
) -> None:
    """A handler rolls back its own writes, whatever others have written meanwhile."""

    class Saving(Several):
        async def work(self, conn: pgqpy.AsyncConnection, data: str) -> None:
            await write(conn, f"{data} before")
            with suppress(ZeroDivisionError):
                async with conn.transaction():
                    await asyncio.sleep(0.001)
                    await write(conn, f"{data} undone")
                    await asyncio.sleep(0.001)
                    raise ZeroDivisionError
            async with conn.transaction():
                await asyncio.gather(write(conn, f"{data} one"), write(conn, f"{data} two"))

    data = [f"{n:02}" for n in range(50)]
    insert(conn, queue, tick, *data)
    run(Saving(dsn, queue))
    assert written(conn) == sorted(f"{d} {what}" for d in data for what in ("before", "one", "two"))


def test_a_failed_statement_that_was_ignored_is_the_fault_of_its_event(
    dsn: str, conn: Connection, queue: str, tick: Tick
) -> None:
    class Careless(Several):
        async def work(self, conn: pgqpy.AsyncConnection, data: str) -> None:
            await write(conn, data)
            if data.startswith("bad"):
                with suppress(psycopg.Error):
                    await conn.execute("select 1 / 0")

    data = [*(f"{n:02}" for n in range(20)), "bad", *(f"{n:02}" for n in range(20, 40))]
    insert(conn, queue, tick, *data)
    run(Careless(dsn, queue))
    assert dead(conn) == ["bad"]
    assert written(conn) == sorted(set(data) - {"bad"})


def test_a_failed_or_cancelled_handler_leaves_no_event_running_and_nothing_written(
    dsn: str, conn: Connection, queue: str, tick: Tick
) -> None:
    class Strict(Several):
        retry_policy = None
        cancelled = 0

        async def work(self, conn: pgqpy.AsyncConnection, data: str) -> None:
            await write(conn, data)
            if data == "bad":
                raise ValueError(data)
            if not waiting.is_set():
                waiting.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self.cancelled += 1
                    raise

    insert(conn, queue, tick, "a", "b", "c", "bad", "d")
    consumer = Strict(dsn, queue)
    waiting = asyncio.Event()

    async def main() -> None:
        task = asyncio.create_task(consumer.run_once())
        await waiting.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert consumer.running == 0
        assert consumer.cancelled == 1
        with pytest.raises(ValueError, match="bad"):
            await consumer.run_once()
        assert consumer.running == 0

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert written(conn) == []
    assert dead(conn) == []


def test_an_event_that_is_cancelled_from_within_has_failed_and_is_not_lost(
    dsn: str, conn: Connection, queue: str, tick: Tick
) -> None:
    class Cancelled(Several):
        async def work(self, conn: pgqpy.AsyncConnection, data: str) -> None:
            if data == "bad":
                raise asyncio.CancelledError
            await write(conn, data)

    insert(conn, queue, tick, "a", "bad", "b")
    run(Cancelled(dsn, queue))
    assert written(conn) == ["a", "b"]
    assert dead(conn) == ["bad"]


def test_stop_lets_the_batch_end_and_cancelling_rolls_it_back(
    dsn: str, conn: Connection, queue: str, tick: Tick
) -> None:
    async def main() -> None:
        entered = asyncio.Event()
        leave = asyncio.Event()

        class Slow(Several):
            async def work(self, conn: pgqpy.AsyncConnection, data: str) -> None:
                entered.set()
                await leave.wait()
                await write(conn, data)

        consumer = Slow(dsn, queue)
        task = asyncio.create_task(consumer.run())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert consumer.running == 0
        assert written(conn) == []

        entered.clear()
        task = asyncio.create_task(consumer.run())
        await entered.wait()
        consumer.stop()
        leave.set()
        await task

    data = [f"{n:02}" for n in range(20)]
    insert(conn, queue, tick, *data)
    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert written(conn) == data


def test_a_slow_event_does_not_make_the_others_wait_nor_pile_up(
    dsn: str, conn: Connection, queue: str, tick: Tick
) -> None:
    size, count = 10_000, 3_000

    class Slow(Several):
        async def work(self, conn: pgqpy.AsyncConnection, data: str) -> None:
            if len(self.calls) == 1:
                tracemalloc.start()
                await last.wait()
            elif len(self.calls) == count:
                self.most = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                last.set()

        async def process_event(self, conn: pgqpy.AsyncConnection, event: Event) -> None:
            self.calls.append("")
            await self.work(conn, "")

        most = 0

    last = asyncio.Event()
    Producer(queue).insert_events(conn, (("t", "x" * size) for _ in range(count)))
    tick()
    consumer = Slow(dsn, queue)
    run(consumer)
    assert 0 < consumer.most < size * count / 5


def test_what_is_written_around_the_events_is_in_the_transaction(
    dsn: str, conn: Connection, queue: str, tick: Tick
) -> None:
    class Around(Several):
        async def process_batch(self, conn: pgqpy.AsyncConnection, batch: AsyncBatch) -> None:
            await write(conn, "begin")
            await super().process_batch(conn, batch)
            await write(conn, "end")

    insert(conn, queue, tick, "a", "bad", "b")
    run(Around(dsn, queue))
    assert written(conn) == ["a", "b", "begin", "end"]


def test_retries_work_as_with_one_event_after_the_other(
    dsn: str, conn: Connection, queue: str, tick: Tick
) -> None:
    class Later(Several):
        async def process_event(self, conn: pgqpy.AsyncConnection, event: Event) -> None:
            await super().process_event(conn, event)
            if event.retry == 0:
                raise LookupError

        def retry_policy(self, attempt: int, error: Exception) -> timedelta:
            return timedelta(0)

    data = [f"{n:02}" for n in range(20)]
    insert(conn, queue, tick, *data)
    consumer = Later(dsn, queue)
    run(consumer)
    assert written(conn) == []
    while Admin(conn).maint_retry_events():
        pass
    tick()
    run(consumer)
    assert written(conn) == data


def test_a_concurrency_that_cannot_be_is_refused(dsn: str, queue: str) -> None:
    class Nothing(Several):
        concurrency = 0

    class Threads(Consumer):
        consumer = "several"
        concurrency = 2

        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            raise AssertionError

    with pytest.raises(ValueError, match="at least 1"):
        run(Nothing(dsn, queue))
    with pytest.raises(ValueError, match="AsyncConsumer"):
        Threads(dsn, queue=queue).run_once()
