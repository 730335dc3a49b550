"""A stream of `format("pgq")`: 50,000 events a second into a sink, and delays at 1,000 a second.

In `local[2]`, default trigger, with producer and ticker on the same two cores. 50,000 events a
second, payloads of 110 bytes, come in transactions of 5,000; the sink is Spark's `noop`, which
reads all columns. The backlog is the events in no finished micro-batch. At 1,000 a second each is a
transaction; the clock runs from before the insert until `foreachBatch` has the rows (`toArrow()`).
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks._beside import processes, ticker
from benchmarks._program import python_program
from benchmarks._servers import connect, database
from benchmarks.bench import Bench
from benchmarks.spark_session import PARTITIONS, is_missing, spark_session, tcp, tcp_server
from pgqpy.embedded import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PGQPY = python_program("pgqpy")
A_SECOND = 10
"""Transactions a second of the fast producer."""

INSERT = """
select count(*)
  from (select array_agg('flight'::text) as types,
               array_agg('{"id": ' || 1000000 + n || repeat('x', 94) || '}') as data
          from generate_series(1, %s) n) s,
       pgq.insert_events('q', s.types, s.data)
"""
INSERTED = """
select coalesce(pg_sequence_last_value(queue_event_seq::regclass), 0)
  from pgq.queue
 where queue_name = 'q'
"""


def produce(pipe: Pipe, dsn: str, rate: int) -> None:
    pipe.send(None)
    with connect(dsn) as conn:
        due = time.monotonic()
        while True:
            conn.execute(INSERT, [rate // A_SECOND])
            due += 1 / A_SECOND
            time.sleep(max(due - time.monotonic(), 0))


@contextmanager
def streaming(
    spark: SparkSession, dsn: str, to: Callable[[DataStreamWriter], DataStreamWriter]
) -> Iterator[StreamingQuery]:
    """Stream from the queue to a sink; the first micro-batch is done when the block begins."""
    options: dict[str, str | int] = {"dsn": dsn, "queue": "q", "consumer": "spark"}
    df = spark.readStream.format("pgq").options(**options, numPartitions=PARTITIONS).load()
    with TemporaryDirectory() as checkpoint:
        writer: DataStreamWriter = df.writeStream.option("checkpointLocation", checkpoint)
        query = to(writer).start()
        try:
            while not query.recentProgress and not query.exception():
                time.sleep(0.1)
            yield query
            if (failure := query.exception()) is not None:
                raise failure
        finally:
            query.stop()


def in_sink(query: StreamingQuery) -> int:
    """The id of the last event in the last finished micro-batch."""
    progress = query.lastProgress
    assert progress is not None
    offset = progress["sources"][0]["endOffset"]
    return int((json.loads(offset) if isinstance(offset, str) else offset)["seq"])


def fast(bench: Bench, spark: SparkSession, server: Server, rate: int) -> None:
    warm_up, seconds = bench.choose((10, 60), quick=(3, 6))
    dsn = tcp(database(server))
    PGQPY.install(dsn)
    backlog: list[tuple[float, float]] = []
    with (
        ticker(dsn),
        streaming(spark, dsn, lambda writer: writer.format("noop")) as query,
        connect(dsn) as conn,
        processes(produce, [(dsn, rate)]),
    ):
        while in_sink(query) < rate // A_SECOND and query.isActive:
            time.sleep(0.1)
        time.sleep(warm_up)
        began, first = time.monotonic(), in_sink(query)
        [(inserted_first,)] = conn.execute(INSERTED).fetchall()
        for second in range(seconds):
            time.sleep(max(began + second - time.monotonic(), 0))
            [(inserted,)] = conn.execute(INSERTED).fetchall()
            backlog.append((second, (inserted - in_sink(query)) / 1000))
        took, last = time.monotonic() - began, in_sink(query)
        [(inserted_last,)] = conn.execute(INSERTED).fetchall()
    bench.series(
        f"Backlog at {rate:,} events a second",
        y="thousand events",
        lines={"inserted, not yet through the sink": backlog},
    )
    third = seconds // 3
    before, after = (
        statistics.median(events for _, events in part)
        for part in (backlog[third : 2 * third], backlog[2 * third :])
    )
    bench.table(
        f"At {rate:,} events a second",
        ("", "events a second", "backlog in the second third", "in the last"),
        [["pgq to noop", (last - first) / took, 1000 * before, 1000 * after]],
    )
    bench.at_least(
        "S3a",
        "inserted",
        (inserted_last - inserted_first) / took,
        0.99 * rate,
        "events/s",
        note=f"{(last - first) / took:,.0f} events a second came through the sink, by whole"
        f" micro-batches; the last backlog was worth {(inserted_last - last) / rate:.1f} s.",
    )
    bench.at_most("S3b", "backlog in the last third, times the second's", after / before, 1.2)


def delays(bench: Bench, spark: SparkSession, server: Server, rate: int) -> None:
    warm_up, seconds = bench.choose((10, 30), quick=(2, 3))
    dsn = tcp(database(server))
    PGQPY.install(dsn)
    sent_and_seen: list[tuple[float, float]] = []
    batches = 0

    def note(df: DataFrame, batch_id: int) -> None:
        nonlocal batches
        sent = df.select("ev_data").toArrow().column("ev_data").to_pylist()
        seen = time.monotonic()
        batches += bool(sent)
        sent_and_seen.extend((float(each), seen) for each in sent)

    with ticker(dsn), streaming(spark, dsn, lambda writer: writer.foreachBatch(note)) as query:
        PGQPY.send(dsn, warm_up * rate, rate)
        began = time.monotonic()
        PGQPY.send(dsn, seconds * rate, rate)
        while len(sent_and_seen) < (warm_up + seconds) * rate and query.isActive:
            time.sleep(0.1)
    counted = [(sent, seen) for sent, seen in sent_and_seen if sent >= began]
    assert len(counted) == seconds * rate, f"{len(counted):,} events have arrived"
    found = bench.delays(
        f"{rate:,} events a second, insert to foreachBatch",
        {"to foreachBatch": [seen - sent for sent, seen in counted]},
    )
    bench.at_most(
        "S4",
        "insert to foreachBatch, p50",
        found.ms("to foreachBatch", 50) / 1000,
        1.5,
        "s",
        note=f"{batches} micro-batches in {warm_up + seconds} s.",
    )


def run(bench: Bench) -> None:
    if is_missing(bench):
        return
    fast_rate, slow_rate = bench.choose((50_000, 1_000), quick=(5_000, 100))
    with tcp_server(bench) as server, spark_session(bench) as spark:
        delays(bench, spark, server, slow_rate)
        fast(bench, spark, server, fast_rate)
