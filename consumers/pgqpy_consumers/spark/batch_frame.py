"""A consumer's open batch as one DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql
from psycopg.conninfo import make_conninfo

import pgqpy
from pgqpy_consumers.spark.frame import events_frame
from pgqpy_consumers.spark.reader import EventSource
from pgqpy_consumers.spark.schema import EVENT_COLUMNS
from pgqpy_consumers.spark.slices import cut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A slice has its cost, a connection and a task, whatever is in it.
EVENTS_PER_SLICE = 5_000

# Of Spark Connect, which does not say how many tasks run at a time.
CONNECT_PARTITIONS = 8


def batch_frame(
    spark: SparkSession,
    conn: pgqpy.Connection,
    batch: pgqpy.Batch,
    num_partitions: int | None,
) -> DataFrame:
    """All events of the batch; executors connect as ``conn`` did.

    ``num_partitions`` is how many slices to read it in, at most; None: as many as Spark runs
    tasks at a time.
    """
    source = EventSource(
        conninfo=_conninfo(conn, batch),
        query=f"select {EVENT_COLUMNS} from ({batch.sql}) batch where {_types(conn, batch)}",
        still_there=f"select 1 from pgq.get_batch_info({batch.id:d}) where tick_id is not null",
        description=f"Batch {batch.id} of {batch.consumer} on queue {batch.queue}",
    )
    # The event sequence at the two ticks tells about how many events there are, and of
    # which ids: others may have been committed late, or come again.
    wanted = -(-(batch.seq_end - batch.seq_start) // EVENTS_PER_SLICE)
    parts = min(wanted, num_partitions or _parallelism(spark))
    return events_frame(spark, source, cut(batch.seq_start + 1, batch.seq_end, max(parts, 1)))


def _parallelism(spark: SparkSession) -> int:
    context = getattr(spark, "sparkContext", None)
    return CONNECT_PARTITIONS if context is None else int(context.defaultParallelism)


def _types(conn: pgqpy.Connection, batch: pgqpy.Batch) -> str:
    if batch.event_types is None:
        return "true"
    types = sql.Literal(list(batch.event_types)).as_string(conn)
    return f"ev_type = any({types}::text[])"


def _conninfo(conn: pgqpy.Connection, batch: pgqpy.Batch) -> str:
    """All that this connection was made with, also what came from the environment."""
    parameters = conn.info.get_parameters()
    parameters["application_name"] = f"pgqpy {batch.consumer} slice"[:63]
    if conn.info.password:
        parameters["password"] = conn.info.password
    return make_conninfo(**parameters)
