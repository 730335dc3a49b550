"""PgQueuer with asyncpg, by its performance guide, with the batch size of its example."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job

from benchmarks.programs import protocol

BATCH_SIZE = 1 if protocol.SINGLY else 25


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[AsyncpgDriver]:
    conn = await asyncpg.connect(dsn)
    try:
        yield AsyncpgDriver(conn)
    finally:
        await conn.close()


async def install(dsn: str) -> None:
    async with connected(dsn) as driver:
        queries = Queries(driver)
        await queries.install()
        await queries.optimize_autovacuum()


async def send(dsn: str, payloads: Iterator[str]) -> None:
    async with connected(dsn) as driver:
        queries = Queries(driver)
        for payload in payloads:
            await queries.enqueue("item", payload.encode())


async def bulk(dsn: str, payloads: Iterator[str]) -> None:
    async with connected(dsn) as driver:
        items: list[bytes | None] = [payload.encode() for payload in payloads]
        await Queries(driver).enqueue(["item"] * len(items), items, [0] * len(items))


async def work(dsn: str, log: protocol.Log) -> None:
    async with connected(dsn) as driver:
        worker = PgQueuer(driver)

        @worker.entrypoint("item")
        async def item(job: Job) -> None:
            assert job.payload is not None
            log.take(job.payload.decode())
            if log.complete:
                worker.shutdown.set()

        log.ready()
        await worker.run(batch_size=BATCH_SIZE)


if __name__ == "__main__":
    protocol.main(install, send, bulk, work)
