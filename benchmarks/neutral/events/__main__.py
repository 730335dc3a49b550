"""The adapter of events: a consumer that makes the ticks as well."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from benchmarks.neutral._adapter import DSN, NAME, WORKERS, Adapter
from pgqpy import AsyncConnection, AsyncConsumer, AsyncProducer, Event


class EventQueue(Adapter):
    system = "pgqpy-events"
    tables = ("pgq.event_1_0", "pgq.event_1_1", "pgq.event_1_2")
    depth_query = b"select sum(pending_events) from pgq.get_consumer_info('bench', 'worker')"

    def create(self, conn: psycopg.Connection[Any]) -> None:
        conn.execute("select pgq.create_queue(%s)", [NAME])
        conn.execute("select pgq.register_consumer(%s, 'worker')", [NAME])

    async def push(self, conn: AsyncConnection, items: list[dict[str, Any]]) -> None:
        await AsyncProducer(NAME).insert_events(conn, [("job", item) for item in items])

    async def work(self) -> None:
        async def handle(conn: AsyncConnection, event: Event) -> None:
            await self.handle(event.json())

        consumer = AsyncConsumer(
            DSN, queue=NAME, consumer="worker", handler=handle, concurrency=WORKERS
        )
        await consumer.run(ticker="auto")


if __name__ == "__main__":
    asyncio.run(EventQueue().run())
