"""Programs in processes of their own, which note the arrival and the age of what they handle."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from typing import Any, TypeAlias

import psutil

import pgqpy
from benchmarks import _beside
from benchmarks._beside import SPAWN
from benchmarks._servers import connect

Position: TypeAlias = tuple[str, str]
"""A queue and a consumer of it."""

READER = "select pgq.register_consumer('q', 'reader')"
PAUSE = 0.1
"""Seconds between two polls."""


@dataclass(slots=True)
class Record:
    """The deliveries. All times are in seconds since 1970, which servers use too."""

    total: Any
    """The number of events of all processes, shared by them."""
    arrived: array[float] = field(default_factory=lambda: array("d"))
    ages: array[float] = field(default_factory=lambda: array("d"))
    """By event: the age since the start of the transaction that inserted it."""
    finished: array[float] = field(default_factory=lambda: array("d"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    """By batch: the time of its commit, and its number of events."""

    def take(self, since: float) -> None:
        now = time.time()
        self.arrived.append(now)
        self.ages.append(now - since)

    def finish(self, events: int) -> None:
        self.finished.append(time.time())
        self.sizes.append(events)
        self.total.value += events

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


Work: TypeAlias = Callable[[str, Sequence[Position], Record], None]
"""Handles what there is in a database for positions, until SIGTERM."""


class Watch(pgqpy.Consumer):
    """Notes each event."""

    def __init__(self, dsn: str, position: Position, record: Record) -> None:
        super().__init__(dsn, queue=position[0], consumer=position[1])
        self.record = record

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        self.record.take(event.time.timestamp())

    def on_batch(self, stats: pgqpy.BatchStats) -> None:
        self.record.finish(stats.events)


class Tally(Watch):
    """Notes only how many events there were."""

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        pass


class AsyncWatch(pgqpy.AsyncConsumer):
    """Notes each event, and shares its process with others."""

    def __init__(self, dsn: str, position: Position, record: Record) -> None:
        super().__init__(dsn, queue=position[0], consumer=position[1])
        self.record = record

    async def process_event(self, conn: pgqpy.AsyncConnection, event: pgqpy.Event) -> None:
        self.record.take(event.time.timestamp())

    async def on_batch(self, stats: pgqpy.BatchStats) -> None:
        self.record.finish(stats.events)


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
    """Running programs."""

    processes: list[psutil.Process]
    pipes: list[Pipe]
    total: Any
    records: list[Record] = field(default_factory=list)
    """The records by process, once they have stopped."""

    @property
    def events(self) -> int:
        """The number of processed events."""
        return int(self.total.value)

    def ages_between(self, begin: float, end: float) -> list[float]:
        """The ages of the events that were inserted in this time."""
        return [age for record in self.records for age in record.ages_between(begin, end)]

    def stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        self.records = [pipe.recv() for pipe in self.pipes]


def watch(dsn: str, positions: Sequence[Position], record: Record) -> None:
    """Run a `pgqpy.Consumer`."""
    Watch(dsn, positions[0], record).run()


def tally(dsn: str, positions: Sequence[Position], record: Record) -> None:
    Tally(dsn, positions[0], record).run()


def watch_together(dsn: str, positions: Sequence[Position], record: Record) -> None:
    """Run a `pgqpy.AsyncConsumer` for each position."""

    async def run() -> None:
        consumers = [AsyncWatch(dsn, position, record) for position in positions]

        def stop() -> None:
            for consumer in consumers:
                consumer.stop()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        await asyncio.gather(*(consumer.run(handle_signals=False) for consumer in consumers))

    asyncio.run(run())


def poll(dsn: str, positions: Sequence[Position], record: Record) -> None:
    """Consume like PgQ's consumers: poll, and poll again after a pause if there is nothing."""
    [position] = positions
    stop = stopped()
    with connect(dsn) as conn:
        while not stop.is_set():
            [(batch,)] = conn.execute("select pgq.next_batch(%s, %s)", position).fetchall()
            if batch is None:
                stop.wait(PAUSE)
                continue
            with conn.transaction():
                events = conn.execute("select * from pgq.get_batch_events(%s)", [batch]).fetchall()
                for event in events:
                    record.take(event[1].timestamp())
                conn.execute("select pgq.finish_batch(%s)", [batch])
            record.finish(len(events))


def stopped() -> threading.Event:
    """What SIGTERM sets from now on."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return stop


@contextmanager
def readers(
    dsn: str, positions: Sequence[Position], *, processes: int = 1, work: Work = watch
) -> Iterator[Readers]:
    """Run ``work`` for registered consumers, spread over processes.

    These have started when the block begins, and stop at its end, if not before.
    """
    total = SPAWN.Value("q", 0)
    calls = [(work, dsn, positions[number::processes], total) for number in range(processes)]
    with _beside.processes(_run, calls) as (pids, pipes):
        group = Readers([psutil.Process(pid) for pid in pids], pipes, total)
        yield group
        if not group.records:
            group.stop()


def _run(pipe: Pipe, work: Work, dsn: str, positions: Sequence[Position], total: Any) -> None:
    """Work until SIGTERM, then send the record."""
    record = Record(total)
    pipe.send(None)
    work(dsn, positions, record)
    record.total = None  # it is shared by inheritance only
    pipe.send(record)
