"""What each adapter does: produce, measure, and print metrics, as its harness demands."""

from __future__ import annotations

import asyncio
import json
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import psycopg

from pgqpy import AsyncConnection, __version__, async_connect, connect
from pgqpy.errors import PgqError
from pgqpy.schema import migrate

NAME = "bench"
DSN = os.environ.get("DATABASE_URL", "")
INSTANCE = int(os.environ.get("BENCH_INSTANCE_ID", "0"))
WORKERS = int(os.environ.get("WORKER_COUNT", "32"))
EVERY = int(os.environ.get("SAMPLE_EVERY_S", "5"))
RATE = int(os.environ.get("PRODUCER_RATE", "800"))
BATCH = int(os.environ.get("PRODUCER_BATCH_MAX", "128"))
PADDING = "x" * max(int(os.environ.get("JOB_PAYLOAD_BYTES", "256")) - 96, 0)
WORK = float(os.environ.get("JOB_WORK_MS", "1")) / 1000
TO_DEPTH = os.environ.get("PRODUCER_MODE", "fixed") == "depth-target"
DEPTH = int(os.environ.get("TARGET_DEPTH", "1000"))
WINDOW = 30


class Adapter(ABC):
    """A queue, its producer, and its worker, in one process."""

    system: str
    tables: tuple[str, ...]
    depth_query: bytes

    def __init__(self) -> None:
        self.produced = self.done = 0
        self.depth = 0
        self.times: dict[str, deque[tuple[float, float]]] = {
            kind: deque(maxlen=2**15) for kind in ("producer", "subscriber", "end_to_end")
        }

    @abstractmethod
    def create(self, conn: psycopg.Connection[Any]) -> None:
        """Create the queue, if it does not exist."""

    @abstractmethod
    async def push(self, conn: AsyncConnection, items: list[dict[str, Any]]) -> None: ...

    @abstractmethod
    async def work(self) -> None:
        """Handle items until SIGTERM."""

    async def handle(self, item: dict[str, Any]) -> None:
        self.note("subscriber", time.time() - item["created"])
        await asyncio.sleep(WORK)
        self.note("end_to_end", time.time() - item["created"])
        self.done += 1
        self.depth -= 1

    def note(self, kind: str, seconds: float, times: int = 1) -> None:
        self.times[kind].extend([(time.monotonic(), 1000 * seconds)] * times)

    async def produce(self, conn: AsyncConnection) -> None:
        async for count in self.due():
            items = [
                {"seq": self.produced + n, "created": time.time(), "padding": PADDING}
                for n in range(count)
            ]
            began = time.monotonic()
            await self.push(conn, items)
            self.note("producer", (time.monotonic() - began) / count, count)
            self.produced += count
            self.depth += count

    async def due(self) -> Any:
        """Yield how many items to push now."""
        while TO_DEPTH:
            if (count := min(BATCH, DEPTH - self.depth)) > 0:
                yield count
            await asyncio.sleep(0 if count == BATCH else 0.005)
        # On time, as its other adapters in Python do: its tokens come for 25 ms at once.
        began, yielded = time.monotonic(), 0
        while True:
            count = min(int((time.monotonic() - began) * RATE) - yielded, BATCH)
            if count > 0:
                yielded += count
                yield count
            await asyncio.sleep(max(began + (yielded + 1) / RATE - time.monotonic(), 0))

    async def watch(self, conn: AsyncConnection) -> None:
        while True:
            row = await (await conn.execute(self.depth_query)).fetchone()
            assert row is not None
            self.depth = int(row[0])
            await asyncio.sleep(0.5)

    async def for_ever(self, work: Any) -> None:
        """Work on a connection, and on another one when the server is back."""
        while True:
            with suppress(psycopg.OperationalError, PgqError):
                async with await async_connect(DSN, autocommit=True) as conn:
                    await work(conn)
            await asyncio.sleep(0.2)

    async def report(self) -> None:
        before = 0, 0
        while True:
            await asyncio.sleep(EVERY - time.time() % EVERY)
            oldest = time.monotonic() - WINDOW
            for kind, times in self.times.items():
                found = sorted(took for then, took in times if then >= oldest) or [0.0]
                for percent in (50, 95, 99):
                    value = found[len(found) * percent // 100]
                    for name in (kind, "claim")[: 1 + (kind == "subscriber")]:
                        self.sample(f"{name}_p{percent}_ms", value, WINDOW)
            self.sample("enqueue_rate", (self.produced - before[0]) / EVERY, EVERY)
            self.sample("completion_rate", (self.done - before[1]) / EVERY, EVERY)
            before = self.produced, self.done
            if INSTANCE == 0:
                self.sample("queue_depth", self.depth, 0)

    def sample(self, metric: str, value: float, window: int) -> None:
        subject = {"kind": "adapter", "subject_kind": "adapter", "subject": ""}
        self.print(**subject, t=now(), metric=metric, value=value, window_s=window)

    def print(self, **values: object) -> None:
        print(json.dumps({"system": self.system, "instance_id": INSTANCE, **values}), flush=True)

    async def run(self) -> None:
        """Run until SIGTERM, which the worker heeds."""
        migrate(DSN)
        with connect(DSN, autocommit=True) as conn:
            self.create(conn)
        self.print(
            kind="descriptor",
            event_tables=self.tables,
            extensions=[],
            version=__version__,
            db_name=DSN.rpartition("/")[2],
            started_at=now(),
        )
        jobs = [self.for_ever(self.produce), self.for_ever(self.watch), self.report()]
        beside = asyncio.gather(*jobs)
        await self.work()
        beside.cancel()
        with suppress(asyncio.CancelledError):
            await beside


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
