"""The scheduler: what happens to jobs that fail, and when their work is over."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from io import StringIO

import psycopg
import pytest

from pgqpy_ticker import Database, logs
from pgqpy_ticker.jobs import Job, cancel, repeat
from pgqpy_ticker.metrics import page
from pgqpy_ticker.served import Operation, Served


def nothing() -> None:
    pass


class Counting(Job):
    """A job that notes what is done with it, and does something else at its third run."""

    name = "counting"

    def __init__(self, third: Callable[[], None]) -> None:
        super().__init__(Served(Database(name="shop", dsn="")))
        self.runs = 0
        self.closed = 0
        self.many = asyncio.Event()
        self.noticed: Callable[[], None] = nothing
        self._third = third

    async def run(self) -> float:
        self.runs += 1
        if self.runs == 3:
            self._third()
        if self.runs == 4:
            self.noticed()
        if self.runs == 5:
            self.many.set()
        return 0.0

    async def close(self) -> None:
        self.closed += 1


def bug() -> None:
    raise ZeroDivisionError("by nought")


def lost() -> None:
    raise psycopg.OperationalError("the connection is lost")


Log = Callable[[], list[dict[str, object]]]


@pytest.fixture
def log() -> Iterator[Log]:
    logger = logging.getLogger(logs.LOGGER)
    before = logger.handlers[:], logger.level, logger.propagate
    stream = StringIO()
    logs.setup("info", "json", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.handlers[:], logger.level, logger.propagate = before


async def worked(job: Counting) -> None:
    """Let it run five times in the background, and end it."""
    task = asyncio.create_task(repeat(job))
    await job.many.wait()
    await cancel(task)
    runs = job.runs
    await asyncio.sleep(0)
    assert job.runs == runs


def test_a_job_is_repeated_and_closed_at_the_end() -> None:
    job = Counting(nothing)
    asyncio.run(worked(job))
    assert job.runs >= 5
    assert job.closed == 1


@pytest.mark.parametrize(
    ("failure", "level", "says"),
    [
        (lost, "warning", "counting failed: the connection is lost"),
        (bug, "error", "counting failed"),
    ],
)
def test_a_sturdy_job_survives_its_failure_counts_it_and_starts_afresh(
    log: Log, failure: Callable[[], None], level: str, says: str
) -> None:
    job = Counting(failure)
    failing = job.served
    seen: list[Operation] = []
    job.noticed = lambda: seen.extend(failing.failing)
    asyncio.run(worked(job))
    assert job.closed == 2
    first = log()[0]
    assert (first["level"], first["message"], first["job"]) == (level, says, "counting")
    # While it fails others are told; it is tried again, and they are told.
    assert seen == [("counting", None)]
    assert failing.failing == {}
    shown = page([failing])
    assert 'pgqpy_ticker_errors_total{database="shop",job="counting"} 1.0' in shown
    assert 'pgqpy_ticker_failing{database="shop",job="counting"} 0.0' in shown
