"""Batches are streamed: however large they are, memory is not, and what is not read is not sent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

import pytest

import pgqpy
from pgqpy import Admin, Batch, Consumer, Event, PgqError, Producer
from pgqpy.producer import EventFields
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import Connection

pytestmark = pytest.mark.smoke

Put = Callable[[Iterable[EventFields]], None]


class Reading(Consumer):
    queue = "test_queue"
    consumer = "reader"

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.events: list[Event] = []

    def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
        self.events.append(event)


@pytest.fixture
def put(conn: Connection, queue: str, tick: Tick) -> Put:
    """``put(events)``: events of one transaction, which become a batch of the reader's."""
    Admin(conn).register_consumer(queue, "reader")

    def put_now(events: Iterable[EventFields]) -> None:
        Producer(queue).insert_events(conn, events)
        tick()

    return put_now


def large(number: int) -> Iterator[EventFields]:
    """Events of 2 kB."""
    return (("type", "x" * 2000) for _ in range(number))


#: Prints how many events a batch held, and by how many kB memory grew after the first ones.
MEASURING = """
import resource, sys
import pgqpy

class Measuring(pgqpy.Consumer):
    consumer = "reader"
    events = 0

    def process_event(self, conn, event):
        self.events += 1
        if self.events == 1000:
            self.before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

consumer = Measuring(sys.argv[1], queue=sys.argv[2])
consumer.run_once()
print(consumer.events, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - consumer.before)
"""


@pytest.mark.any_pg
@pytest.mark.slow
def test_memory_does_not_grow_with_the_batch(dsn: str, queue: str, put: Put) -> None:
    count = 50_000
    put(large(count))
    output = subprocess.check_output([sys.executable, "-c", MEASURING, dsn, queue], text=True)
    events, growth = map(int, output.split())
    assert events == count
    # 100 MB went through.
    assert growth < 10_000


def test_a_batch_not_read_to_its_end_is_cancelled(dsn: str, conn: Connection, put: Put) -> None:
    outside = conn
    states: list[str] = []

    class Impatient(Reading):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            for _ in batch:
                break
            # Begun again and left to finish() to end.
            next(iter(batch))
            batch.finish(conn)
            states.extend(
                state
                for (state,) in outside.execute(
                    "select state from pg_stat_activity where query like '%%copy (select ev_id%%'"
                    " and datname = current_database() and pid <> pg_backend_pid()"
                )
            )
            # run_once() finishes as well, so this batch must be open again.
            raise LookupError

    put(large(20_000))
    with pytest.raises(LookupError):
        Impatient(dsn).run_once()
    assert states == ["idle"]


@pytest.mark.any_pg
def test_a_batch_can_be_read_twice(dsn: str, put: Put) -> None:
    class Twice(Reading):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            super().process_batch(conn, batch)
            assert self.events == list(batch)

    put((str(number),) for number in range(5000))
    consumer = Twice(dsn)
    consumer.run_once()
    assert [event.type for event in consumer.events] == [str(number) for number in range(5000)]
    ids = [event.id for event in consumer.events]
    assert ids == sorted(ids)


@pytest.mark.any_pg
def test_reading_a_batch_inside_a_loop_over_it_is_an_error(dsn: str, put: Put) -> None:
    class Nested(Reading):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            for _ in batch:
                for _ in batch:
                    break

    put(large(5000))
    with pytest.raises(PgqError, match="inside a loop"):
        Nested(dsn).run_once()


def test_an_empty_batch_is_read_and_finished(dsn: str, conn: Connection, put: Put) -> None:
    with conn.transaction(force_rollback=True):
        Producer("test_queue").insert_event(conn, "type")
    put([])
    consumer = Reading(dsn)
    assert consumer.run_once()
    assert not consumer.run_once()
    assert consumer.events == []


class Keeping(Reading):
    """Keeps what the last batch gave, and what its query gives; puts back what is new."""

    rows: list[tuple[object, ...]]
    connections: int

    def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
        self.events = list(batch)
        assert self.events == list(batch)
        self.rows = conn.execute(batch.sql).fetchall()
        ((self.connections,),) = conn.execute(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and starts_with(application_name, 'pgqpy reader ')"
        ).fetchall()
        for event in batch:
            if not event.retry_count:
                event.retry(0)


def as_row(event: Event) -> tuple[object, ...]:
    extras = (event.extra1, event.extra2, event.extra3, event.extra4)
    numbers = (event.id, event.time, event.txid, event.retry_count or None)
    return (*numbers, event.type, event.data, *extras)


def tick_early(conn: Connection) -> None:
    """Tick as the daemon does; `put` leaves a gap in the event sequence."""
    conn.execute("select pgq.set_queue_config('test_queue', 'ticker_latency', '0')")
    conn.execute("select pgq.maint_retry_events()")
    conn.execute("select pgq.ticker_round()")


