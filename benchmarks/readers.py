"""Consumers in processes of their own, which note the arrival and the age of events."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from multiprocessing.connection import Connection as Pipe
from typing import Any, Literal, TypeAlias

import psutil

import pgqpy
from benchmarks import _beside
from benchmarks._beside import SPAWN
from benchmarks._servers import connect

Position: TypeAlias = tuple[str, str]
"""A queue and a consumer of it."""

Kind: TypeAlias = Literal["watch", "tally", "poll"]
"""The kind of a reader with its own process: `Watch`, `Tally`, or `poll` for any PgQ."""

PAUSE = 0.1
"""Seconds between two polls."""


@dataclass(slots=True)
class Record:
    """The deliveries. All times are in seconds since 1970, which servers use too."""

    arrived: array[float] = field(default_factory=lambda: array("d"))
    ages: array[float] = field(default_factory=lambda: array("d"))
    """By event: the age since the start of the transaction that inserted it."""
    finished: array[float] = field(default_factory=lambda: array("d"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    """By batch: the time of its commit, and its number of events."""

    def take(self, inserted: datetime) -> None:
        now = time.time()
        self.arrived.append(now)
        self.ages.append(now - inserted.timestamp())

    def finish(self, events: int) -> None:
        self.finished.append(time.time())
        self.sizes.append(events)

    def ages_between(self, begin: float, end: float) -> list[float]:
        """The ages of the events that were inserted in this time."""
        return [
            age
            for arrived, age in zip(self.arrived, self.ages, strict=True)
            if begin <= arrived - age < end
        ]

    def batches_between(self, begin: float, end: float) -> int:
        """The number of batches with events."""
        return sum(
            begin <= moment < end and size > 0
            for moment, size in zip(self.finished, self.sizes, strict=True)
        )


class Watch(pgqpy.Consumer):
    """Notes each event."""

    def __init__(self, dsn: str, position: Position, record: Record, total: Any) -> None:
        super().__init__(dsn, queue=position[0], consumer=position[1])
        self.record = record
        self.total = total

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        self.record.take(event.time)

    def on_batch(self, stats: pgqpy.BatchStats) -> None:
        self.record.finish(stats.events)
        self.total.value += stats.events


class Tally(Watch):
    """Notes only how many events there were."""

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        pass


class AsyncWatch(pgqpy.AsyncConsumer):
    """Notes each event, and shares its process with others."""

    def __init__(self, dsn: str, position: Position, record: Record, total: Any) -> None:
        super().__init__(dsn, queue=position[0], consumer=position[1])
        self.record = record
        self.total = total

    async def process_event(self, conn: pgqpy.AsyncConnection, event: pgqpy.Event) -> None:
        self.record.take(event.time)

    async def on_batch(self, stats: pgqpy.BatchStats) -> None:
        self.record.finish(stats.events)
        self.total.value += stats.events


class Starting(pgqpy.Consumer):
    """Tells its pipe when it is connected, and begins when that answers."""

    pipe: Pipe
    begun = False

    def wants_batch(self, conn: pgqpy.Connection) -> bool:
        if not self.begun:
            self.begun = True
            self.pipe.send(None)
            self.pipe.recv()
        return True


@dataclass(slots=True)
class Readers:
    """Running consumers."""

    processes: list[psutil.Process]
    pipes: list[Pipe]
    total: Any
    records: list[Record] = field(default_factory=list)
    """The records by process, once they have stopped."""

    @property
    def events(self) -> int:
        """The number of processed events."""
        return int(self.total.value)

    def stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        self.records = [pipe.recv() for pipe in self.pipes]


@contextmanager
def readers(
    dsn: str, positions: Sequence[Position], *, processes: int = 1, kind: Kind = "watch"
) -> Iterator[Readers]:
    """Run consumers, spread over ``processes`` processes; they are at work when the block begins.

    One with its own process is a `pgqpy.Consumer`, others are `pgqpy.AsyncConsumer`.
    They stop at the end of the block, if not before.
    """
    total = SPAWN.Value("q", 0)
    calls = [(dsn, positions[number::processes], kind, total) for number in range(processes)]
    with _beside.processes(_run, calls) as (pids, pipes):
        group = Readers([psutil.Process(pid) for pid in pids], pipes, total)
        yield group
        if not group.records:
            group.stop()


def _run(pipe: Pipe, dsn: str, positions: Sequence[Position], kind: Kind, total: Any) -> None:
    """Consume until SIGTERM, then send the record."""
    record = Record()
    if len(positions) > 1:
        asyncio.run(_run_together(dsn, positions, record, pipe, total))
    elif kind == "poll":
        poll(dsn, positions[0], record, pipe, total)
    else:
        consumer = (Watch if kind == "watch" else Tally)(dsn, positions[0], record, total)
        consumer.register()
        pipe.send(None)
        consumer.run()
    pipe.send(record)


def poll(dsn: str, position: Position, record: Record, pipe: Pipe, total: Any) -> None:
    """Consume like PgQ's consumers: poll, and poll again after a pause if there is nothing."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with connect(dsn) as conn:
        conn.execute("select pgq.register_consumer(%s, %s)", position)
        pipe.send(None)
        while not stop.is_set():
            [(batch,)] = conn.execute("select pgq.next_batch(%s, %s)", position).fetchall()
            if batch is None:
                stop.wait(PAUSE)
                continue
            with conn.transaction():
                events = conn.execute("select * from pgq.get_batch_events(%s)", [batch]).fetchall()
                for event in events:
                    record.take(event[1])
                conn.execute("select pgq.finish_batch(%s)", [batch])
            record.finish(len(events))
            total.value += len(events)


async def _run_together(
    dsn: str, positions: Sequence[Position], record: Record, pipe: Pipe, total: Any
) -> None:
    consumers = [AsyncWatch(dsn, position, record, total) for position in positions]
    for consumer in consumers:
        await consumer.register()

    def stop() -> None:
        for consumer in consumers:
            consumer.stop()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    pipe.send(None)
    await asyncio.gather(*(consumer.run(handle_signals=False) for consumer in consumers))
