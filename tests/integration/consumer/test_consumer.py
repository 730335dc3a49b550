"""Consumers: what they promise about batches, transactions and failures."""

from __future__ import annotations

import logging
import os
import queue as queues
import signal
from contextlib import suppress
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
import pytest

import pgqpy
from pgqpy import (
    Admin,
    Batch,
    BatchStats,
    Consumer,
    CoopConsumer,
    Event,
    Producer,
    RemoteConsumer,
    TrackedConsumer,
    errors,
)
from pgqpy._runtime.io import Io
from pgqpy._runtime.listener import Subscription
from pgqpy.consumer import _loop
from tests.fixtures.fix_client import PATIENCE, Background, Make, Send, Tick, wait_until
from tests.fixtures.fix_db import Connect, Connection

#: An effect that shows when it happens twice.
COUNT: LiteralString = (
    "insert into seen as s values (%s, 1) on conflict (data) do update set n = s.n + 1"
)


class Counter(Consumer):
    """Counts events by data, in a table."""

    consumer = "counter"
    backoff_first = 0.01

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.done: queues.Queue[BatchStats] = queues.Queue()

    def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
        conn.execute(COUNT, [event.data])

    def on_batch(self, stats: BatchStats) -> None:
        self.done.put(stats)

    def await_event(self, conn: Connection, data: str) -> None:
        """Wait until the batch with this event is done."""
        while data not in counts(conn):
            self.done.get(timeout=PATIENCE)


class Waiting(Counter):
    """Knows of events by hearing only: it would poll after hours."""

    poll_interval = 3600


@pytest.fixture(autouse=True)
def seen(conn: Connection) -> None:
    conn.execute("create table seen (data text primary key, n int not null)")


def counts(conn: Connection) -> dict[str, int]:
    return dict(conn.execute("select data, n from seen order by data").fetchall())


@pytest.mark.smoke
def test_each_event_after_the_registration_is_processed_once(
    dsn: str, conn: Connection, queue: str, send: Send
) -> None:
    consumer = Counter(dsn, queue=queue)
    send(["before"])
    assert consumer.register()
    assert not consumer.register()
    for data in "abc":
        send(data)
    consumer.run(until_empty=True)
    consumer.run(until_empty=True)
    assert counts(conn) == {"a": 1, "b": 1, "c": 1}
    assert consumer.unregister()
    assert not consumer.unregister()
    with pytest.raises(errors.ConsumerNotRegistered) as info:
        consumer.run_once()
    assert info.value.hint
    consumer.run(until_empty=True)
    assert not consumer.register()


def test_a_batch_names_its_ticks_and_its_query_gives_its_events(
    connect: Connect, queue: str, make: Make
) -> None:
    class Reader(Counter):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            assert (batch.queue, batch.consumer) == (queue, "counter")
            assert batch.prev_tick < batch.tick
            assert batch.prev_tick_time < batch.tick_time
            assert batch.seq_end - batch.seq_start >= 3
            assert timedelta() <= batch.lag < timedelta(minutes=1)
            rows = connect().execute(batch.sql.encode()).fetchall()
            assert [row[0] for row in rows] == [event.id for event in batch]
            assert len(rows) == batch.events_read == 3
            for event in batch:
                event.retry(60)

    consumer = make(Reader, "abc")
    assert consumer.run_once()
    stats = consumer.done.get_nowait()
    assert (stats.queue, stats.consumer) == (queue, "counter")
    assert (stats.events, stats.retried) == (3, 3)
    assert 0 < stats.seconds < PATIENCE
    assert not consumer.run_once()


def test_a_database_may_write_its_times_as_it_likes(conn: Connection, make: Make) -> None:
    name = conn.info.dbname
    conn.execute(f"alter database {name} set datestyle = 'German, DMY'".encode())
    conn.execute(f"alter database {name} set intervalstyle = 'sql_standard'".encode())
    times: list[Any] = []

    class Reader(Counter):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            times.extend([batch.tick_time, *(event.time for event in batch)])
            times.append(conn.execute("select interval '1 day 2 hours'").fetchone())

    make(Reader, "a").run(until_empty=True)
    assert [type(time).__name__ for time in times] == ["datetime", "datetime", "tuple"]
    assert times[2] == (timedelta(days=1, hours=2),)


