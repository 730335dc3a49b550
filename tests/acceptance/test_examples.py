"""Every example does what its text says, run as its text says."""

from __future__ import annotations

import pytest

from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import SPARK_PATIENCE, Run
from tests.fixtures.fix_ticker import StartTicker, eventually

pytestmark = [pytest.mark.any_pg, pytest.mark.slow]


@pytest.fixture
def ticking(dsn: str, start_ticker: StartTicker) -> None:
    """The daemon at work on the test's database; retried events come back quickly."""
    start_ticker(dsn, retry_period=0.2).hear("leading")


def test_the_producer_writes_one_event_and_many(start: Run, conn: Connection) -> None:
    for _ in range(2):  # it can be run again
        said = start("producer.py").finish()
        assert [line.partition(" ")[0] for line in said] == ["event", "and"]
    counts = conn.execute(
        "select ev_type, count(*) from pgq.event_template group by ev_type order by ev_type"
    ).fetchall()
    assert counts == [("order.created", 2), ("order.shipped", 20_000)]


def test_captured_changes_are_events(start: Run, conn: Connection) -> None:
    said = start("capture.py").finish()
    assert said[0] == "1,011 rows changed, as many events"
    assert '"DELETE"' in said[1]
    assert '"UPDATE"' in said[2]
    start("capture.py").finish()


@pytest.mark.usefixtures("ticking")
def test_the_consumer_counts_what_the_producer_writes(start: Run, conn: Connection) -> None:
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
def test_the_asyncio_consumer_gets_an_event_again(start: Run) -> None:
    consumer = start("async_consumer.py")
    consumer.hear("waiting for events")
    start("producer.py").finish()
    consumer.hear("busy, again in a second")
    consumer.hear("thank you, Ada")
    assert consumer.terminate() == 0


@pytest.mark.spark
@pytest.mark.usefixtures("ticking")
def test_the_spark_consumer_counts_by_type(start: Run, conn: Connection) -> None:
    conn.execute("select pgq.create_queue('orders')")
    consumer = start("spark_consumer.py")
    consumer.hear("registered and started", SPARK_PATIENCE)
    start("producer.py").finish()
    consumer.hear("of order.shipped", SPARK_PATIENCE)
    assert consumer.terminate() == 0
    assert not [line for line in consumer.lines if "WARN" in line]
