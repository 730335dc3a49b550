"""Every example does what its text says, run as its text says."""

from __future__ import annotations

import pytest

from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import SPARK_PATIENCE, Run
from tests.fixtures.fix_ticker import StartTicker, eventually

pytestmark = pytest.mark.slow


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
    assert counts == [("order.created", 2), ("order.shipped", 4_000)]


def test_captured_changes_are_events(start: Run, conn: Connection) -> None:
    said = start("capture.py").finish()
    assert said[0] == "1,011 rows changed, as many events"
    assert '"DELETE"' in said[1]
    assert '"UPDATE"' in said[2]
    start("capture.py").finish()


@pytest.mark.usefixtures("ticking")
def test_each_consumer_gets_what_the_producer_writes(start: Run, conn: Connection) -> None:
    counter, mailer = start("consumer.py"), start("async_consumer.py")
    everyone = [counter, mailer]
    # One after the other: they create their table, which PostgreSQL refuses to two at once.
    for name in ("coop_consumer.py", "group_consumer.py") * 2:
        everyone.append(start(name))
        everyone[-1].hear("for events")
    for consumer in everyone[:2]:
        consumer.hear("for events")
    start("producer.py").finish()

    counter.hear("batch")
    eventually(
        conn,
        "select count(*) = 2 from order_event_count"
        " where (event_type, events) in (('order.created', 1), ('order.shipped', 2000))",
    )
    eventually(conn, "select count(*) = 2000 from parcel")
    eventually(
        conn,
        "select count(*) = 2001 and count(*) filter (where customer = 'Ada') = 1"
        " from customer_order",
    )
    mailer.hear("busy, again in a second")
    mailer.hear("thank you, Ada")
    assert [consumer.terminate() for consumer in everyone] == [0] * 6


def test_oranges_go_through_the_press(start: Run) -> None:
    said = start("pipeline.py").finish()
    assert sorted(said[:3]) == [f"orange {number} goes to the compost" for number in (3, 6, 9)]
    assert said[3:] == ["a glass of juice of 6 oranges", "peeled 27 times, 6 of them were done"]


@pytest.mark.usefixtures("ticking")
def test_bad_events_come_again_or_are_given_up_and_replayed(start: Run) -> None:
    said = start("failing.py").finish()
    busy = "TimeoutError: the tax office is busy"
    assert said == [
        "order 1: an invoice over 12.5",
        "event 2 becomes a dead letter after attempt 1: order 2 has no total",
        f"event 3 failed in attempt 1, again in 0.5 s: {busy}",
        f"event 3 failed in attempt 2, again in 0.5 s: {busy}",
        "order 3: an invoice over 7.0",
        "dead letter of invoices: order 2 has no total",
        "1 replayed",
    ]


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