def test_a_failed_batch_is_rolled_back_and_comes_again_unchanged(
    conn: Connection, send: Send, make: Make, background: Background
) -> None:
    attempts: list[tuple[int, list[int]]] = []
    failures: list[tuple[type[Exception], int | None]] = []

    class Failing(Counter):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            super().process_batch(conn, batch)
            attempts.append((batch.id, [event.id for event in batch]))
            # More comes in: it must not become part of this batch.
            send(["later"])
            if len(attempts) < 3:
                raise LookupError("something is missing")
            self.stop()

        def on_error(self, error: Exception, batch: Batch | None) -> None:
            failures.append((type(error), batch.id if batch else None))

    background(make(Failing, "ab")).join(PATIENCE)
    first, second, third = attempts
    assert first == second == third
    assert counts(conn) == {"a": 1, "b": 1}
    assert failures == [(LookupError, first[0])] * 2


def test_on_error_can_end_the_run(make: Make) -> None:
    class Failing(Counter):
        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            raise LookupError

        def on_error(self, error: Exception, batch: Batch | None) -> None:
            raise error

    consumer = make(Failing, "a")
    with pytest.raises(LookupError):
        consumer.run()
    with pytest.raises(LookupError):
        consumer.run_once()
    with pytest.raises(LookupError):
        consumer.run(until_empty=True)


def test_a_signal_stops_after_the_batch_and_handlers_are_restored(
    conn: Connection, make: Make
) -> None:
    class Signalled(Counter):
        batch_size = 1

        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            os.kill(os.getpid(), number)
            super().process_event(conn, event)
            if event.data == "c":
                self.stop()  # it went on for too long

    def handler(_number: int, _frame: object) -> None:
        pass

    consumer = make(Signalled, "a", "b", "c")
    for number, done in ((signal.SIGTERM, "a"), (signal.SIGINT, "ab")):
        before = signal.signal(number, handler)
        try:
            consumer.run()
            assert signal.getsignal(number) is handler
        finally:
            signal.signal(number, before)
        assert counts(conn) == dict.fromkeys(done, 1)


def test_a_retried_event_comes_again_once_with_its_count_and_to_this_consumer_alone(
    conn: Connection, tick: Tick, send: Send, make: Make
) -> None:
    seen: list[tuple[str, str | None, int]] = []

    class Retrying(Counter):
        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            seen.append((self.consumer, event.data, event.retry))
            if self.consumer == "one" and event.data == "a" and event.retry < 2:
                event.retry(0)

    consumers = [make(Retrying, consumer=name) for name in ("one", "two")]
    send("ab")
    for _ in range(4):
        tick()
        for consumer in consumers:
            consumer.run(until_empty=True)
        Admin(conn).maint_retry_events()
    ours = [("one", "a", 0), ("one", "a", 1), ("one", "a", 2), ("one", "b", 0)]
    assert sorted(seen) == [*ours, ("two", "a", 0), ("two", "b", 0)]


def test_what_is_retried_and_the_end_of_the_batch_are_one_transaction(
    conn: Connection, make: Make
) -> None:
    class Putting(Counter):
        fails = True

        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            for event in batch:
                event.retry(3600)
            if self.fails:
                batch.finish(conn)
                raise LookupError

    consumer = make(Putting, "a")
    with pytest.raises(LookupError):
        consumer.run_once()
    put = "select xmin::text from pgq.delayed"
    assert conn.execute(put).fetchall() == []
    consumer.fails = False
    assert consumer.run_once()
    finished = conn.execute(
        "select xmin::text from pgq.position_0 order by pos_registration desc, pos_nr desc limit 1"
    ).fetchall()
    assert conn.execute(put).fetchall() == finished


