"""Payloads that are empty, large, or odd, through batch read, sink and stream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.spark_ops import load, run_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MEGABYTE = 1_048_576

# In SQL, and the member "a" of the JSON, if it is some.
PAYLOADS = [
    "''",
    """'{"a": "x\\u0000y", "b": 1}'""",
    f"""'{{"a": "' || repeat('é', {25 * MEGABYTE}) || '"}}'""",
    "null",
]


def test_payloads_of_0_bytes_and_of_50_megabytes_go_round(
    spark: SparkSession, conn: Connection, dsn: str, queue: str, tmp_path: Path
) -> None:
    conn.execute("select pgq.create_queue('copies')")
    ops.register(conn, "copies", "c")
    for payload in PAYLOADS:
        insert = f"select pgq.insert_event(%s, 'test', {payload})"
        conn.execute(insert.encode(), [queue])
    ops.tick(conn, queue)
    summary = (
        "select md5(ev_data), octet_length(ev_data) from pgq.event_template order by ev_txid, ev_id"
    )
    truth = conn.execute(summary).fetchall()

    events = load(spark.read, dsn=dsn, queue=queue)
    copies = events.sortWithinPartitions("ev_id").selectExpr("ev_type", "ev_data")
    copies.write.format("pgq").mode("append").options(dsn=dsn, queue="copies").save()
    ops.tick(conn, "copies")
    assert conn.execute(summary).fetchall() == truth * 2

    seen: list[tuple[str | None, int | None]] = []

    def collect(df: DataFrame, _: int) -> None:
        rows = df.sortWithinPartitions("ev_id").selectExpr("md5(ev_data)", "octet_length(ev_data)")
        seen.extend((row[0], row[1]) for row in rows.collect())

    stream = load(spark.readStream, dsn=dsn, queue="copies", consumer="c")
    run_once(stream.writeStream.foreachBatch(collect), tmp_path)
    assert seen == truth

    options = {"dsn": dsn, "queue": queue, "payload": "json", "malformed": "drop"}
    decoded = load(spark.read, "ev_id bigint, a string", **options).sortWithinPartitions("ev_id")
    texts = decoded.selectExpr("length(a) as n", "left(a, 3) as a").collect()
    # The one without a payload has nothing but nulls; the empty one is no JSON.
    assert [tuple(row) for row in texts] == [(3, "x\0y"), (25 * MEGABYTE, "ééé"), (None, None)]
