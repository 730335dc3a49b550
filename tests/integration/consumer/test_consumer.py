"""Consumers: what they promise about batches, transactions and failures."""

from __future__ import annotations

import logging
import queue as queues
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import pgqpy
from pgqpy import Admin, Batch, BatchStats, Consumer, Event, Producer, errors
from pgqpy._runtime.listener import Subscription
from tests.fixtures.fix_client import PATIENCE, Background, Tick
from tests.fixtures.fix_db import Connect, Connection


class Counter(Consumer):
    """Counts events by data, in a table: an effect that shows when it happens twice."""

    consumer = "counter"
    backoff_first = 0.01

    def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
        conn.execute(
            "insert into seen as s values (%s, 1) on conflict (data) do update set n = s.n + 1",
            [event.data],
        )


@pytest.fixture(autouse=True)
def seen(conn: Connection) -> None:
    conn.execute("create table seen (data text primary key, n int not null)")


@pytest.fixture
def producer(queue: str) -> Producer:
    return Producer(queue)


def counts(conn: Connection) -> dict[str, int]:
    return dict(conn.execute("select data, n from seen order by data").fetchall())


@pytest.mark.smoke
def test_each_event_after_the_registration_is_processed_once(
    dsn: str, conn: Connection, queue: str, producer: Producer, tick: Tick
) -> None:
    consumer = Counter(dsn, queue=queue)
    producer.insert_event(conn, "t", "before")
    tick()
    assert consumer.register()
    assert not consumer.register()
    for data in "abc":
        producer.insert_event(conn, "t", data)
        tick()
    consumer.run(until_empty=True)
    consumer.run(until_empty=True)
    assert counts(conn) == {"a": 1, "b": 1, "c": 1}
    assert consumer.unregister()
    assert not consumer.unregister()


def test_a_batch_names_its_ticks_and_its_query_gives_its_events(
    dsn: str, conn: Connection, connect: Connect, queue: str, producer: Producer, tick: Tick
) -> None:
    class Reader(Counter):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            assert (batch.queue, batch.consumer) == (queue, "counter")
            assert batch.prev_tick < batch.tick
            assert batch.prev_tick_time < batch.tick_time
            assert batch.seq_end - batch.seq_start >= 3
            assert timedelta() <= batch.lag < timedelta(minutes=1)
            rows = connect(dsn).execute(batch.sql.encode()).fetchall()
            assert [row[0] for row in rows] == [event.id for event in batch]
            assert len(rows) == batch.events_read == 3

    consumer = Reader(dsn, queue=queue)
    consumer.register()
    producer.insert_events(conn, [("t", data) for data in "abc"])
    tick()
    assert consumer.run_once()
    assert not consumer.run_once()


def test_a_database_may_write_its_times_as_it_likes(
    dsn: str, conn: Connection, queue: str, producer: Producer, tick: Tick
) -> None:
    name = conn.info.dbname
    conn.execute(f"alter database {name} set datestyle = 'German, DMY'".encode())
    conn.execute(f"alter database {name} set intervalstyle = 'sql_standard'".encode())
    times: list[Any] = []

    class Reader(Counter):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            times.extend([batch.tick_time, *(event.time for event in batch)])
            times.append(conn.execute("select interval '1 day 2 hours'").fetchone())

    consumer = Reader(dsn, queue=queue)
    consumer.register()
    producer.insert_event(conn, "t", "a")
    tick()
    consumer.run(until_empty=True)
    assert [type(time).__name__ for time in times] == ["datetime", "datetime", "tuple"]
    assert times[2] == (timedelta(days=1, hours=2),)