def test_of_two_processes_with_one_name_only_one_has_its_effects(
    dsn: str, conn: Connection, queue: str, make: Make
) -> None:
    class Overtaken(Counter):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            Counter(dsn, queue=queue).run(until_empty=True, handle_signals=False)
            super().process_batch(conn, batch)

    with pytest.raises(errors.BatchNotFound, match="run twice"):
        make(Overtaken, "ab").run_once()
    assert counts(conn) == {"a": 1, "b": 1}


STATE = "select state, backend_xid, backend_xmin from pg_stat_activity where pid = %s"


def test_a_batch_holds_no_transaction_until_its_connection_is_used(
    connect: Connect, make: Make
) -> None:
    states: list[tuple[Any, ...]] = []

    class Looking(Counter):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            pid = [conn.info.backend_pid]
            states.extend(connect().execute(STATE, pid))
            conn.execute("select")
            states.extend(connect().execute(STATE, pid))

    assert make(Looking, "").run_once()
    assert states == [("idle", None, None), ("idle in transaction", None, None)]


@pytest.mark.parametrize("used", [False, True])
def test_process_batch_has_savepoints_and_cannot_end_its_transaction(
    conn: Connection, make: Make, used: bool
) -> None:
    class Saving(Counter):
        fails = True

        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            if used:
                conn.execute("insert into seen values ('before', 1)")
            for end in (conn.commit, conn.rollback, lambda: conn.set_autocommit(True)):
                with pytest.raises(psycopg.ProgrammingError):
                    end()
            with conn.transaction():
                conn.execute("insert into seen values ('inside', 1)")
            with suppress(ZeroDivisionError), conn.transaction():
                conn.execute("insert into seen values ('undone', 1)")
                raise ZeroDivisionError
            if self.fails:
                raise KeyError

    consumer = make(Saving, "")
    with pytest.raises(KeyError):
        consumer.run_once()
    assert counts(conn) == {}
    consumer.fails = False
    consumer.run_once()
    assert counts(conn) == {"inside": 1} | ({"before": 1} if used else {})


def test_batches_are_processed_in_the_isolation_level_that_is_asked_for(
    send: Send, make: Make
) -> None:
    shown: list[str] = []

    class Isolated(Counter):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            shown.extend(conn.execute("show transaction_isolation").fetchone() or ())

    consumer = make(Isolated)
    for level in pgqpy.IsolationLevel:
        consumer.isolation_level = level
        send("")
        assert consumer.run_once()
    assert shown == [level.name.lower().replace("_", " ") for level in pgqpy.IsolationLevel]


def test_only_events_of_the_wanted_types_are_sent(
    conn: Connection, queue: str, tick: Tick, make: Make
) -> None:
    class Choosy(Counter):
        event_types = frozenset({"wanted", 'it\'s "quoted" {too}, \\ %s'})

    consumer = make(Choosy)
    for event_type in ("wanted", "other", 'it\'s "quoted" {too}, \\ %s', "", None):
        Producer(queue).insert_event(conn, event_type, event_type)
    tick()
    consumer.run(until_empty=True)
    assert counts(conn) == dict.fromkeys(Choosy.event_types, 1)


def test_events_that_are_committed_late_are_of_the_wanted_types_too(
    conn: Connection, connect: Connect, queue: str, tick: Tick, make: Make
) -> None:
    """The event sequence says that there are none between the ticks."""

    class Choosy(Counter):
        event_types = ("wanted",)

    class Workers(Choosy, CoopConsumer):
        consumer = "workers"

    consumers = make(Choosy), make(Workers)
    for period in ("ticker_max_lag", "ticker_idle_period"):
        Admin(conn).set_queue_config(queue, period, "0")
    with connect(autocommit=False) as late:
        for event_type in ("wanted", "other"):
            Producer(queue).insert_event(late, event_type, event_type)
        tick()
        late.commit()
    assert Admin(conn).ticker(queue)
    for consumer in consumers:
        consumer.run(until_empty=True)
    assert counts(conn) == {"wanted": 2}


