"""A consumer's open batch as one DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql
from psycopg.conninfo import make_conninfo

import pgqpy
from pgqpy_consumers.spark.frame import events_frame
from pgqpy_consumers.spark.ranges import conninfo
from pgqpy_consumers.spark.reader import EventSource
from pgqpy_consumers.spark.slices import DEFAULT_PARTITIONS, slices_between

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def batch_frame(
    spark: SparkSession,
    conn: pgqpy.Connection,
    batch: pgqpy.Batch,
    num_partitions: int | None,
) -> DataFrame:
    """All events of the batch; executors connect as ``conn`` did.

    ``num_partitions`` is the maximum number of slices to read it in; None: the number of tasks that
    Spark runs at a time.
    """
    source = EventSource(
        conninfo=make_conninfo(
            conninfo(conn), application_name=f"pgqpy {batch.consumer} slice"[:63]
        ),
        query=batch.sql,
        description=f"Batch {batch.id} of {batch.consumer} on queue {batch.queue}",
        condition=_types(conn, batch),
        still_there=f"select 1 from pgq.get_batch_info({batch.id:d}) where tick_id is not null",
    )
    parts = num_partitions or _parallelism(spark)
    return events_frame(spark, source, slices_between(batch.seq_start, batch.seq_end, parts))


def _parallelism(spark: SparkSession) -> int:
    context = getattr(spark, "sparkContext", None)
    return DEFAULT_PARTITIONS if context is None else int(context.defaultParallelism)


def _types(conn: pgqpy.Connection, batch: pgqpy.Batch) -> str:
    if batch.event_types is None:
        return "true"
    types = sql.Literal(list(batch.event_types)).as_string(conn)
    return f"ev_type = any({types}::text[])"
