"""Times and keys as `pgqpy.Producer` takes them, plain and in bulk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from pgqpy import AsyncProducer, Producer, errors
from pgqpy._delivery import PIECE
from pgqpy.producer import EventFields
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_ticker import eventually
from tests.integration.delayed.test_delayed_events import move, waiting

pytestmark = pytest.mark.any_pg

PAST = datetime(2020, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def producer(conn: Connection, queue: str) -> Producer:
    conn.execute("select pgq.set_queue_config(%s, 'key_window', '1 hour')", [queue])
    ops.register(conn, queue, "c")
    return Producer(queue)


def test_times_and_delays(conn: Connection, queue: str, producer: Producer) -> None:
    producer.insert_event(conn, "t", "past", at=PAST)
    producer.insert_event(conn, "t", "soon", delay=0.03, extra4="x")
    later = producer.insert_event(conn, "t", "later", at=datetime.now(UTC) + HOUR)
    eventually(conn, "select pgq.maint_retry_events() = 0 and count(*) = 1 from pgq.waiting_event")
    ops.tick(conn, queue)
    events = ops.events(conn, ops.next_batch(conn, queue, "c"))
    assert [(row[5], row[9]) for row in events] == [("past", None), ("soon", "x")]
    assert producer.cancel_event(conn, later)
    assert not producer.cancel_event(conn, later)
    assert waiting(conn, queue) == []


def test_times_for_many_events(conn: Connection, queue: str, producer: Producer) -> None:
    events = [("t", "a"), ("t", "b", "x")]
    assert producer.insert_events(conn, events, at=PAST) == 2
    assert producer.insert_events(conn, iter(events), delay=HOUR) == 2
    assert len(producer.insert_events_returning(conn, events, delay=HOUR)) == 2
    assert producer.insert_events_returning(conn, [], delay=HOUR) == []

    def by_data(event: EventFields) -> datetime:
        return PAST if event[1] == "a" else datetime.now(UTC) + HOUR

    producer.insert_events(conn, events, at=by_data)
    assert move(conn) == 3
    assert ops.deliver(conn, queue, "c") == ["a", "b", "a"]
    assert len(waiting(conn, queue)) == 5


def test_any_number_is_streamed_in_pieces(conn: Connection, queue: str, producer: Producer) -> None:
    count = PIECE + 5

    def events() -> Iterator[tuple[str, str]]:
        for number in range(count):
            yield ("t", str(number))

    assert producer.insert_events(conn, events(), delay=HOUR) == count
    assert waiting(conn, queue) == [str(number) for number in range(count)]


def test_a_key_is_inserted_once(conn: Connection, queue: str, producer: Producer) -> None:
    first = producer.insert_event(conn, "t", "first", key="k")
    assert producer.insert_event(conn, "t", "again", key="k") == first
    assert producer.insert_event(conn, "t", "later", key="k", delay=HOUR) == first
    events = [("t", "k"), ("t", "l"), ("t", "l")]
    ids = producer.insert_events_returning(conn, events, key=lambda event: event[1])
    assert ids[0] == first
    assert ids[1] == ids[2]
    assert producer.insert_events(conn, events, key=lambda event: event[1]) == 3
    assert producer.insert_events(conn, [], key=lambda event: event[1]) == 0
    assert ops.deliver(conn, queue, "c") == ["first", "l"]


def test_it_is_in_the_callers_transaction(
    conn: Connection, connect: Connect, queue: str, producer: Producer
) -> None:
    caller = connect(autocommit=False)
    event = producer.insert_event(conn, "t", "cancelled", delay=HOUR)
    for kept in (False, True):
        producer.insert_event(caller, "t", "one", at=PAST)
        producer.insert_events(caller, [("t", "many")], at=PAST)
        assert producer.cancel_event(caller, event)
        assert waiting(conn, queue) == ["cancelled"]
        caller.commit() if kept else caller.rollback()
    assert move(conn) == 2
    assert waiting(conn, queue) == []


def test_nonsense_is_refused_before_it_is_sent(conn: Connection, producer: Producer) -> None:
    with pytest.raises(ValueError, match="time zone"):
        producer.insert_event(conn, "t", at=datetime(2020, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="time zone"):
        producer.insert_events(conn, [("t",)], at=lambda _: datetime(2020, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="negative"):
        producer.insert_event(conn, "t", delay=-HOUR)
    with pytest.raises(ValueError, match="not both"):
        producer.insert_event(conn, "t", delay=HOUR, at=PAST)
    with pytest.raises(TypeError, match="function"):
        producer.insert_events(conn, [("t",)], key="k")  # type: ignore[arg-type]
    for delay in ("2 hours", float("inf"), float("nan")):
        with pytest.raises(ValueError, match="a number of seconds, or a timedelta"):
            producer.insert_event(conn, "t", delay=delay)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is a datetime, not None"):
        producer.insert_events(conn, [("t",)], at=lambda _: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="key is str or None, not 81"):
        producer.insert_event(conn, "t", key=81)  # type: ignore[arg-type]
    for fields in (("t", 5), (5, "t")):
        with pytest.raises(TypeError, match="an event's"):
            producer.insert_event(conn, *fields)
        with pytest.raises(TypeError, match="an event's"):
            producer.insert_events_returning(conn, [fields])
    assert ops.value(conn, "select count(*) from pgq.delayed") == 0


def test_errors_are_classes(conn: Connection, queue: str, producer: Producer) -> None:
    conn.execute("select pgq.create_queue('without')")
    nope, without = Producer("nope"), Producer("without")
    calls: list[tuple[type[errors.PgqError], Callable[[], object]]] = [
        (errors.NoKeyWindow, lambda: without.insert_event(conn, "t", key="k")),
        (errors.InvalidKey, lambda: producer.insert_event(conn, "t", key="")),
        (errors.QueueNotFound, lambda: nope.insert_event(conn, "t", delay=HOUR)),
        (errors.QueueNotFound, lambda: nope.insert_events(conn, [], delay=HOUR)),
        (errors.QueueNotFound, lambda: nope.cancel_event(conn, 1)),
        (errors.InvalidPayload, lambda: producer.insert_event(conn, "t", "a\0b", delay=HOUR)),
    ]
    for error, call in calls:
        with pytest.raises(error):
            call()


def test_the_same_with_asyncio(conn: Connection, dsn: str, queue: str, producer: Producer) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as aconn:
            writer = AsyncProducer(queue)
            event = await writer.insert_event(aconn, "t", "delayed", delay=HOUR)
            assert await writer.cancel_event(aconn, event)
            await writer.insert_events(aconn, [("t", "k")], key=lambda fields: fields[1])
            await writer.insert_event(aconn, "t", "k", key="k")

    asyncio.run(main())
    assert ops.deliver(conn, queue, "c") == ["k"]
