"""SparkConsumer: a batch is one DataFrame, read in parallel, exactly, as often as one likes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

import pytest

import pgqpy
from pgqpy.errors import ConnectionFailed
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_example import SPARK_PATIENCE
from tests.fixtures.fix_ticker import eventually
from tests.fixtures.spark_ops import insert_many

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pgqpy_consumers.spark import SparkConsumer

pytestmark = pytest.mark.spark

Method: TypeAlias = "Callable[[SparkConsumer, pgqpy.Batch, DataFrame], None]"
MakeConsumer: TypeAlias = "Callable[..., SparkConsumer]"


@pytest.fixture
def consumer(spark: SparkSession, dsn: str, queue: str) -> MakeConsumer:
    """``consumer(method)``: registered on `queue`, calls the function for each batch."""
    from pgqpy_consumers.spark import SparkConsumer

    def make(method: Method, dsn: str = dsn, **attributes: object) -> SparkConsumer:
        class TestConsumer(SparkConsumer):
            consumer = "spark"
            batch_size = None

            def process_batch(self, spark: SparkSession, batch: pgqpy.Batch, df: DataFrame) -> None:
                method(self, batch, df)

        for name, value in {"queue": queue, **attributes}.items():
            setattr(TestConsumer, name, value)
        made = TestConsumer(dsn, spark=spark)
        made.register()
        return made

    return make


def test_a_batch_of_30000_events_is_what_was_committed(
    consumer: MakeConsumer, conn: Connection, connect: Connect, queue: str
) -> None:
    seen: list[tuple[int, str, str | None, str | None]] = []
    counts: list[int] = []
    partitions: list[int] = []

    def method(_: SparkConsumer, batch: pgqpy.Batch, df: DataFrame) -> None:
        counts.extend(df.count() for _ in range(2))
        partitions.append(df.rdd.getNumPartitions())
        columns = ("ev_id", "ev_data", "ev_extra1", "ev_extra2")
        seen.extend(tuple(row) for row in df.select(*columns).collect())

    counting = consumer(method)
    late = connect(autocommit=False)
    committed = insert_many(late, queue, 1_500, "late")
    for part in range(9):
        committed += insert_many(conn, queue, 3_000, f"part {part} ")
    lost = connect(autocommit=False)
    insert_many(lost, queue, 1_500, "lost")
    lost.rollback()
    late.commit()
    committed += insert_many(conn, queue, 1_500, "last")
    ops.tick(conn, queue)

    assert counting.run_once()
    truth = conn.execute(
        "select ev_id, ev_data, ev_extra1, ev_extra2 from pgq.event_template order by ev_id"
    ).fetchall()
    assert counts == [30_000, 30_000]
    assert partitions == [2]
    assert [row[0] for row in seen] == sorted(committed)
    assert seen == truth


def test_what_computes_for_long_after_it_wrote_is_committed(
    consumer: MakeConsumer, conn: Connection, connect: Connect, dsn: str, queue: str
) -> None:
    conn.execute("create table result (n bigint)")
    timeouts = ["idle_in_transaction_session_timeout"]
    if conn.info.server_version >= 170000:
        timeouts.append("transaction_timeout")
    elsewhere = connect()
    begun: list[int] = []

    def method(it: SparkConsumer, batch: pgqpy.Batch, df: DataFrame) -> None:
        begun.append(batch.id)
        it.conn.execute("set transaction isolation level repeatable read")
        it.conn.execute("insert into result values (1)")
        elsewhere.execute("select pg_sleep(0.6)")
        it.conn.execute("insert into result values (2)")

    computing = consumer(method)

    def run() -> bool:
        # On a busy machine the server may end the session before it has come to the batch.
        with suppress(ConnectionFailed):
            return computing.run_once()
        assert begun == []
        return False

    for name in timeouts:
        conn.execute(f"alter database {conn.info.dbname} set {name} = '300ms'")
    insert_many(conn, queue, 1)
    ops.tick(conn, queue)
    wait_until(run)
    assert elsewhere.execute("select n from result order by n").fetchall() == [(1,), (2,)]


def test_slices_are_exact_while_producers_go_on(
    consumer: MakeConsumer, conn: Connection, connect: Connect, queue: str
) -> None:
    stop = threading.Event()
    committed: list[int] = []
    lock = threading.Lock()

    def produce(mine: Connection) -> None:
        # Ten thousand events a second at most, so that batches stay small.
        while not stop.wait(0.03):
            ids = insert_many(mine, queue, 100)
            if ids[0] % 3 == 0:
                mine.rollback()
                continue
            mine.commit()
            with lock:
                committed.extend(ids)

    delivered: list[int] = []

    def method(_: SparkConsumer, batch: pgqpy.Batch, df: DataFrame) -> None:
        before = len(committed)
        ids = [row.ev_id for row in df.select("ev_id").collect()]
        while len(committed) == before and not stop.is_set():
            stop.wait(0.01)
        assert len(ids) == len(set(ids))
        assert [row.ev_id for row in df.select("ev_id").collect()] == ids
        delivered.extend(ids)

    counting = consumer(method, num_partitions=3)
    threads = [
        threading.Thread(target=produce, args=(connect(autocommit=False),)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            while len(committed) < len(delivered) + 2_000:
                stop.wait(0.01)
            ops.tick(conn, queue)
            assert counting.run_once()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    ops.tick(conn, queue)
    assert counting.run_once()
    assert sorted(delivered) == sorted(committed)


def test_after_an_exception_the_same_dataframe_comes_again(
    consumer: MakeConsumer, conn: Connection, queue: str
) -> None:
    conn.execute("create table effect (batch_id bigint, events bigint)")
    calls: list[tuple[int, list[int]]] = []

    def method(self: SparkConsumer, batch: pgqpy.Batch, df: DataFrame) -> None:
        calls.append((batch.id, [row.ev_id for row in df.collect()]))
        self.conn.execute("insert into effect values (%s, %s)", (batch.id, df.count()))
        if len(calls) == 1:
            raise ZeroDivisionError

    counting = consumer(method)
    ids = insert_many(conn, queue, 10)
    ops.tick(conn, queue)
    with pytest.raises(ZeroDivisionError):
        counting.run_once()
    assert conn.execute("select count(*) from effect").fetchone() == (0,)
    insert_many(conn, queue, 10)
    ops.tick(conn, queue)

    assert counting.run_once()
    assert calls == [(calls[0][0], ids)] * 2
    assert conn.execute("select * from effect").fetchall() == [(calls[0][0], 10)]
    with pytest.raises(RuntimeError, match="only while process_batch runs"):
        _ = counting.conn


def test_a_batch_that_failed_comes_again_after_a_pause(
    consumer: MakeConsumer, conn: Connection, queue: str
) -> None:
    calls: list[int] = []

    def method(self: SparkConsumer, batch: pgqpy.Batch, df: DataFrame) -> None:
        calls.append(batch.id)
        if len(calls) < 3:
            raise ZeroDivisionError
        self.stop()

    failing = consumer(method, backoff_first=0.01)
    insert_many(conn, queue, 10)
    ops.tick(conn, queue)
    failing.run()
    assert calls == [calls[0]] * 3
    assert not failing.run_once()


def test_spark_gets_nothing_until_enough_has_gathered(
    consumer: MakeConsumer, conn: Connection, queue: str
) -> None:
    counts: list[int] = []

    def method(self: SparkConsumer, batch: pgqpy.Batch, df: DataFrame) -> None:
        counts.append(df.count())
        self.stop()

    collecting = consumer(
        method,
        batch_size=100_000,
        collect_for=timedelta(hours=1),
        # A forced tick lets the event sequence jump.
        collect_bytes=10 * (len("kind" + "data " + "one" + "three") + 1),
        poll_interval=0.01,
    )
    thread = threading.Thread(target=collecting.run)
    thread.start()
    try:
        insert_many(conn, queue, 9)
        ops.tick(conn, queue)
        [(time,)] = conn.execute("select clock_timestamp()")
        eventually(
            conn,
            "select count(*) > 0 from pg_stat_activity where application_name like 'pgqpy spark %%'"
            " and query_start > %s and state = 'idle' and query ~ 'sub_batch is not null'",
            time,
        )
        assert counts == []
        insert_many(conn, queue, 1)
        ops.tick(conn, queue)
        thread.join(SPARK_PATIENCE)
        assert counts == [10]
    finally:
        collecting.stop()
        thread.join()


def test_a_dataframe_cannot_be_read_when_its_batch_is_finished(
    consumer: MakeConsumer, conn: Connection, queue: str
) -> None:
    from pyspark.errors import PythonException

    kept: list[DataFrame] = []
    counting = consumer(lambda _, __, df: kept.append(df))
    insert_many(conn, queue, 10)
    ops.tick(conn, queue)
    assert counting.run_once()
    with pytest.raises(PythonException, match=r"is finished.*only inside process_batch"):
        kept[0].count()


def test_values_at_the_edges_arrive_as_they_are(
    consumer: MakeConsumer, conn: Connection, queue: str
) -> None:
    seen: list[tuple[object, ...]] = []

    def method(_: SparkConsumer, batch: pgqpy.Batch, df: DataFrame) -> None:
        seen.extend(tuple(row) for row in df.collect())

    counting = consumer(method, event_types=["it's", ""])
    raw = "select pgq.insert_event_raw(%s, null, %s, null, null, %s, %s, null, null, null, null)"
    for time, kind, data in [
        ("2024-02-29 12:34:56.789012+00", "it's", ""),
        ("infinity", "", "ünïcödé 🛫"),
        ("-infinity", "", None),
        ("20000-01-01", "", "x" * 1_000_000),
        ("2024-02-29 12:34:56+00", "another type", "not wanted"),
    ]:
        conn.execute(raw, (queue, time, kind, data))
    ops.tick(conn, queue)
    assert counting.run_once()
    assert [row[4:6] for row in seen] == [
        ("it's", ""), ("", "ünïcödé 🛫"), ("", None), ("", "x" * 1_000_000),
    ]  # fmt: skip
    # A time that Spark cannot hold is null and not another time.
    assert [str(row[1]) for row in seen] == ["2024-02-29 12:34:56.789012", *["None"] * 3]


def test_a_batch_without_events_is_an_empty_dataframe(
    consumer: MakeConsumer, conn: Connection, queue: str
) -> None:
    from pgqpy_consumers.spark import EVENT_SCHEMA

    counts: list[int] = []

    def method(_: SparkConsumer, batch: pgqpy.Batch, df: DataFrame) -> None:
        assert df.schema == EVENT_SCHEMA
        counts.append(df.count())

    counting = consumer(method)
    ops.tick(conn, queue)
    assert counting.run_once()
    assert not counting.run_once()
    assert counts == [0]


def test_the_session_that_is_active_is_used(
    spark: SparkSession, consumer: MakeConsumer, dsn: str
) -> None:
    made = type(consumer(lambda *_: None))(dsn)
    assert made.spark.sparkContext is spark.sparkContext
