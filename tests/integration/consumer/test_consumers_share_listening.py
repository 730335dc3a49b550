"""Consumers of one event loop hear of ticks on one connection, each of its own queue's."""

# ruff: noqa: ASYNC110 - nothing signals when sessions come and go
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import pgqpy
from pgqpy import Admin, Producer
from pgqpy._runtime.acompat import AsyncWaker
from pgqpy._runtime.io import AsyncIo
from pgqpy._runtime.listener import Listener, Subscription
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import eventually

IO = AsyncIo()
QUEUES = ["one", "two", "three"]


class Hearing(pgqpy.AsyncConsumer):
    """Knows of events by hearing only: it would poll after hours."""

    consumer = "hearing"
    poll_interval = 3600

    def __init__(self, dsn: str, queue: str) -> None:
        super().__init__(dsn, queue=queue)
        self.seen: asyncio.Queue[str | None] = asyncio.Queue()

    async def process_event(self, conn: pgqpy.AsyncConnection, event: pgqpy.Event) -> None:
        self.seen.put_nowait(event.data)


@pytest.fixture(autouse=True)
def queues(conn: Connection) -> None:
    for queue in QUEUES:
        Admin(conn).create_queue(queue)
        Admin(conn).register_consumer(queue, "hearing")


def send(conn: Connection, queue: str, data: str) -> None:
    """An event, and the tick that is to be heard."""
    Producer(queue).insert_event(conn, "type", data)
    Admin(conn).force_tick(queue)
    Admin(conn).ticker(queue)


def sessions(conn: Connection) -> list[int]:
    """The sessions that listen."""
    query = (
        "select pid from pg_stat_activity"
        " where datname = current_database() and application_name = 'pgqpy listen'"
    )
    return [pid for (pid,) in conn.execute(query)]


async def listening(dsn: str, queues: int) -> None:
    """Wait until consumers of this many queues listen."""
    async with asyncio.timeout(PATIENCE):
        while len(IO.shared(Listener, dsn)._channels) != queues:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(dsn: str, conn: Connection) -> AsyncIterator[list[Hearing]]:
    """A consumer of each queue; they wait, and have nothing to ask for any more."""
    consumers = [Hearing(dsn, queue) for queue in QUEUES]
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for consumer in consumers:
            group.create_task(consumer.run(handle_signals=False))
        await listening(dsn, len(QUEUES))
        # The question that follows the first LISTEN may find the first event.
        for data in "ab":
            await all_hear(conn, consumers, data)
        yield consumers
        for consumer in consumers:
            consumer.stop()


async def all_hear(conn: Connection, consumers: list[Hearing], data: str) -> None:
    for consumer in consumers:
        send(conn, consumer.queue, data)
    for consumer in consumers:
        assert await consumer.seen.get() == data


def test_one_session_listens_for_all_and_is_replaced_for_all(dsn: str, conn: Connection) -> None:
    async def main() -> None:
        async with running(dsn, conn) as consumers:
            await all_hear(conn, consumers, "c")
            [before] = sessions(conn)
            conn.execute("select pg_terminate_backend(%s, 10000)", [before])
            async with asyncio.timeout(PATIENCE):
                while not sessions(conn):
                    await asyncio.sleep(0.01)
            await listening(dsn, len(QUEUES))
            for data in "de":
                await all_hear(conn, consumers, data)
            [after] = sessions(conn)
            # A consumer that stops leaves the others listening.
            consumers.pop().stop()
            await listening(dsn, len(QUEUES) - 1)
            await all_hear(conn, consumers, "f")
            assert sessions(conn) == [after]

    asyncio.run(main())


@asynccontextmanager
async def subscribed(dsn: str, *queues: str) -> AsyncIterator[list[Subscription]]:
    subscriptions = [Subscription(IO, dsn, queue) for queue in queues]
    async with asyncio.timeout(PATIENCE):
        for subscription in subscriptions:
            # It gives up connecting after three seconds, and may be asked again.
            while not await subscription.open():
                await asyncio.sleep(0.01)
    yield subscriptions
    for subscription in subscriptions:
        await subscription.close()


