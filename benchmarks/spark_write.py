"""1,000,000 rows into a queue by `df.write.format("pgq")`, and into a table by Spark's JDBC writer.

In `local[2]`, two partitions, payloads of 110 bytes. JDBC writes into a plain table with the same
columns and index, also with `reWriteBatchedInserts` (INSERTs of many rows), in a transaction a
partition: half of the rows can be there without the other. By hand is two COPYs at a time of ready
bytes. Tables are empty before each round; commits count. Autovacuum is off.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from benchmarks._servers import CREATE_QUEUE, PLAIN_TABLE, connect, pgqpy_database
from benchmarks.bench import Bench, timed
from benchmarks.spark_session import (
    PARTITIONS,
    is_missing,
    jdbc_options,
    spark_session,
    tcp,
    tcp_server,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BY_HAND, JDBC, REWRITING, SINK = "2 x COPY", "JDBC", "JDBC, reWriteBatchedInserts", "pgq"
DATA = (
    """'{"id": ' || (1000000 + id) || ', "origin": "EWR", "rest": "' || repeat('x', 69) || '"}'"""
)
COLUMNS = "ev_type, ev_data"


def rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, PARTITIONS).selectExpr("'flight' ev_type", f"{DATA} ev_data")


def copied(dsn: str, count: int) -> bytes:
    """The rows in COPY's output format, to be copied in again."""
    with connect(dsn) as conn:
        statement = f"copy (select 'flight', {DATA} from generate_series(1, {count}) id) to stdout"
        with conn.cursor().copy(statement.encode()) as copy:
            return b"".join(copy)


def copy_in(dsn: str, data: bytes) -> None:
    statement = f"copy plain ({COLUMNS}) from stdin".encode()
    with connect(dsn) as conn, conn.cursor().copy(statement) as copy:
        copy.write(data)


def by_hand(dsn: str, data: bytes) -> None:
    with ThreadPoolExecutor(PARTITIONS) as threads:
        list(threads.map(copy_in, [dsn] * PARTITIONS, [data] * PARTITIONS))


def run(bench: Bench) -> None:
    if is_missing(bench):
        return
    count, rounds = bench.choose((1_000_000, 5), quick=(20_000, 1))
    with tcp_server(bench, autovacuum=False) as server, spark_session(bench) as spark:
        dsn = tcp(pgqpy_database(server, CREATE_QUEUE, PLAIN_TABLE))
        df = rows(spark, count)
        data = copied(dsn, count // PARTITIONS)

        def contestant(write: Callable[[], object], table: str) -> Callable[[], float]:
            def run() -> float:
                with connect(dsn) as conn:
                    conn.execute(f"truncate {table}".encode())
                    conn.execute("checkpoint")
                    seconds = timed(write)
                    found = conn.execute(f"select count(*) from {table}".encode()).fetchone()
                assert found == (count,), f"{found} rows of {count:,} are in {table}"
                return seconds

            return run

        def by_jdbc(**options: str) -> None:
            writer = df.write.format("jdbc").options(**jdbc_options(dsn, "plain"), **options)
            writer.mode("append").save()

        def by_sink() -> None:
            df.write.format("pgq").options(dsn=dsn, queue="q").mode("append").save()

        with connect(dsn) as conn:
            [(event_table,)] = conn.execute("select pgq.current_event_table('q')").fetchall()
        contest = bench.contest(
            f"{count:,} rows",
            {
                BY_HAND: contestant(lambda: by_hand(dsn, data), "plain"),
                JDBC: contestant(by_jdbc, "plain"),
                REWRITING: contestant(lambda: by_jdbc(reWriteBatchedInserts="true"), "plain"),
                SINK: contestant(by_sink, str(event_table)),
            },
            rounds=rounds,
            items=count,
            unit="rows",
        )
    rewriting = contest.ratio(SINK, REWRITING).value
    bench.at_least(
        "S5",
        f"{SINK}, times {JDBC}",
        contest.ratio(SINK, JDBC),
        0.7,
        note=f"All at once or not at all, which JDBC is not. Of {REWRITING} it is"
        f" {rewriting:.2f} x.",
    )
