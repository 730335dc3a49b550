"""What runs beside a measurement: processes, threads, and transactions that stay open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from typing import Any, TypeAlias

from benchmarks._servers import Connection, connect

SPAWN = get_context("spawn")

Samples: TypeAlias = list[tuple[float, float]]
"""Values with their times, in seconds since 1970."""
SAMPLE = 0.25
"""Seconds between two samples."""

WRITES = "select txid_current()"
READS = "set transaction isolation level repeatable read; select 1"


@contextmanager
def processes(
    work: Callable[..., None], calls: Iterable[tuple[Any, ...]]
) -> Iterator[tuple[list[int], list[Pipe]]]:
    """Run ``work(pipe, *call)`` in a process for each call; gives process ids, and pipes to them.

    The block begins when each has sent something, and they are terminated at its end.
    """
    started, pipes = [], []
    for call in calls:
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=work, args=(theirs, *call), daemon=True)
        process.start()
        started.append(process)
        pipes.append(ours)
    try:
        for pipe in pipes:
            pipe.recv()
        yield [process.pid or 0 for process in started], pipes
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.join(10)


@contextmanager
def thread(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run ``work`` in a thread; it must return when the event is set, at the end of the block."""
    done = threading.Event()
    running = threading.Thread(target=work, args=(done,))
    running.start()
    try:
        yield
    finally:
        done.set()
        running.join()


@contextmanager
def sampling(dsn: str, sample: Callable[[Connection], float]) -> Iterator[Samples]:
    """Take samples during the block."""
    samples: Samples = []

    def work(done: threading.Event) -> None:
        with connect(dsn) as conn:
            while not done.wait(SAMPLE):
                samples.append((time.time(), sample(conn)))

    with thread(work):
        yield samples


@contextmanager
def held_open(dsn: str, *statements: str) -> Iterator[None]:
    """Hold transactions open that have executed a statement each."""
    with ExitStack() as stack:
        for statement in statements:
            conn = stack.enter_context(connect(dsn))
            conn.execute("begin")
            conn.execute(statement.encode())
        yield