def test_small_ticks_are_collected_up_to_the_batch_size(
    conn: Connection, queue: str, make: Make
) -> None:
    class Collecting(Counter):
        batch_size = 4

    consumer = make(Collecting)
    # Forced ticks would jump over event ids, and be taken for large.
    Admin(conn).set_queue_config(queue, "ticker_max_count", 1)
    for number in range(10):
        Producer(queue).insert_event(conn, "t", str(number))
        assert Admin(conn).ticker(queue)
    consumer.run(until_empty=True)
    assert [consumer.done.get_nowait().events for _ in range(3)] == [4, 4, 2]


def test_a_consumer_says_that_no_ticker_runs(
    conn: Connection,
    queue: str,
    make: Make,
    background: Background,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_loop, "_NO_TICK", 0.01)
    consumer = make(Counter)
    consumer.poll_interval = 0.01
    background(consumer)
    Producer(queue).insert_event(conn, "t", "a")
    wait_until(lambda: "has new events, and no tick for" in caplog.text)
    assert counts(conn) == {}


def test_a_consumer_that_ends_says_too_that_no_ticker_runs(
    conn: Connection,
    queue: str,
    make: Make,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it has just nothing to do, whatever was inserted."""
    monkeypatch.setattr(_loop, "_NO_TICK", 0)
    consumer = make(Counter)
    consumer.run(until_empty=True)
    assert "no tick" not in caplog.text
    Producer(queue).insert_event(conn, "t", "a")
    consumer.run(until_empty=True)
    assert "has new events, and no tick for" in caplog.text


def test_with_a_minimal_lag_young_batches_wait(conn: Connection, make: Make) -> None:
    class Behind(Counter):
        min_lag: timedelta | None = timedelta(hours=1)

    consumer = make(Behind, "a")
    assert not consumer.run_once()
    consumer.min_lag = timedelta(0)
    assert consumer.run_once()
    assert counts(conn) == {"a": 1}


def test_a_batch_older_than_the_maximal_lag_is_reported_and_on_lag_can_end_the_run(
    conn: Connection, queue: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    class Late(Counter):
        max_lag = timedelta(0)
        ends = True

        def on_lag(self, lag: timedelta, batch: Batch) -> None:
            if self.ends:
                raise TimeoutError(lag)
            super().on_lag(lag, batch)

        def on_batch(self, stats: BatchStats) -> None:
            self.stop()

    consumer = make(Late, "a")
    with pytest.raises(TimeoutError):
        consumer.run()
    assert counts(conn) == {}
    caplog.clear()
    consumer.ends = False
    assert consumer.run_once()
    assert counts(conn) == {"a": 1}
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.__dict__["queue"] == queue
    assert record.__dict__["lag"] > 0


LISTENERS = """
select array_agg(pid) from pg_stat_activity
 where datname = current_database() and application_name = 'pgqpy listen'
   and query like 'select pg_notify%' and state = 'idle'
"""


def test_a_tick_wakes_a_consumer_by_notify_and_a_lost_listening_connection_is_replaced(
    conn: Connection, send: Send, make: Make, background: Background
) -> None:
    consumer = make(Waiting)
    # It is stopped while it waits.
    background(consumer)
    for data in "abc":
        send(data)
        consumer.await_event(conn, data)
    for data in "de":
        while not (pids := (conn.execute(LISTENERS).fetchone() or ())[0]):
            pass
        for pid in pids:
            conn.execute("select pg_terminate_backend(%s, 10000)", [pid])
        send(data)
        consumer.await_event(conn, data)


def test_a_tick_during_a_batch_is_followed_by_its_batch_whatever_the_poll_interval(
    conn: Connection, send: Send, make: Make, background: Background
) -> None:
    """Its notification came while the consumer was not listening."""
    more = ["b", "c", "d"]

    class Busy(Waiting):
        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            super().process_event(conn, event)
            if event.data in {"a", "b", "c"}:
                send(more.pop(0))

    consumer = make(Busy)
    background(consumer)
    # The third is heard of for certain: the consumer listens when it first has to wait.
    for data in "12a":
        send(data)
        consumer.await_event(conn, data)
    consumer.await_event(conn, "d")


def test_what_has_become_old_enough_is_found_by_polling_though_listen_works(
    conn: Connection, send: Send, make: Make, background: Background
) -> None:
    class Behind(Counter):
        min_lag = timedelta(milliseconds=100)
        poll_interval = 1  # not the minute until a notification is certain

    consumer = make(Behind)
    background(consumer)
    # It was surely notified of the third tick: it listens when it first has to wait.
    for data in "abc":
        send(data)
        consumer.await_event(conn, data)


def test_a_consumer_that_cannot_listen_polls(
    conn: Connection, send: Send, make: Make, background: Background
) -> None:
    class Polling(Counter):
        poll_interval = 0.01

    consumer = make(Polling, listen_dsn="host=/nowhere")
    background(consumer)
    send("a")
    consumer.await_event(conn, "a")


def test_what_is_not_there_is_told_with_a_hint(dsn: str, empty_dsn: str) -> None:
    consumer = Counter(dsn, queue="missing")
    for start in (consumer.register, consumer.run):
        with pytest.raises(errors.QueueNotFound) as info:
            start()
        assert info.value.hint
    consumer = Counter(empty_dsn, queue="q")
    for start in (consumer.register, consumer.run):
        with pytest.raises(errors.SchemaMissing, match="migrate"):
            start()
    # At once, and without the password.
    with pytest.raises(errors.ConnectionFailed) as failed:
        Counter("postgresql://me:secret@localhost:1/db", queue="q").run()
    assert "secret" not in str(failed.value)
    assert "secret" not in str(failed.value.__cause__)


def test_a_consumer_without_names_or_without_a_method_is_a_type_error(dsn: str) -> None:
    class Nameless(Counter):
        consumer = ""

    class Idle(Consumer):
        pass

    with pytest.raises(TypeError, match="consumer"):
        Nameless(dsn, queue="q")
    with pytest.raises(TypeError, match="process_batch or process_event"):
        Idle(dsn, queue="q", consumer="c").run()


def test_that_listening_works_is_known_before_the_first_tick(dsn: str, queue: str) -> None:
    io = Io()
    subscription = Subscription(io, dsn, queue)
    assert not subscription.works
    try:
        # It gives up connecting after three seconds, and may be asked again.
        wait_until(lambda: io.run(subscription.open()))
        assert (subscription.works, subscription.newest) == (True, 0)
    finally:
        io.run(subscription.close())
    assert not subscription.works


@pytest.mark.reference
def test_a_consumer_reads_a_queue_of_the_original(pgq_reference_dsn: str, connect: Connect) -> None:
    events: list[tuple[str | None, int]] = []

    class Reader(Consumer):
        queue = "q"
        consumer = "c"
        batch_size = None  # next_batch_upto is not PgQ's

        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            events.append((event.data, event.retry))

    conn = connect(pgq_reference_dsn)
    admin = Admin(conn)
    admin.create_queue("q")
    consumer = Reader(pgq_reference_dsn)
    assert consumer.register()
    for data in "ab":
        Producer("q").insert_event(conn, "t", data)
    admin.force_tick("q")
    admin.ticker("q")
    consumer.run(until_empty=True)
    assert events == [("a", 0), ("b", 0)]
    (info,) = admin.get_consumer_info("q", "c")
    assert info.current_batch is None
    assert [queue.queue_name for queue in admin.get_queue_info()] == ["q"]


@pytest.mark.parametrize("kind", [Consumer, RemoteConsumer, TrackedConsumer])
def test_a_function_does_without_a_class(kind: type[Any], dsn: str, queue: str, send: Send) -> None:
    seen = []
    target = {"target_dsn": dsn} if kind is RemoteConsumer else {}
    consumer = kind(
        dsn,
        queue=queue,
        consumer="c",
        batch_size=1,
        handler=lambda conn, event: seen.append(event.data),
        **target,
    )
    consumer.register()
    send("abc")
    consumer.run(until_empty=True)
    assert seen == ["a", "b", "c"]