@pytest.mark.usefixtures("put")
def test_the_events_of_a_small_batch_come_with_it(dsn: str, conn: Connection) -> None:
    """They need no other connection, and are what the query gives."""
    producer = Producer("test_queue")
    producer.insert_event(conn, "type", "data")
    producer.insert_events(conn, [("ärger", "", None, "", None, "\n"), ("t",), (None, "d", "1")])
    tick_early(conn)
    consumer = Keeping(dsn)
    assert consumer.run_once()
    assert len(consumer.events) == 4
    assert [as_row(event) for event in consumer.events] == consumer.rows
    assert consumer.connections == 1

    tick_early(conn)
    assert consumer.run_once()
    assert [event.retry_count for event in consumer.events] == [1] * 4
    assert [as_row(event) for event in consumer.events] == consumer.rows


@pytest.mark.usefixtures("put")
def test_a_few_large_events_are_streamed(dsn: str, conn: Connection) -> None:
    Producer("test_queue").insert_event(conn, "type", "x" * 100_000)
    tick_early(conn)
    consumer = Keeping(dsn)
    assert consumer.run_once()
    assert [event.data for event in consumer.events] == ["x" * 100_000]
    assert consumer.connections == 2


def heartbeat(conn: Connection, queue: str) -> None:
    """Tick an idle queue: the event sequence stays."""
    for period in ("ticker_max_lag", "ticker_idle_period"):
        conn.execute("select pgq.set_queue_config(%s, %s, '0')", [queue, period])
    conn.execute("select pgq.ticker(%s)", [queue])


@pytest.mark.usefixtures("put")
def test_a_heartbeat_is_passed_without_a_batch(dsn: str, conn: Connection, queue: str) -> None:
    """Or two hundred idle consumers would open and finish two hundred batches a minute."""
    heartbeat(conn, queue)
    heartbeat(conn, queue)
    assert not Reading(dsn).run_once()
    ((at_newest, batches),) = conn.execute(
        "select sub_last_tick = (select max(tick_id) from pgq.tick),"
        " pg_sequence_last_value('pgq.batch_id_seq') from pgq.subscription"
    ).fetchall()
    assert at_newest
    assert batches is None


RAW = "select pgq.insert_event_raw('test_queue', %s, %s, null, null, 't', 'd', %s, %s, %s, %s)"


@pytest.mark.usefixtures("put")
def test_an_event_that_the_sequence_does_not_tell_of_is_no_heartbeat(
    dsn: str, conn: Connection, queue: str
) -> None:
    conn.execute(RAW, [0, "now", *[None] * 4])
    heartbeat(conn, queue)
    consumer = Reading(dsn)
    assert consumer.run_once()
    assert [event.id for event in consumer.events] == [0]


def test_the_time_is_that_of_the_transaction_in_utc_and_infinity_is_the_last_moment(
    dsn: str, conn: Connection, put: Put
) -> None:
    with conn.transaction():
        ((now, txid),) = conn.execute("select now(), txid_current()").fetchall()
        Producer("test_queue").insert_event(conn, "type")
        conn.execute(RAW, [None, "infinity", *[None] * 4])
    put([])
    consumer = Reading(dsn)
    consumer.run_once()
    first, endless = consumer.events
    assert (first.time, first.txid) == (now, txid)
    assert str(first.time.tzinfo) == "UTC"
    assert endless.time.year == 9999


@pytest.mark.any_pg
@pytest.mark.slow
def test_a_payload_of_200_mb_comes_through_between_small_ones(
    dsn: str, conn: Connection, put: Put
) -> None:
    huge = "é" * 100_000_000
    sizes: list[int] = []

    class Sizes(Reading):
        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            assert event.data is not None
            sizes.append(len(event.data))
            assert event.data == huge or event.data == "small"

    Producer("test_queue").insert_event(conn, "type", "small")
    put([("type", huge), ("type", "small")])
    Sizes(dsn).run_once()
    assert sizes == [5, len(huge), 5]


@pytest.mark.parametrize(
    "read",
    [
        "select from pgq.get_batch_events(%s)",
        "select from pgq.get_batch_cursor(%s, 'events', 10)",
        "select from pgq._small_batch(pgq.batch_event_sql(%s))",
    ],
)
def test_the_query_of_a_batch_is_not_compiled(conn: Connection, put: Put, read: str) -> None:
    """Event tables are never analyzed, so its cost is overrated."""
    conn.execute("set jit = on; set jit_above_cost = 0")
    if conn.execute("select pg_jit_available()").fetchone() == (False,):
        pytest.skip("this server cannot compile queries")
    put([("type", "data")])
    batch = Admin(conn).next_batch("test_queue", "reader")
    plans: list[str] = []
    conn.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))
    conn.execute(
        "load 'auto_explain'; set auto_explain.log_min_duration = 0;"
        "set auto_explain.log_analyze = on; set auto_explain.log_nested_statements = on;"
        "set client_min_messages = log"
    )
    conn.execute(read.encode(), [batch])
    of_batch = [plan for plan in plans if "Scan on event_" in plan]
    assert of_batch != []
    assert not any("JIT:" in plan for plan in of_batch)