def test_a_tick_wakes_only_consumers_of_that_queue(dsn: str, conn: Connection) -> None:
    async def main() -> None:
        async with subscribed(dsn, "one", "one", "two") as (first, second, other):
            waiting = asyncio.create_task(other.wait(AsyncWaker(), 3600))
            send(conn, "one", "a")
            async with asyncio.timeout(PATIENCE):
                for subscription in (first, second):
                    await subscription.wait(AsyncWaker(), 3600)
            assert first.newest == second.newest > 0 == other.newest
            assert not waiting.done()
            send(conn, "two", "a")
            await asyncio.wait_for(waiting, PATIENCE)

    asyncio.run(main())


def test_a_tick_that_was_made_up_hides_none(dsn: str, conn: Connection) -> None:
    """Any role may notify."""

    async def main() -> None:
        async with subscribed(dsn, "one") as (subscription,):
            conn.execute("select pg_notify(pgq.tick_channel('one'), %s)", ["9" * 19])
            async with asyncio.timeout(PATIENCE):
                await subscription.wait(AsyncWaker(), 3600)
                subscription.ask()
                send(conn, "one", "a")
                await subscription.wait(AsyncWaker(), 3600)

    asyncio.run(main())


async def nothing_to_wait_for(subscription: Subscription) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await subscription.wait(AsyncWaker(), 3600)


def test_a_tick_heard_while_asking_ends_the_next_wait_unless_the_batch_came_so_far(
    dsn: str, conn: Connection
) -> None:
    async def main() -> None:
        async with subscribed(dsn, "one", "two") as (heard, witness):
            heard.ask()
            send(conn, "one", "a")
            send(conn, "two", "a")
            async with asyncio.timeout(PATIENCE):
                await witness.wait(AsyncWaker(), 3600)
                await heard.wait(AsyncWaker(), 3600)
            heard.ask()
            await nothing_to_wait_for(heard)
            assert not witness.up_to_date(witness.newest - 1)
            assert witness.up_to_date(witness.newest)
            await nothing_to_wait_for(witness)

    asyncio.run(main())


def test_the_last_one_closes_the_connection(dsn: str, conn: Connection) -> None:
    async def main() -> None:
        async with subscribed(dsn, "one", "two") as subscriptions:
            for subscription in subscriptions:
                assert len(sessions(conn)) == 1
                await subscription.close()
                assert not subscription.works
            async with asyncio.timeout(PATIENCE):
                while sessions(conn):
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_one_that_is_cancelled_while_it_begins_to_listen_leaves_no_connection(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled(*_: object) -> str:
        raise asyncio.CancelledError

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await Subscription(IO, dsn, "one").open()
        assert IO.shared(Listener, dsn)._conn is None

    monkeypatch.setattr(Listener, "_listen", cancelled)
    asyncio.run(main())


def test_loops_do_not_share(dsn: str, conn: Connection) -> None:
    async def main() -> int:
        async with subscribed(dsn, "one", "two"):
            return len(sessions(conn))

    for _ in range(2):
        assert asyncio.run(main()) == 1
        # The server may take a moment to end a session that was closed.
        eventually(
            conn,
            "select count(*) = 0 from pg_stat_activity"
            " where datname = current_database() and application_name = 'pgqpy listen'",
        )


def test_consumers_poll_if_they_cannot_listen(dsn: str) -> None:
    async def main() -> None:
        subscriptions = [Subscription(IO, "host=localhost port=1", queue) for queue in QUEUES]
        for subscription in subscriptions:
            assert not await subscription.open()
            assert not subscription.works
            await asyncio.wait_for(subscription.wait(AsyncWaker(), 0.01), PATIENCE)

    asyncio.run(main())
