"""A driver killed around the commit of a micro-batch, a server killed around that of a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from pgqpy.embedded import Server
from pgqpy.schema import schema_sql
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import PATIENCE

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


@contextmanager
def driver(dsn: str, directory: Path, moment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver with its JVM and workers; what is left of them is killed at once."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, dsn, str(directory), moment], start_new_session=True
    )
    try:
        yield process
    finally:
        while members := session_members(process.pid):
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if process.poll() is None:
                process.wait(PATIENCE)


def session_members(session: int) -> list[int]:
    """Living processes of a session: workers have process groups of their own."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, sid = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(sid) == session and state != "Z":
            members.append(int(stat.parent.name))
    return members


@pytest.mark.slow
@pytest.mark.spark
def test_a_driver_killed_around_its_commit_sends_every_line_once(
    conn: Connection, dsn: str, queue: str, tmp_path: Path
) -> None:
    lines = [f"{n} {'x' * 100}" for n in range(5_000)]
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "1.txt").write_text("\n".join(lines))

    def sent() -> Counter[str]:
        return Counter(row[0] for row in conn.execute("select ev_data from pgq.event_template"))

    conn.execute("listen halted")
    conn.execute("select pg_advisory_lock(1)")
    for moment, visible in (("before commit", 0), ("after commit", len(lines))):
        with driver(dsn, tmp_path, moment):
            assert list(conn.notifies(timeout=START, stop_after=1)), f"it did not get {moment}"
        assert sum(sent().values()) == visible
    with driver(dsn, tmp_path, "never") as process:
        assert process.wait(START) == 0
    assert sent() == Counter(lines)
    tables = "select count(*) from pg_class where relnamespace = 'pgq_staging'::regnamespace"
    assert ops.value(conn, tables) == 0


@pytest.mark.slow
def test_a_server_that_crashes_before_the_commit_of_a_job_fails_it(server: Server) -> None:
    from pyspark.sql.types import StringType, StructType

    from pgqpy_consumers.spark._options import WriteOptions
    from pgqpy_consumers.spark._sink import PgqWriter, StagedRowsLost

    names = ["ev_type", "ev_data"]
    schema = StructType().add("ev_type", StringType()).add("ev_data", StringType())
    lines = [f"{n} {'x' * 100}" for n in range(5_000)]
    rows = pa.record_batch([pa.array(["line"] * len(lines)), pa.array(lines)], names=names)
    with Server(version=server.version) as mortal:
        with psycopg.connect(mortal.dsn) as conn:
            conn.execute(schema_sql().encode())
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
