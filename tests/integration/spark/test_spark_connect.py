"""Through a Spark Connect server: the same promises as in classic Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_connect import PASSWORD, ConnectServer
from tests.fixtures.fix_db import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import pgqpy

pytestmark = pytest.mark.spark

InClient: TypeAlias = Callable[..., Any]
QUEUE = "test_queue"
SCHEMA = "ev_id bigint, ev_operation string, id int, amount decimal(10,2), at timestamp"


def load(spark: SparkSession, dsn: str, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("pgq").options(dsn=dsn, queue=QUEUE, **options)
    return (reader if schema is None else reader.schema(schema)).load()


def produce(conn: Connection, *data: str) -> None:
    for each in data:
        ops.insert(conn, QUEUE, each)
    ops.tick(conn, QUEUE)


# --- in the client


def count_again_and_again(spark: SparkSession, dsn: str) -> list[tuple[int, ...]]:
    from pgqpy_consumers.spark import pinned

    frames = [load(spark, dsn), load(spark, dsn, "ev_data string")]
    counts = [tuple(df.count() for df in frames)]
    frames += [pinned(load(spark, dsn)), pinned(load(spark, dsn, "ev_data string"))]
    counts.append(tuple(df.count() for df in frames))
    with psycopg.connect(dsn, autocommit=True) as conn:
        produce(conn, "c", "d")
    counts.append(tuple(df.count() for df in frames))
    # As if many other plans had been sent meanwhile.
    spark.conf.set("spark.connect.session.planCache.enabled", "false")
    counts.append(tuple(df.count() for df in frames))
    spark.conf.unset("spark.connect.session.planCache.enabled")
    return counts


def read_some(spark: SparkSession, dsn: str) -> tuple[list[str], list[Any]]:
    df = load(spark, dsn, columns="ev_data, ev_type", where="ev_data > 'a'", numPartitions="3")
    return df.columns, sorted(row.ev_data for row in df.collect())


def read_changes(spark: SparkSession, dsn: str) -> tuple[list[Any], list[Any], list[Any]]:
    from pgqpy_consumers.spark import decode_payload, latest_changes, latest_rows, table_schema

    schema = table_schema(dsn, "public.orders")
    options = {"dsn": dsn, "queue": QUEUE, "payload": "row"}
    changes = spark.read.format("pgq").options(**options).schema(schema).load()
    columns = ["ev_operation", "id", "amount", "at"]
    rows = latest_rows(changes).select(*columns).orderBy("id").collect()
    events = spark.read.format("pgq").options(dsn=dsn, queue=QUEUE).load()
    latest = latest_changes(decode_payload(events, schema, "row")).select("ev_operation", "id")
    return (
        [tuple(row) for row in changes.select(*columns).orderBy("ev_id").collect()],
        [tuple(row) for row in rows],
        [tuple(row.values()) for row in latest.orderBy("id").toArrow().to_pylist()],
    )


def copy_stream(spark: SparkSession, dsn: str, directory: str) -> list[str]:
    """Stream from a queue into another one, and into a table by foreachBatch; returns its rows."""
    events = (
        spark.readStream.format("pgq")
        .options(dsn=dsn, queue=QUEUE, consumer="copy", startingPosition="earliest")
        .option("where", "ev_data <> 'b'")
        .load()
    )
    query = (
        events.select("ev_type", "ev_data")
        .writeStream.format("pgq")
        .queryName("copy")
        .options(dsn=dsn, queue="copies", writer="copy", checkpointLocation=directory + "/copy")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    def save(df: DataFrame, batch: int) -> None:
        df.select("ev_data").write.mode("append").json(directory + "/out")

    query = (
        events.writeStream.foreachBatch(save)
        .option("checkpointLocation", directory + "/save")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(row.ev_data for row in spark.read.json(directory + "/out").collect())


def write(spark: SparkSession, dsn: str) -> None:
    rows = spark.createDataFrame([(1, "x"), (2, None)], "n int, ev_data string").orderBy("n")
    sent = rows.selectExpr("'written' as ev_type", "ev_data").write.format("pgq")
    sent.mode("append").options(dsn=dsn, queue="copies").save()


def consume(spark: SparkSession, dsn: str) -> list[list[str]]:
    from pgqpy_consumers.spark import SparkConsumer

    seen: list[list[str]] = []

    class Collecting(SparkConsumer):
        queue = QUEUE
        consumer = "spark"

        def process_batch(self, spark: SparkSession, batch: pgqpy.Batch, df: DataFrame) -> None:
            assert df.count() == df.count()
            seen.append(sorted(row.ev_data for row in df.collect()))

    consumer = Collecting(dsn)
    assert consumer.spark is spark
    while consumer.run_once():
        pass
    return seen


# --- in pytest


def test_a_range_is_the_same_at_each_action(
    in_client: InClient, conn: Connection, dsn: str, queue: str
) -> None:
    produce(conn, "a", "b")
    counts = in_client(count_again_and_again, dsn)
    assert counts == [(2, 2), (2, 2, 2, 2), (2, 2, 2, 2), (4, 4, 2, 2)]


def test_only_what_is_asked_is_read(
    in_client: InClient, conn: Connection, dsn: str, queue: str
) -> None:
    produce(conn, "a", "b", "c")
    assert in_client(read_some, dsn) == (["ev_data", "ev_type"], ["b", "c"])


def test_changes_are_typed_and_folded(
    in_client: InClient, conn: Connection, dsn: str, queue: str
) -> None:
    conn.execute("create table orders (id int primary key, amount numeric(10,2), at timestamptz)")
    conn.execute("select pgq.capture_table('orders', %s)", [queue])
    conn.execute("insert into orders values (1, 1.50, '2026-03-29T01:30:00Z'), (2, 2, 'infinity')")
    conn.execute("update orders set amount = 3 where id = 1")
    conn.execute("delete from orders where id = 2")
    ops.tick(conn, queue)
    changes, rows, latest = in_client(read_changes, dsn)
    assert [(row[0], row[1], str(row[2])) for row in changes] == [
        ("INSERT", 1, "1.50"),
        ("INSERT", 2, "2.00"),
        ("UPDATE", 1, "3.00"),
        ("DELETE", 2, "2.00"),
    ]
    assert [(str(row[2]), str(row[3])) for row in rows] == [("3.00", "2026-03-29 01:30:00")]
    assert latest == [("UPDATE", 1), ("DELETE", 2)]


def test_streams_go_from_queue_to_queue(
    in_client: InClient, conn: Connection, dsn: str, queue: str, tmp_path: Path
) -> None:
    conn.execute("select pgq.create_queue('copies')")
    ops.register(conn, "copies", "reader")
    produce(conn, "a", "b", "c")
    assert in_client(copy_stream, dsn, str(tmp_path)) == ["a", "c"]
    assert ops.deliver(conn, "copies", "reader") == ["a", "c"]
    in_client(write, dsn)
    assert ops.deliver(conn, "copies", "reader") == ["x", None]


def test_a_consumer_gets_its_batches(
    in_client: InClient, conn: Connection, dsn: str, queue: str
) -> None:
    ops.register(conn, queue, "spark")
    produce(conn, "a", "b")
    produce(conn, "c")
    assert in_client(consume, dsn) == [["a", "b", "c"]]


def test_a_password_of_the_servers_environment_is_in_none_of_its_logs(
    in_client: InClient, connect_server: ConnectServer, conn: Connection, dsn: str, queue: str
) -> None:
    ops.register(conn, queue, "spark")
    produce(conn, "a", "b")
    assert in_client(read_some, dsn)[1] == ["b"]
    in_client(consume, dsn + ("&" if "?" in dsn else "?") + "password=open%20sesame")

    def said() -> bytes:
        return b"".join(log.read_bytes() for log in connect_server.logs.rglob("*") if log.is_file())

    # A thread of its own writes them.
    wait_until(lambda: b"SparkListenerConnectOperationStarted" in said())
    assert PASSWORD.encode() not in said()
