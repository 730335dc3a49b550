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
    Event,
    FixedDelay,
    RetryPolicy,
)
from tests.fixtures.fix_client import PATIENCE, Send
from tests.fixtures.fix_db import Connection


class Several(AsyncConsumer):
    """Writes each event's data down; those that begin with "bad" fail then."""

    consumer = "several"
    concurrency = 5
    retry_policy: RetryPolicy | None = FixedDelay(0, attempts=1)
    listen = False
    backoff_first = 0.01
    around = False

    def __init__(self, dsn: str, queue: str) -> None:
        super().__init__(dsn, queue=queue)
        self.calls: list[str] = []
        self.running = 0
        self.most_running = 0
        self.stats: list[BatchStats] = []

    async def process_batch(self, conn: pgqpy.AsyncConnection, batch: AsyncBatch) -> None:
        if self.around:
            await write(conn, "begin")
        await super().process_batch(conn, batch)
        if self.around:
            await write(conn, "end")

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
    dsn: str, conn: Connection, queue: str, send: Send
) -> None:
    class Meeting(Several):
        async def work(self, conn: pgqpy.AsyncConnection, data: str) -> None:
            await barrier.wait()
            await write(conn, data)

    barrier = asyncio.Barrier(5)
    data = [f"{n:03}" for n in range(500)]
    send(data)
    consumer = Meeting(dsn, queue)
    run(consumer)
    assert consumer.most_running == 5
    assert consumer.calls == data
    assert written(conn) == data
    assert [stats.events for stats in consumer.stats] == [500]


class Late(Several):
    """Bad events have written nothing when they fail."""

    async def work(self, conn: pgqpy.AsyncConnection, data: str) -> None:
        await asyncio.sleep(0)
        if data.startswith("bad"):
            raise ValueError(data)
        await write(conn, data)


@pytest.mark.parametrize("kind", [Several, Late])
def test_bad_events_are_dead_letters_and_the_others_take_effect_once(
    dsn: str, conn: Connection, queue: str, send: Send, kind: type[Several]
) -> None:
    data = [f"{'bad' if n % 7 == 3 else 'good'} {n:03}" for n in range(200)]
    send(data)
    consumer = kind(dsn, queue)
    consumer.around = kind is Several
    run(consumer)
    around = {"begin", "end"} if consumer.around else set()
    assert written(conn) == sorted({each for each in data if each.startswith("good")} | around)
    assert dead(conn) == [each for each in sorted(data) if each.startswith("bad")]
    assert consumer.most_running == 5
    assert len(consumer.calls) <= 2 * len(data)
    if kind is Late:
        assert consumer.calls == data, "an event ran twice"


def test_savepoints_of_events_at_once_do_not_get_into_each_other(
    dsn: str, conn: Connection, queue: str, send: Send
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
    send(data)
    run(Saving(dsn, queue))
    assert written(conn) == sorted(f"{d} {what}" for d in data for what in ("before", "one", "two"))


def test_an_ignored_failed_statement_or_a_cancellation_from_within_is_the_events_fault(
    dsn: str, conn: Connection, queue: str, send: Send
) -> None:
    class Careless(Several):
        async def work(self, conn: pgqpy.AsyncConnection, data: str) -> None:
            await write(conn, data)
            if data.startswith("bad"):
                with suppress(psycopg.Error):
                    await conn.execute("select 1 / 0")
            if data == "cancelled":
                raise asyncio.CancelledError

    good = [f"{n:02}" for n in range(40)]
    send([*good[:20], "bad", *good[20:30], "cancelled", *good[30:]])
    run(Careless(dsn, queue))
    assert dead(conn) == ["bad", "cancelled"]
    assert written(conn) == good


def test_a_failed_or_cancelled_handler_leaves_no_event_running_and_nothing_written(
    dsn: str, conn: Connection, queue: str, send: Send
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

    send(["a", "b", "c", "bad", "d"])
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


def test_stop_lets_the_batch_end_and_cancelling_rolls_it_back(
    dsn: str, conn: Connection, queue: str, send: Send
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
    send(data)
    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert written(conn) == data


def test_a_slow_event_does_not_make_the_others_wait_nor_pile_up(
    dsn: str, conn: Connection, queue: str, send: Send
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
    send("x" * size for _ in range(count))
    consumer = Slow(dsn, queue)
    run(consumer)
    assert 0 < consumer.most < size * count / 5


def test_retries_work_as_with_one_event_after_the_other(
    dsn: str, conn: Connection, queue: str, send: Send
) -> None:
    class Later(Several):
        async def process_event(self, conn: pgqpy.AsyncConnection, event: Event) -> None:
            await super().process_event(conn, event)
            if event.retry == 0:
                raise LookupError

        def retry_policy(self, attempt: int, error: Exception) -> timedelta:
            return timedelta(0)

    data = [f"{n:02}" for n in range(20)]
    send(data)
    consumer = Later(dsn, queue)
    run(consumer)
    assert written(conn) == []
    while Admin(conn).maint_retry_events():
        pass
    send([])
    run(consumer)
    assert written(conn) == data
