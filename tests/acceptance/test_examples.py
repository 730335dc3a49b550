"""Every example does what its text says, run as its text says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import PATIENCE, StartTicker, eventually

pytestmark = [pytest.mark.any_pg, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples"

# Spark needs seconds to start, on a busy machine a minute.
SPARK_PATIENCE = 6 * PATIENCE


class Example:
    """A running example; what it prints can be waited for."""

    def __init__(self, name: str, dsn: str) -> None:
        self.lines: list[str] = []
        self._heard = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / name)],
            env=os.environ | {"PGQPY_DSN": dsn},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._heard:
                self.lines.append(line.rstrip())
                self._heard.notify_all()

    def hear(self, text: str, patience: float = PATIENCE) -> None:
        """Wait for a line that has this text."""
        with self._heard:
            heard = self._heard.wait_for(lambda: any(text in line for line in self.lines), patience)
        assert heard, f"never said {text!r}, but {self.lines}"

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def finish(self) -> list[str]:
        """Wait for its end, which must be a good one; returns all that it printed."""
        assert self.process.wait(PATIENCE) == 0, self.lines
        self._reader.join(PATIENCE)
        return self.lines

    def end(self) -> None:
        """Whatever a failed test has left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


StartExample = Callable[[str], Example]


@pytest.fixture
def start(dsn: str) -> Iterator[StartExample]:
    """``start("producer.py")`` runs it on the test's database."""
    started: list[Example] = []

    def start_one(name: str) -> Example:
        started.append(Example(name, dsn))
        return started[-1]

    yield start_one
    for example in started:
        example.end()


@pytest.fixture
def ticking(dsn: str, start_ticker: StartTicker) -> None:
    """The daemon at work on the test's database; retried events come back quickly."""
    start_ticker(dsn, retry_period=0.2).hear("leading")


def test_the_producer_writes_one_event_and_many(start: StartExample, conn: Connection) -> None:
    for _ in range(2):  # it can be run again
        said = start("producer.py").finish()
        assert [line.partition(" ")[0] for line in said] == ["event", "and"]
    counts = conn.execute(
        "select ev_type, count(*) from pgq.event_template group by ev_type order by ev_type"
    ).fetchall()
    assert counts == [("order.created", 2), ("order.shipped", 20_000)]


def test_captured_changes_are_events(start: StartExample, conn: Connection) -> None:
    said = start("capture.py").finish()
    assert said[0] == "1,011 rows changed, as many events"
    assert '"DELETE"' in said[1]
    assert '"UPDATE"' in said[2]
    start("capture.py").finish()


@pytest.mark.usefixtures("ticking")
def test_the_consumer_counts_what_the_producer_writes(
    start: StartExample, conn: Connection
) -> None:
    consumer = start("consumer.py")
    consumer.hear("waiting for events")
    start("producer.py").finish()
    consumer.hear("batch")
    eventually(
        conn,
        "select count(*) = 2 from order_event_count"
        " where (event_type, events) in (('order.created', 1), ('order.shipped', 10000))",
    )
    assert consumer.terminate() == 0


@pytest.mark.usefixtures("ticking")
def test_the_asyncio_consumer_gets_an_event_again(start: StartExample) -> None:
    consumer = start("async_consumer.py")
    consumer.hear("waiting for events")
    start("producer.py").finish()
    consumer.hear("busy, again in a second")
    consumer.hear("thank you, Ada")
    assert consumer.terminate() == 0


@pytest.mark.spark
@pytest.mark.usefixtures("ticking")
def test_the_spark_consumer_counts_by_type(start: StartExample) -> None:
    consumer = start("spark_consumer.py")
    consumer.hear("waiting for events")
    start("producer.py").finish()
    consumer.hear("of order.shipped", SPARK_PATIENCE)
    assert consumer.terminate() == 0
    assert not [line for line in consumer.lines if "WARN" in line]
