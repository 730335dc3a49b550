"""procrastinate; its documentation shows workers with a concurrency of 30."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress

from procrastinate import App, PsycopgConnector
from procrastinate.types import JSONDict

from benchmarks.programs import protocol

# It warns of an application in the main module, which only matters for tasks shared by several.
logging.getLogger("procrastinate").setLevel(logging.ERROR)


def application(dsn: str) -> App:
    return App(connector=PsycopgConnector(conninfo=dsn))


async def install(dsn: str) -> None:
    async with application(dsn).open_async() as app:
        await app.schema_manager.apply_schema_async()


async def send(dsn: str, payloads: Iterator[str]) -> None:
    async with application(dsn).open_async() as app:
        item = app.configure_task("item")
        for payload in payloads:
            await item.defer_async(sent=payload)


async def bulk(dsn: str, payloads: Iterator[str]) -> None:
    async with application(dsn).open_async() as app:
        items: list[JSONDict] = [{"sent": payload} for payload in payloads]
        await app.configure_task("item").batch_defer_async(*items)


async def work(dsn: str, log: protocol.Log) -> None:
    app = application(dsn)
    done = asyncio.Event()

    @app.task(name="item")
    async def item(sent: str) -> None:
        log.take(sent)
        if log.complete:
            done.set()

    async with app.open_async():
        concurrency = 1 if protocol.SINGLY else 30
        worker = asyncio.create_task(app.run_worker_async(concurrency=concurrency))
        log.ready()
        await done.wait()
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker


if __name__ == "__main__":
    protocol.main(install, send, bulk, work)
