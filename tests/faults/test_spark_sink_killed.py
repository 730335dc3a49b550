"""A driver killed around the commit of a micro-batch, a server killed around that of a job."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

from pgqpy.embedded import Server
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark and a stream take seconds to start, and several times that on a busy machine.
START = 120.0

DRIVER = """
import sys
import psycopg
from pgqpy_consumers.spark import PgqDataSource, local_session
from pgqpy_consumers.spark._options import StreamWriteOptions
from pgqpy_consumers.spark._sink import PgqStreamWriter

dsn, directory, moment = sys.argv[1:]

def halt():
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("notify halted")
        # The test has it, and kills us.
        conn.execute("select pg_advisory_lock(1)")

class HaltingWriter(PgqStreamWriter):
    def commit(self, messages, batchId):
        if moment == "before commit":
            halt()
        PgqStreamWriter.commit(self, messages, batchId)
        if moment == "after commit":
            halt()

class HaltingSource(PgqDataSource):
    def streamWriter(self, schema, overwrite):
        return HaltingWriter(StreamWriteOptions.parse(self.options), schema)

spark = local_session("local[2]")
spark.dataSource.register(HaltingSource)
"""
STREAM = """
query = (
    spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
    .text(directory + "/source")
    .selectExpr("'line' as ev_type", "value as ev_data")
    .writeStream.format("pgq")
    .options(dsn=dsn, queue="test_queue", writer="lines",
             checkpointLocation=directory + "/checkpoint")
    .trigger(availableNow=True).start()
)
query.awaitTermination()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_driver_killed_around_its_commit_sends_every_line_once(
    spark: SparkSession, conn: Connection, dsn: str, queue: str, run: Run, tmp_path: Path
) -> None:
    lines = [f"{n} {'x' * 100}" for n in range(5_000)]
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "1.txt").write_text("\n".join(lines))

    def sent() -> Counter[str]:
        return Counter(row[0] for row in conn.execute("select ev_data from pgq.event_template"))

    conn.execute("listen halted")
    conn.execute("select pg_advisory_lock(1)")
    for moment, visible in (("before commit", 0), ("after commit", len(lines))):
        killed = run(sys.executable, "-c", DRIVER + STREAM, dsn, str(tmp_path), moment)
        assert list(conn.notifies(timeout=START, stop_after=1)), f"it did not get {moment}"
        killed.kill()
        assert sum(sent().values()) == visible
    # In the session of this process: it starts sooner.
    exec(STREAM, {"spark": spark, "dsn": dsn, "directory": str(tmp_path)})
    assert sent() == Counter(lines)
    tables = "select count(*) from pg_class where relnamespace = 'pgq_staging'::regnamespace"
    assert ops.value(conn, tables) == 0


@pytest.mark.slow
def test_a_server_that_crashes_before_the_commit_of_a_job_fails_it(mortal: Server) -> None:
    from pyspark.sql.types import StringType, StructType

    from pgqpy_consumers.spark._options import WriteOptions
    from pgqpy_consumers.spark._sink import PgqWriter, StagedRowsLost

    names = ["ev_type", "ev_data"]
    schema = StructType().add("ev_type", StringType()).add("ev_data", StringType())
    lines = [f"{n} {'x' * 100}" for n in range(5_000)]
    rows = pa.record_batch([pa.array(["line"] * len(lines)), pa.array(lines)], names=names)
    with psycopg.connect(mortal.dsn) as conn:
        conn.execute("select pgq.create_queue('queue')")
    job = PgqWriter(WriteOptions(dsn=mortal.dsn, queue="queue"), schema)
    staged = job.write(iter([rows]))
    mortal.kill()
    mortal.restart()
    with pytest.raises(StagedRowsLost):
        job.commit([staged])
    job.abort([staged])
    with psycopg.connect(mortal.dsn) as conn:
        assert conn.execute("select from pgq.event_template").fetchall() == []
        left = "select from pg_class where relnamespace = 'pgq_staging'::regnamespace"
        assert conn.execute(left).fetchall() == []
