"""The scheduler: what happens to jobs that fail, and when their work is over."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from io import StringIO

import psycopg
import pytest

from pgqpy_ticker import logs
from pgqpy_ticker.failures import Failures, Operation
from pgqpy_ticker.jobs import Supervised, alongside, repeat
from pgqpy_ticker.metrics import Metrics


def nothing() -> None:
    pass


class Counting:
    """A job that notes what is done with it, and does something else at its third run."""

    name = "counting"

    def __init__(self, third: Callable[[], None]) -> None:
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


@pytest.fixture
def log() -> Iterator[Callable[[], list[dict[str, object]]]]:
    logger = logging.getLogger(logs.LOGGER)
    before = logger.handlers[:], logger.level, logger.propagate
    stream = StringIO()
    logs.setup("info", "json", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.handlers[:], logger.level, logger.propagate = before


def test_a_job_is_repeated_and_closed_at_the_end() -> None:
    async def scenario() -> Counting:
        job = Counting(nothing)
        async with alongside(job):
            await job.many.wait()
        return job

    job = asyncio.run(scenario())
    assert job.runs >= 5
    assert job.closed == 1


def test_what_a_job_raises_ends_it_unless_it_is_made_sturdy() -> None:
    async def scenario() -> None:
        job = Counting(bug)
        with pytest.raises(ZeroDivisionError):
            await repeat(job)
        assert (job.runs, job.closed) == (3, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("failure", "level", "says"),
    [
        (lost, "warning", "counting failed: the connection is lost"),
        (bug, "error", "counting failed"),
    ],
)
def test_a_sturdy_job_survives_its_failure_counts_it_and_starts_afresh(
    log: Callable[[], list[dict[str, object]]],
    failure: Callable[[], None],
    level: str,
    says: str,
) -> None:
    metrics = Metrics()
    failures = Failures("shop", metrics)
    seen: list[Operation] = []

    async def scenario() -> Counting:
        job = Counting(failure)
        job.noticed = lambda: seen.extend(failures.now)
        async with alongside(Supervised(job, "shop", failures)):
            await job.many.wait()
        return job

    job = asyncio.run(scenario())
    assert job.closed == 2
    first = log()[0]
    assert (first["level"], first["message"], first["job"]) == (level, says, "counting")
    # While it fails others are told; it is tried again, and they are told.
    assert seen == [("counting", None)]
    assert failures.now == {}
    page = metrics.page().decode()
    assert 'pgqpy_ticker_errors_total{database="shop",job="counting"} 1.0' in page
    assert 'pgqpy_ticker_failing{database="shop",job="counting"} 0.0' in page


def test_a_failure_of_the_body_ends_the_jobs_alongside() -> None:
    async def scenario() -> Counting:
        job = Counting(nothing)

        async def body() -> None:
            async with alongside(job):
                await job.many.wait()
                bug()

        with pytest.raises(ZeroDivisionError):
            await body()
        runs = job.runs
        await asyncio.sleep(0)
        assert job.runs == runs
        return job

    assert asyncio.run(scenario()).closed == 1
