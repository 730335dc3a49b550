"""What runs beside a measurement: processes, threads, and transactions that stay open."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from benchmarks._servers import Connection, connect
from pgqpy.embedded import Server

SPAWN = get_context("spawn")

Samples: TypeAlias = list[tuple[float, float]]
"""Values with their times, in seconds since 1970."""
SAMPLE = 0.25
"""Seconds between two samples."""

WRITES = "select txid_current()"
READS = "set transaction isolation level repeatable read; select 1"

PYTHON = (sys.executable, "-m")

PGQD = """
[pgqd]
base_connstr = host={socket_dir} port=5432 user=postgres
initial_database = postgres
database_list = {database}
syslog = 0
"""
OTHERS = """
select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
"""


@contextmanager
def daemon(*command: str, config: str | None = None, ready: str = "") -> Iterator[psutil.Process]:
    """Run a program, with a file of its configuration as the last argument.

    It has logged ``ready`` when the block begins, and must not end before the block does.
    """
    with tempfile.TemporaryDirectory() as directory:
        log, file = Path(directory, "log"), Path(directory, "config")
        if config is not None:
            file.write_text(config)
            command = *command, str(file)

        def check() -> None:
            if process.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} has ended: {log.read_text()}")

        with log.open("w") as output, subprocess.Popen(command, stderr=output) as process:
            try:
                while ready not in log.read_text():
                    check()
                    time.sleep(0.05)
                yield psutil.Process(process.pid)
                check()
            finally:
                process.terminate()


def ticker(dsn: str, **settings: float) -> AbstractContextManager[psutil.Process]:
    """Run the ticker; it leads when the block begins. ``settings`` are those of a database."""
    lines = "".join(f"{key} = {float(value)}\n" for key, value in settings.items())
    command = *PYTHON, "pgqpy_ticker", "--dsn", dsn, "--config"
    return daemon(*command, config=f"[defaults]\n{lines}", ready="message=leading")


@contextmanager
def pgqd(server: Server, dsn: str) -> Iterator[psutil.Process]:
    """Run pgqd; it is connected when the block begins."""
    with connect(dsn) as conn:
        config = PGQD.format(socket_dir=server.socket_dir, database=conn.info.dbname)
        with daemon("pgqd", "-q", config=config) as process:
            while not conn.execute(OTHERS).fetchone():
                time.sleep(0.05)
            yield process


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