def test_a_failed_batch_is_rolled_back_and_comes_again_unchanged(
    dsn: str,
    conn: Connection,
    queue: str,
    producer: Producer,
    tick: Tick,
    background: Background,
) -> None:
    attempts: queues.Queue[tuple[int, list[int]]] = queues.Queue()
    failures: list[tuple[Exception, int | None]] = []
    tries = iter(range(3))

    class Failing(Counter):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            super().process_batch(conn, batch)
            attempts.put((batch.id, [event.id for event in batch]))
            # More comes in: it must not become part of this batch.
            producer.insert_event(outside, "t", "later")
            tick()
            if next(tries) < 2:
                raise LookupError("something is missing")
            self.stop()

        def on_error(self, error: Exception, batch: Batch | None) -> None:
            failures.append((error, batch.id if batch else None))

    outside = conn
    consumer = Failing(dsn, queue=queue)
    consumer.register()
    producer.insert_events(conn, [("t", "a"), ("t", "b")])
    tick()
    background(consumer).join(PATIENCE)
    first, second, third = (attempts.get_nowait() for _ in range(3))
    assert first == second == third
    assert counts(conn) == {"a": 1, "b": 1}
    assert [(type(error), batch_id) for error, batch_id in failures] == [
        (LookupError, first[0]),
        (LookupError, first[0]),
    ]


def test_on_error_can_end_the_run(
    dsn: str, conn: Connection, queue: str, producer: Producer, tick: Tick
) -> None:
    class Failing(Counter):
        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            raise LookupError

        def on_error(self, error: Exception, batch: Batch | None) -> None:
            raise error

    consumer = Failing(dsn, queue=queue)
    consumer.register()
    producer.insert_event(conn, "t", "a")
    tick()
    with pytest.raises(LookupError):
        consumer.run()
    with pytest.raises(LookupError):
        consumer.run_once()
    with pytest.raises(LookupError):
        consumer.run(until_empty=True)


CRASHING = """
import os, signal, sys
import pgqpy

class Crashing(pgqpy.Consumer):
    consumer = "counter"

    def process_batch(self, conn, batch):
        for event in batch:
            conn.execute("insert into seen values (%s, 1)", [event.data])
        os.kill(os.getpid(), signal.SIGKILL)

Crashing(sys.argv[1], queue=sys.argv[2]).run()
"""


def test_a_crash_between_effect_and_finish_delivers_again_and_the_effect_happens_once(
    dsn: str, conn: Connection, queue: str, producer: Producer, tick: Tick
) -> None:
    consumer = Counter(dsn, queue=queue)
    consumer.register()
    producer.insert_events(conn, [("t", "a"), ("t", "b")])
    tick()
    crashed = subprocess.run([sys.executable, "-c", CRASHING, dsn, queue], check=False)
    assert crashed.returncode == -signal.SIGKILL
    assert counts(conn) == {}
    (info,) = Admin(conn).get_consumer_info(queue)
    assert info.current_batch is not None
    consumer.run(until_empty=True)
    assert counts(conn) == {"a": 1, "b": 1}


