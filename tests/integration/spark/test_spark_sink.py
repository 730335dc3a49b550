"""df.write and df.writeStream into a queue: all of it at once, once, and in order."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import errors
from psycopg.conninfo import make_conninfo

import pgqpy
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_ticker import eventually
from tests.fixtures.spark_ops import run_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from pgqpy_consumers.spark._sink import PgqWriter, Staged

pytestmark = pytest.mark.spark

# Enough for a table: a task's first rows travel in its message.
MANY = 5_000


def sent(conn: Connection, columns: str = "ev_data") -> list[tuple[Any, ...]]:
    """All events, in order."""
    query = f"select {columns} from pgq.event_template order by ev_id"
    return conn.execute(query.encode()).fetchall()


STAGED = "select count(*) from pg_class where relnamespace = 'pgq_staging'::regnamespace"


def staging_tables(conn: Connection) -> list[str]:
    query = "select oid::regclass from pg_class where relnamespace = 'pgq_staging'::regnamespace"
    return [name for (name,) in conn.execute(query)]


def write(df: DataFrame, dsn: str, queue: str) -> None:
    df.write.format("pgq").mode("append").option("dsn", dsn).option("queue", queue).save()


# --- with Spark


def test_a_dataframe_becomes_events_in_its_order_in_one_transaction(
    spark: SparkSession, conn: Connection, dsn: str, queue: str
) -> None:
    df = spark.range(0, 3 * MANY, 1, 3).selectExpr(
        "if(id % 2 = 0, null, 'type') as ev_type",
        "repeat(id, 20) as ev_data",
        "if(id = 7, '', null) as ev_extra2",
        "id",
    )
    # Partitions of many rows, of a few, and of none.
    df = df.filter(f"id < {MANY} or id between {MANY + 10} and {MANY + 14}").drop("id")
    write(df, dsn, queue)

    expected = [
        ("type" if n % 2 else None, str(n) * 20, None, "" if n == 7 else None)
        for n in [*range(MANY), *range(MANY + 10, MANY + 15)]
    ]
    assert sent(conn, "ev_type, ev_data, ev_extra1, ev_extra2") == expected
    assert len(set(sent(conn, "ev_txid"))) == 1
    assert staging_tables(conn) == []


def test_a_task_that_is_retried_neither_loses_nor_doubles(
    spark: SparkSession, conn: Connection, dsn: str, queue: str
) -> None:
    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1 and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails when all is written")

    df = spark.range(0, 2 * MANY, 1, 2).selectExpr("'t' as ev_type", "repeat(id, 20) as ev_data")
    write(df.mapInArrow(fail_once, df.schema), dsn, queue)
    assert Counter(sent(conn)) == Counter((str(n) * 20,) for n in range(2 * MANY))
    assert staging_tables(conn) == []


def test_a_job_that_fails_sends_nothing_and_leaves_nothing(
    spark: SparkSession, conn: Connection, dsn: str, queue: str
) -> None:
    def fail_late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1:
            with psycopg.connect(dsn, autocommit=True) as other:
                eventually(other, STAGED)
            raise RuntimeError("the other task has written its table")
        yield from batches

    df = spark.range(0, 2 * MANY, 1, 2).selectExpr("'t' as ev_type", "repeat(id, 20) as ev_data")
    with pytest.raises(Exception, match="has written its table"):
        write(df.mapInArrow(fail_late, df.schema), dsn, queue)
    assert sent(conn) == []
    assert staging_tables(conn) == []


def test_a_stream_sends_each_micro_batch_once(
    spark: SparkSession, conn: Connection, dsn: str, queue: str, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()

    def run() -> None:
        lines = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
        events = lines.text(str(source)).selectExpr("'line' as ev_type", "value as ev_data")
        writer = events.writeStream.format("pgq").queryName("to a queue").outputMode("append")
        run_once(writer.options(dsn=dsn, queue=queue, writer="lines"), checkpoint)

    few, many = ["one", "two"], [f"{n} {'x' * 100}" for n in range(MANY)]
    (source / "1.txt").write_text("\n".join(few))
    run()
    (source / "2.txt").write_text("\n".join(many))
    run()
    assert sent(conn) == [(line,) for line in few + many]

    # As if the driver had died before it noted that the micro-batch is done: it comes again.
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink()
    run()
    assert sent(conn) == [(line,) for line in few + many]
    assert staging_tables(conn) == []

    shutil.rmtree(checkpoint)
    with pytest.raises(Exception, match=r"another stream(.|\n)*forget_stream_writer"):
        run()
    assert len(sent(conn)) == len(few) + len(many)
    conn.execute("select pgq.forget_stream_writer(%s, 'lines')", [queue])
    run()
    assert len(sent(conn)) == 2 * (len(few) + len(many))


# --- without a JVM: what Spark calls, called


def schema(*columns: str) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField(name, StringType()) for name in columns])


EVENT = ("ev_type", "ev_data")


def writer(dsn: str, queue: str) -> PgqWriter:
    from pgqpy_consumers.spark._options import WriteOptions
    from pgqpy_consumers.spark._sink import PgqWriter

    return PgqWriter(WriteOptions(dsn=dsn, queue=queue), schema(*EVENT))


def batches(payloads: Sequence[str]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([pa.array(["t"] * len(payloads)), pa.array(payloads)], names=list(EVENT))


PAYLOADS = [f"{n} {'x' * 100}" for n in range(MANY)]


def test_an_attempt_whose_message_is_not_accepted_is_not_sent(
    conn: Connection, dsn: str, queue: str
) -> None:
    job = writer(dsn, queue)
    winner = job.write(batches(PAYLOADS))
    job.write(batches(PAYLOADS))
    assert len(staging_tables(conn)) == 2
    job.commit([winner])
    assert sent(conn) == [(payload,) for payload in PAYLOADS]
    assert staging_tables(conn) == []


def test_what_is_being_written_when_the_job_fails_is_dropped_too(
    connect: Connect, conn: Connection, dsn: str, queue: str
) -> None:
    conn.execute("alter function pgq.staging_tables(text) set lock_timeout = '1h'")
    job = writer(dsn, queue)
    straggler = connect(autocommit=False)
    with ThreadPoolExecutor(1) as pool:
        straggler.execute("select pgq.create_staging(%s)", [job._job])
        aborted = pool.submit(job.abort, [])
        eventually(
            conn, "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        )
        straggler.commit()
        aborted.result()
    assert staging_tables(conn) == []


def test_rows_that_a_crash_took_are_missed(conn: Connection, dsn: str, queue: str) -> None:
    job = writer(dsn, queue)
    messages: list[Any] = [job.write(batches(PAYLOADS)), job.write(batches(["kept"]))]
    from pgqpy_consumers.spark._sink import StagedRowsLost

    (table,) = staging_tables(conn)
    for damage in ("truncate", "drop table"):
        conn.execute(f"{damage} {table}".encode())
        with pytest.raises(StagedRowsLost, match=f"{MANY:,}"):
            job.commit(messages)
        assert sent(conn) == []


def test_the_role_of_producers_suffices_and_reaches_nothing_of_others(
    connect: Connect, conn: Connection, dsn: str, queue: str
) -> None:
    for role in ("test_sink", "test_other"):
        conn.execute(f"drop role if exists {role}".encode())
        conn.execute(f"create role {role} login in role pgq_writer".encode())
    try:
        job = writer(make_conninfo(dsn, user="test_sink"), queue)
        staged = job.write(batches(PAYLOADS))
        other = connect(make_conninfo(dsn, user="test_other"))
        (table,) = staging_tables(conn)
        for statement in ("select from", "insert into", "drop table", "truncate"):
            values = " values ('t')" if statement == "insert into" else ""
            with pytest.raises(errors.InsufficientPrivilege):
                other.execute(f"{statement} {table}{values}".encode())
        job.commit([staged])
        assert len(sent(conn)) == MANY
        assert staging_tables(conn) == []
    finally:
        conn.execute("drop owned by test_sink, test_other cascade")
        conn.execute("drop role test_sink, test_other")


def test_maintenance_drops_what_killed_jobs_left_and_nothing_of_running_ones(
    connect: Connect, conn: Connection, dsn: str, queue: str
) -> None:
    def left(job: PgqWriter) -> Staged:
        return job.write(batches(PAYLOADS))

    left(writer(dsn, queue))
    assert ("pgq.maint_staging", None) in conn.execute("select * from pgq.maint_operations()")
    assert ops.value(conn, "select pgq.maint_staging()") == 0, "it is younger than a day"

    running = connect(dsn, autocommit=False)
    done = connect(dsn)
    for session in (done, running):
        session.execute("select pgq.create_staging('running')")
    # The job has a table that is done, and a task that is writing.
    assert ops.value(conn, "select pgq.maint_staging('0')") == 1
    (table,) = staging_tables(conn)
    assert table.startswith("pgq_staging.running_")
    running.rollback()
    # A session is reading the table: it is left for the next time.
    reader = connect(dsn, autocommit=False)
    reader.execute(f"select from {table}".encode())
    assert ops.value(conn, "select pgq.maint_staging('0')") == 0
    reader.rollback()
    assert ops.value(conn, "select pgq.maint_staging('0')") == 1
    assert staging_tables(conn) == []


def test_a_name_of_a_writer_is_one_stream_that_goes_forward(conn: Connection, queue: str) -> None:
    def begin(stream: str, batch: int, name: str = "name") -> bool:
        with pgqpy.errors.translate_errors():
            return bool(
                ops.value(
                    conn,
                    "select pgq.write_stream_batch(%s, %s, %s, %s)",
                    queue,
                    name,
                    stream,
                    batch,
                )
            )

    assert begin("a", 0)
    assert not begin("a", 0)
    assert begin("a", 1)
    assert begin("b", 0, "another name")
    with pytest.raises(pgqpy.errors.WriterInUse, match="another stream"):
        begin("b", 2)
    with pytest.raises(pgqpy.errors.WriterInUse, match="set back"):
        begin("a", 0)
    assert ops.value(conn, "select pgq.forget_stream_writer(%s, 'name')", queue) == 1
    assert begin("b", 2)
    # The names of a queue go with it.
    assert ops.value(conn, "select pgq.drop_queue(%s)", queue) == 1
    assert ops.value(conn, "select count(*) from pgq.stream_writer") == 0


def test_two_runs_of_one_stream_send_a_micro_batch_once(connect: Connect, queue: str) -> None:
    begin = "select pgq.write_stream_batch(%s, 'name', 'stream', 0)"
    first, second = connect(autocommit=False), connect(autocommit=False)
    assert ops.value(first, begin, queue)
    second.execute("set lock_timeout = '1ms'")
    with pytest.raises(errors.LockNotAvailable):
        second.execute(begin, [queue])
    second.rollback()
    first.commit()
    assert not ops.value(second, begin, queue)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("ev_type", "ev_data", "ev_id"), "no column ev_id(.|\n)*ev_extra4"),
        (("ev_type", "ev_extra1"), "needs column ev_data"),
    ],
)
def test_columns_that_events_do_not_have_are_refused(columns: Sequence[str], message: str) -> None:
    from pgqpy_consumers.spark._sink import InvalidColumns, check_columns

    with pytest.raises(InvalidColumns, match=message):
        check_columns(schema(*columns))


def test_a_column_that_is_no_text_is_refused_with_the_cast() -> None:
    from pyspark.sql.types import LongType

    from pgqpy_consumers.spark._sink import InvalidColumns, check_columns

    with pytest.raises(InvalidColumns, match=r'bigint(.|\n)*col\("ev_extra1"\).cast\("string"\)'):
        check_columns(schema(*EVENT).add("ev_extra1", LongType()))


@pytest.mark.parametrize(("data", "many"), [(b"a\0b", 1), (b"a\0b", MANY), (b"\xff", 1)])
def test_text_that_postgresql_cannot_store_sends_nothing(
    conn: Connection, dsn: str, queue: str, data: bytes, many: int
) -> None:
    texts = pa.array([*PAYLOADS[1:many], data.decode("latin-1")])
    if data == b"\xff":
        texts = pa.array([data]).view(pa.string())
    job = writer(dsn, queue)

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array(["t"] * len(texts)), texts], names=list(EVENT))

    with pytest.raises(pgqpy.errors.InvalidPayload):
        job.commit([job.write(rows())])
    assert sent(conn) == []
    assert staging_tables(conn) == []


def test_a_queue_that_is_not_there_is_noticed_before_spark_computes(dsn: str, queue: str) -> None:
    with pytest.raises(pgqpy.errors.QueueNotFound):
        writer(dsn, f"not {queue}")
