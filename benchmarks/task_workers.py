"""Workers of a task queue in processes of their own, one claim and one finish at a time."""

from __future__ import annotations

import signal
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from typing import Any

from benchmarks._beside import SPAWN, processes
from benchmarks._servers import connect

CREATE_TASKS = "select pgq_task.create_queue('q')"
PAYLOAD = '{"id": 12345, "name": "some customer", "address": "a street of a town, number five"}'
PUSH = f"select pgq_task.push('q', '{PAYLOAD}');"
PUSH_MANY = """
select count(*) from pgq_task.push_many('q', array(select %s::jsonb from generate_series(1, %s)))
"""
CLAIM = "select id, version from pgq_task.claim('{q}', %s)"
FINISH = "select pgq_task.finish(%s, %s, %s)"
SWEEP = "select pgq_task.sweep()"

PAUSE = 0.002
SWEEP_EVERY = 0.1
"""Seconds that an idle worker waits, and between its sweeps."""


@dataclass(slots=True)
class Claims:
    """The claims of one worker that found a task: start, and duration in seconds."""

    began: array[float] = field(default_factory=lambda: array("d"))
    took: array[float] = field(default_factory=lambda: array("d"))

    def between(self, begin: float, end: float) -> list[float]:
        return [
            took for began, took in zip(self.began, self.took, strict=True) if begin <= began < end
        ]


@dataclass(slots=True)
class Workers:
    """The workers."""

    pipes: list[Pipe]
    done: Any
    claims: list[Claims] = field(default_factory=list)
    """The claims by worker, once they have stopped."""

    @property
    def tasks(self) -> int:
        """The number of finished tasks."""
        return sum(each.value for each in self.done)

    def stop(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        self.claims = [pipe.recv() for pipe in self.pipes]

    def between(self, begin: float, end: float) -> list[float]:
        """The durations of claims that began in this time."""
        return [took for claims in self.claims for took in claims.between(begin, end)]


@contextmanager
def workers(dsn: str, count: int) -> Iterator[Workers]:
    """Run workers; they are connected when the block begins, and stop at its end if not before."""
    done = [SPAWN.Value("q", 0, lock=False) for _ in range(count)]
    with processes(_work, [(dsn, own) for own in done]) as (_, pipes):
        group = Workers(pipes, done)
        yield group
        if not group.claims:
            group.stop()


def _work(pipe: Pipe, dsn: str, done: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    claims, name = Claims(), f"worker {threading.get_native_id()}"
    with connect(dsn) as conn:
        conn.prepare_threshold = 0
        pipe.send(None)
        swept = 0.0
        while not pipe.poll():
            began, clock = time.time(), time.perf_counter()
            task = conn.execute(CLAIM, [name]).fetchone()
            took = time.perf_counter() - clock
            if task is None or began - swept > 1:
                if began - swept > SWEEP_EVERY:
                    conn.execute(SWEEP)
                    swept = began
                if task is None:
                    time.sleep(PAUSE)
                    continue
            conn.execute(FINISH, [name, *task])
            claims.began.append(began)
            claims.took.append(took)
            done.value += 1
    pipe.send(claims)