STOPPED = """
import sys
import pgqpy

class Slow(pgqpy.Consumer):
    consumer = "counter"
    batch_size = 1

    def process_event(self, conn, event):
        conn.execute("insert into seen values (%s, 1)", [event.data])
        print("processing", flush=True)
        sys.stdin.readline()

Slow(sys.argv[1], queue=sys.argv[2]).run()
print("over", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_after_the_batch(
    dsn: str, conn: Connection, queue: str, producer: Producer, tick: Tick, number: signal.Signals
) -> None:
    Counter(dsn, queue=queue).register()
    for data in "ab":
        producer.insert_event(conn, "t", data)
        tick()
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, dsn, queue],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "processing\n"
    process.send_signal(number)
    out, _ = process.communicate("\n", timeout=PATIENCE)
    assert out == "over\n"
    assert process.returncode == 0
    assert counts(conn) == {"a": 1}


def test_signal_handlers_are_as_before_when_run_returns(dsn: str, queue: str) -> None:
    def handler(_number: int, _frame: object) -> None:
        pass

    before = signal.signal(signal.SIGTERM, handler)
    try:
        consumer = Counter(dsn, queue=queue)
        consumer.register()
        consumer.run(until_empty=True)
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_stop_ends_a_waiting_consumer_at_once(dsn: str, queue: str, background: Background) -> None:
    class Waiting(Counter):
        poll_interval = 3600

    consumer = Waiting(dsn, queue=queue)
    consumer.register()
    thread = background(consumer)
    consumer.stop()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_retried_event_comes_again_once_with_its_count_and_to_this_consumer_alone(
    dsn: str, conn: Connection, queue: str, producer: Producer, tick: Tick
) -> None:
    seen: list[tuple[str, str | None, int]] = []

    class Retrying(Counter):
        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            seen.append((self.consumer, event.data, event.retry))
            if self.consumer == "one" and event.data == "a" and event.retry < 2:
                event.retry(0)

    one, two = (Retrying(dsn, queue=queue, consumer=name) for name in ("one", "two"))
    one.register()
    two.register()
    producer.insert_events(conn, [("t", "a"), ("t", "b")])
    for _ in range(4):
        tick()
        one.run(until_empty=True)
        two.run(until_empty=True)
        Admin(conn).maint_retry_events()
    assert sorted(seen) == [
        ("one", "a", 0),
        ("one", "a", 1),
        ("one", "a", 2),
        ("one", "b", 0),
        ("two", "a", 0),
        ("two", "b", 0),
    ]


def test_a_retry_is_rolled_back_with_its_batch(
    dsn: str, conn: Connection, queue: str, producer: Producer, tick: Tick
) -> None:
    class Failing(Counter):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            for event in batch:
                event.retry(0)
            batch.finish(conn)
            raise LookupError

    consumer = Failing(dsn, queue=queue)
    consumer.register()
    producer.insert_event(conn, "t", "a")
    tick()
    with pytest.raises(LookupError):
        consumer.run_once()
    assert Admin(conn).maint_retry_events() == 0


def test_of_two_processes_with_one_name_only_one_has_its_effects(
    dsn: str, conn: Connection, queue: str, producer: Producer, tick: Tick
) -> None:
    class Overtaken(Counter):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            Counter(dsn, queue=queue).run(until_empty=True, handle_signals=False)
            super().process_batch(conn, batch)

    consumer = Overtaken(dsn, queue=queue)
    consumer.register()
    producer.insert_events(conn, [("t", "a"), ("t", "b")])
    tick()
    with pytest.raises(errors.BatchNotFound, match="run twice"):
        consumer.run_once()
    assert counts(conn) == {"a": 1, "b": 1}


STATE = "select state, backend_xid, backend_xmin from pg_stat_activity where pid = %s"


def test_a_batch_holds_no_transaction_until_its_connection_is_used(
    dsn: str, conn: Connection, queue: str, tick: Tick
) -> None:
    states: list[tuple[Any, ...]] = []
    outside = conn

    class Looking(Counter):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            pid = [conn.info.backend_pid]
            states.extend(outside.execute(STATE, pid))
            conn.execute("select")
            states.extend(outside.execute(STATE, pid))

    consumer = Looking(dsn, queue=queue)
    consumer.register()
    tick()
    assert consumer.run_once()
    assert states == [("idle", None, None), ("idle in transaction", None, None)]


@pytest.mark.parametrize("used", [False, True])
def test_process_batch_cannot_end_its_transaction(
    dsn: str, conn: Connection, queue: str, tick: Tick, used: bool
) -> None:
    class Ending(Counter):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            if used:
                conn.execute("insert into seen values ('lost', 1)")
            for end in (conn.commit, conn.rollback, lambda: conn.set_autocommit(True)):
                with pytest.raises(psycopg.ProgrammingError):
                    end()
            raise ZeroDivisionError

    consumer = Ending(dsn, queue=queue)
    consumer.register()
    tick()
    with pytest.raises(ZeroDivisionError):
        consumer.run_once()
    assert counts(conn) == {}
    assert Counter(dsn, queue=queue).run_once()


def test_what_is_retried_and_the_end_of_the_batch_are_one_transaction(
    dsn: str, conn: Connection, queue: str, producer: Producer, tick: Tick
) -> None:
    class Putting(Counter):
        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            event.retry(3600)

    consumer = Putting(dsn, queue=queue)
    consumer.register()
    producer.insert_event(conn, "t", "a")
    tick()
    assert consumer.run_once()
    put = conn.execute("select xmin::text from pgq.delayed").fetchall()
    assert len(put) == 1
    finished = conn.execute(
        "select xmin::text from pgq.position_0 order by pos_registration desc, pos_nr desc limit 1"
    )
    assert finished.fetchall() == put


@pytest.mark.parametrize("used", [False, True])
def test_a_transaction_inside_a_batch_is_a_savepoint(
    dsn: str, conn: Connection, queue: str, tick: Tick, used: bool
) -> None:
    class Saving(Counter):
        fails = True

        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            if used:
                conn.execute("insert into seen values ('before', 1)")
            with conn.transaction():
                conn.execute("insert into seen values ('inside', 1)")
            with suppress(ZeroDivisionError), conn.transaction():
                conn.execute("insert into seen values ('undone', 1)")
                raise ZeroDivisionError
            if self.fails:
                raise KeyError

    consumer = Saving(dsn, queue=queue)
    consumer.register()
    tick()
    with pytest.raises(KeyError):
        consumer.run_once()
    assert counts(conn) == {}
    consumer.fails = False
    consumer.run_once()
    assert counts(conn) == {"inside": 1} | ({"before": 1} if used else {})


@pytest.mark.parametrize("level", list(pgqpy.IsolationLevel))
def test_batches_are_processed_in_the_isolation_level_that_is_asked_for(
    dsn: str, conn: Connection, queue: str, tick: Tick, level: pgqpy.IsolationLevel
) -> None:
    shown: list[str] = []

    class Isolated(Counter):
        isolation_level = level

        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            shown.extend(conn.execute("show transaction_isolation").fetchone() or ())

    consumer = Isolated(dsn, queue=queue)
    consumer.register()
    tick()
    assert consumer.run_once()
    assert shown == [level.name.lower().replace("_", " ")]


def test_only_events_of_the_wanted_types_are_sent(
    dsn: str, conn: Connection, queue: str, producer: Producer, tick: Tick
) -> None:
    class Choosy(Counter):
        event_types = frozenset({"wanted", 'it\'s "quoted" {too}, \\ %s'})

    consumer = Choosy(dsn, queue=queue)
    consumer.register()
    for event_type in ("wanted", "other", 'it\'s "quoted" {too}, \\ %s', "", None):
        producer.insert_event(conn, event_type, event_type)
    tick()
    consumer.run(until_empty=True)
    assert counts(conn) == dict.fromkeys(Choosy.event_types, 1)


def test_small_ticks_are_collected_up_to_the_batch_size(
    dsn: str, conn: Connection, queue: str, producer: Producer
) -> None:
    sizes: list[int] = []

    class Collecting(Counter):
        batch_size = 4

        def on_batch(self, stats: BatchStats) -> None:
            sizes.append(stats.events)

    consumer = Collecting(dsn, queue=queue)
    consumer.register()
    # Forced ticks would jump over event ids, and be taken for large.
    Admin(conn).set_queue_config(queue, "ticker_max_count", 1)
    for number in range(10):
        producer.insert_event(conn, "t", str(number))
        assert Admin(conn).ticker(queue)
    consumer.run(until_empty=True)
    assert sizes == [4, 4, 2]


def test_with_a_minimal_lag_young_batches_wait(
    dsn: str, conn: Connection, queue: str, producer: Producer, tick: Tick
) -> None:
    class Behind(Counter):
        min_lag: timedelta | None = timedelta(hours=1)

    consumer = Behind(dsn, queue=queue)
    consumer.register()
    producer.insert_event(conn, "t", "a")
    tick()
    assert not consumer.run_once()
    consumer.min_lag = timedelta(0)
    assert consumer.run_once()
    assert counts(conn) == {"a": 1}


def test_a_batch_older_than_the_maximal_lag_is_reported_and_processed(
    dsn: str,
    conn: Connection,
    queue: str,
    producer: Producer,
    tick: Tick,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Late(Counter):
        max_lag = timedelta(0)

    consumer = Late(dsn, queue=queue)
    consumer.register()
    producer.insert_event(conn, "t", "a")
    tick()
    assert consumer.run_once()
    assert counts(conn) == {"a": 1}
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.__dict__["queue"] == queue
    assert record.__dict__["lag"] > 0


def test_on_lag_can_end_the_run_with_the_batch_unprocessed(
    dsn: str, conn: Connection, queue: str, producer: Producer, tick: Tick
) -> None:
    class Late(Counter):
        max_lag = timedelta(0)

        def on_lag(self, lag: timedelta, batch: Batch) -> None:
            raise TimeoutError(lag)

    consumer = Late(dsn, queue=queue)
    consumer.register()
    producer.insert_event(conn, "t", "a")
    tick()
    with pytest.raises(TimeoutError):
        consumer.run()
    assert counts(conn) == {}


def test_on_batch_tells_what_was_done(
    dsn: str, conn: Connection, queue: str, producer: Producer, tick: Tick
) -> None:
    done: list[BatchStats] = []

    class Measured(Counter):
        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            event.retry(60)

        def on_batch(self, stats: BatchStats) -> None:
            done.append(stats)

    consumer = Measured(dsn, queue=queue)
    consumer.register()
    producer.insert_events(conn, [("t", data) for data in "abc"])
    tick()
    consumer.run_once()
    (stats,) = done
    assert (stats.queue, stats.consumer) == (queue, "counter")
    assert (stats.events, stats.retried) == (3, 3)
    assert 0 < stats.seconds < PATIENCE


def test_a_tick_wakes_a_consumer_by_notify_whatever_the_poll_interval(
    dsn: str,
    conn: Connection,
    queue: str,
    producer: Producer,
    tick: Tick,
    background: Background,
) -> None:
    done: queues.Queue[BatchStats] = queues.Queue()

    class Waiting(Counter):
        poll_interval = 3600

        def on_batch(self, stats: BatchStats) -> None:
            done.put(stats)

    consumer = Waiting(dsn, queue=queue)
    consumer.register()
    background(consumer)
    for data in "abc":
        producer.insert_event(conn, "t", data)
        tick()
        while data not in counts(conn):
            done.get(timeout=PATIENCE)


def test_a_tick_during_a_batch_is_followed_by_its_batch_whatever_the_poll_interval(
    dsn: str,
    conn: Connection,
    queue: str,
    producer: Producer,
    tick: Tick,
    background: Background,
) -> None:
    """Its notification came while the consumer was not listening."""
    done: queues.Queue[BatchStats] = queues.Queue()
    more = ["b", "c", "d"]

    class Busy(Counter):
        poll_interval = 3600

        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            super().process_event(conn, event)
            if event.data in {"a", "b", "c"}:
                producer.insert_event(outside, "t", more.pop(0))
                tick()

        def on_batch(self, stats: BatchStats) -> None:
            done.put(stats)

    outside = conn
    consumer = Busy(dsn, queue=queue)
    consumer.register()
    background(consumer)
    # The third is heard of for certain: the consumer listens when it first has to wait.
    for data in "12a":
        producer.insert_event(conn, "t", data)
        tick()
        while data not in counts(conn):
            done.get(timeout=PATIENCE)
    while "d" not in counts(conn):
        done.get(timeout=PATIENCE)


def test_what_has_become_old_enough_is_found_by_polling_though_listen_works(
    dsn: str,
    conn: Connection,
    queue: str,
    producer: Producer,
    tick: Tick,
    background: Background,
) -> None:
    done: queues.Queue[BatchStats] = queues.Queue()

    class Behind(Counter):
        min_lag = timedelta(milliseconds=100)
        poll_interval = 1  # not the minute until a notification is certain

        def on_batch(self, stats: BatchStats) -> None:
            done.put(stats)

    consumer = Behind(dsn, queue=queue)
    consumer.register()
    background(consumer)
    # It was surely notified of the third tick: it listens when it first has to wait.
    for data in "abc":
        producer.insert_event(conn, "t", data)
        tick()
        while data not in counts(conn):
            done.get(timeout=PATIENCE)


def test_a_consumer_that_cannot_listen_polls(
    dsn: str,
    conn: Connection,
    queue: str,
    producer: Producer,
    tick: Tick,
    background: Background,
) -> None:
    done = threading.Event()

    class Polling(Counter):
        poll_interval = 0.01

        def on_batch(self, stats: BatchStats) -> None:
            done.set()

    consumer = Polling(dsn, queue=queue, listen_dsn="host=/nowhere")
    consumer.register()
    background(consumer)
    producer.insert_event(conn, "t", "a")
    tick()
    assert done.wait(PATIENCE)
    assert counts(conn) == {"a": 1}


def test_a_lost_listening_connection_is_replaced(
    dsn: str,
    conn: Connection,
    queue: str,
    producer: Producer,
    tick: Tick,
    background: Background,
) -> None:
    done: queues.Queue[BatchStats] = queues.Queue()

    class Waiting(Counter):
        poll_interval = 3600

        def on_batch(self, stats: BatchStats) -> None:
            done.put(stats)

    def listeners() -> list[int]:
        return [
            pid
            for (pid,) in conn.execute(
                "select pid from pg_stat_activity"
                " where datname = current_database() and application_name = 'pgqpy listen'"
                " and query like 'select pg_notify%' and state = 'idle'"
            )
        ]

    consumer = Waiting(dsn, queue=queue)
    consumer.register()
    background(consumer)
    for data in "ab":
        producer.insert_event(conn, "t", data)
        tick()
        while data not in counts(conn):
            done.get(timeout=PATIENCE)
        while not (pids := listeners()):
            pass
        conn.execute("select pg_terminate_backend(%s, 10000)", pids)


def test_run_registers_a_consumer_that_is_not(dsn: str, queue: str) -> None:
    consumer = Counter(dsn, queue=queue)
    with pytest.raises(errors.ConsumerNotRegistered) as info:
        consumer.run_once()
    assert info.value.hint
    consumer.run(until_empty=True)
    assert not consumer.run_once()
    assert not consumer.register()


def test_a_queue_that_is_not_there_is_told_so(dsn: str) -> None:
    consumer = Counter(dsn, queue="missing")
    for start in (consumer.register, consumer.run):
        with pytest.raises(errors.QueueNotFound) as info:
            start()
        assert info.value.hint


def test_a_database_without_the_schema_is_told_so(empty_dsn: str) -> None:
    with pytest.raises(errors.SchemaMissing, match="migrate"):
        Counter(empty_dsn, queue="q").run()
    with pytest.raises(errors.SchemaMissing, match="migrate"):
        Counter(empty_dsn, queue="q").register()


def test_a_server_that_is_not_there_is_told_at_once_and_without_the_password() -> None:
    consumer = Counter("postgresql://me:secret@localhost:1/db", queue="q")
    with pytest.raises(errors.ConnectionFailed) as info:
        consumer.run()
    assert "secret" not in str(info.value)
    assert "secret" not in str(info.value.__cause__)


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
    subscription = Subscription(dsn, queue)
    assert not subscription.works
    try:
        assert subscription.open()
        assert (subscription.works, subscription.newest) == (True, 0)
    finally:
        subscription.close()
    assert not subscription.works
