"""The asyncio client keeps the promises of the sync one, which is made from it.

What is tested here is what the generator cannot carry over: iteration, waiting, cancellation.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

import pgqpy
from pgqpy import (
    Admin,
    AsyncAdmin,
    AsyncBatch,
    AsyncConsumer,
    AsyncProducer,
    Event,
    async_connect,
    errors,
)
from tests.fixtures.fix_client import PATIENCE, Send, Tick
from tests.fixtures.fix_db import Connection
from tests.integration.consumer.test_consumer import COUNT, counts


class Counter(AsyncConsumer):
    consumer = "counter"
    backoff_first = 0.01
    poll_interval = 3600

    async def process_event(self, conn: pgqpy.AsyncConnection, event: Event) -> None:
        await conn.execute(COUNT, [event.data])


@pytest.fixture(autouse=True)
def seen(conn: Connection, queue: str) -> None:
    conn.execute("create table seen (data text primary key, n int not null)")
    Admin(conn).register_consumer(queue, "counter")


@pytest.mark.smoke
def test_events_are_produced_from_any_iterable_in_the_callers_transaction(
    dsn: str, conn: Connection, queue: str, tick: Tick
) -> None:
    async def events() -> AsyncIterator[tuple[str, str]]:
        for data in "cd":
            await asyncio.sleep(0)
            yield "type", data

    async def main() -> None:
        producer = AsyncProducer(queue)
        async with await async_connect(dsn) as caller:
            await producer.insert_event(caller, "type", "lost")
            await caller.rollback()
            await producer.insert_event(caller, "type", "a")
            assert await producer.insert_events(caller, [("type", "b")]) == 1
            assert await producer.insert_events(caller, events()) == 2
            assert len(await producer.insert_events_returning(caller, [("type", "e")])) == 1
        async with await async_connect(dsn) as caller:
            (info,) = await AsyncAdmin(caller).get_queue_info(queue)
            assert info.queue_name == queue
            with pytest.raises(errors.QueueNotFound):
                await AsyncProducer("missing").insert_event(caller, "type")
        tick()
        await Counter(dsn, queue=queue).run(until_empty=True)

    asyncio.run(main())
    assert counts(conn) == dict.fromkeys("abcde", 1)


def test_a_signal_stops_after_the_batch_and_handlers_are_restored(
    dsn: str, conn: Connection, queue: str, send: Send
) -> None:
    class Signalled(Counter):
        async def process_event(self, conn: pgqpy.AsyncConnection, event: Event) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0)
            await super().process_event(conn, event)

    send("a")
    before = signal.getsignal(signal.SIGTERM)
    asyncio.run(asyncio.wait_for(Signalled(dsn, queue=queue).run(), PATIENCE))
    assert signal.getsignal(signal.SIGTERM) is before
    assert counts(conn) == {"a": 1}


def test_a_signal_stops_all_consumers_of_the_loop(dsn: str, queue: str) -> None:
    """Even if the first one started is the first to end."""
    names = ["first", "second", "third"]
    consumers = [Counter(dsn, queue=queue, consumer=name) for name in names]

    async def main() -> None:
        runs = []
        for consumer in consumers:
            await consumer.register()
            runs.append(asyncio.create_task(consumer.run()))
            # It runs until it waits for the database, and has its handlers by then.
            await asyncio.sleep(0)
        consumers[0].stop()
        await runs[0]
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.gather(*runs)

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        asyncio.run(asyncio.wait_for(main(), PATIENCE))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_cancelled_consumer_rolls_back_and_the_batch_comes_again(
    dsn: str, conn: Connection, queue: str, send: Send
) -> None:
    async def main() -> None:
        halfway = asyncio.Event()

        class Slow(Counter):
            async def process_event(self, conn: pgqpy.AsyncConnection, event: Event) -> None:
                await super().process_event(conn, event)
                halfway.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(Slow(dsn, queue=queue).run())
        await asyncio.wait_for(halfway.wait(), PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert counts(conn) == {}
        await Counter(dsn, queue=queue).run(until_empty=True)

    send("ab")
    asyncio.run(main())
    assert counts(conn) == {"a": 1, "b": 1}


def test_a_batch_that_is_left_early_can_be_read_again(
    dsn: str, conn: Connection, queue: str, send: Send
) -> None:
    count = 5000
    read: list[int] = []

    class Impatient(Counter):
        async def process_batch(self, conn: pgqpy.AsyncConnection, batch: AsyncBatch) -> None:
            async for _ in batch:
                break
            read.append(len([event async for event in batch]))

    send("x" * 2000 for _ in range(count))
    asyncio.run(Impatient(dsn, queue=queue).run(until_empty=True))
    assert read == [count]
