"""The password is in nothing that Spark says: plans, errors, output, event log and environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection

pytestmark = [pytest.mark.spark, pytest.mark.slow]

IN_DSN, IN_OPTION = "sesame-of-the-dsn", "sesame-of-the-option"
IN_MAP = "sesame-of-the-map"
# Not a name that Spark takes for that of a secret, and hides.
ROLE = "spark_teller"

# Uses the data source in all ways, and then takes the executors' right to connect: those of a
# stream and of a consumer are refused while the sessions of the driver stay.
PROGRAM = """
import glob, os, sys
import psycopg
from pgqpy_consumers.spark import PgqDataSource, SparkConsumer, local_session

dsn, url, admin, in_dsn, in_option, shards = sys.argv[1:]
here = os.environ["TMPDIR"]
spark = local_session("local[2]", {
    "spark.log.level": "INFO",
    "spark.sql.shuffle.partitions": "2",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.dir": "file://" + here,
    "spark.sql.warehouse.dir": here + "/warehouse",
})
spark.dataSource.register(PgqDataSource)
conn = psycopg.connect(admin, autocommit=True)

def refuse(limit):
    conn.execute(f"alter role spark_teller connection limit {limit}")

def options(reader):
    return reader.format("pgq").options(dsn=dsn, queue="test_queue", password=in_option)

def show(df):
    for mode in ("extended", "formatted", "cost", "codegen"):
        df.explain(mode)
    print(df, df.queryExecution if hasattr(df, "queryExecution") else df._jdf.queryExecution())

df = options(spark.read).load()
show(df)
print("read", df.count())
refuse(0)
try:
    df.count()
except Exception as error:
    print("driver refused:", error)
refuse(-1)
# SQL, and commands, whose plans have the options of what they read.
given = f"dsn '{url}', queue 'test_queue', password '{in_option}'"
spark.sql(f"create temporary view event using pgq options ({given})")
show(spark.table("event"))
print("read by SQL", spark.sql("select * from event").count())
spark.sql("create table kept using parquet as select * from event")
df.write.saveAsTable("kept_too")
events = df.selectExpr("ev_type", "ev_data")
options(events.write).mode("append").save()

def stream(effect, at):
    query = (options(spark.readStream).option("consumer", "stream").load()
             .writeStream.foreachBatch(effect).option("checkpointLocation", here + "/" + at)
             .trigger(availableNow=True).start())
    query.awaitTermination()

# The password is in the map of the shards, and none of their options has it.
over = {"shards": shards, "queue": "test_queue"}
df = spark.read.format("pgq").options(**over).load()
show(df)
print("read shards", df.count())
refuse(0)
try:
    df.count()
except Exception as error:
    print("driver of shards refused:", error)
refuse(-1)
query = (spark.readStream.format("pgq").options(**over, consumer="shards").load()
         .writeStream.foreachBatch(lambda df, _: (show(df), print("streamed", df.count())))
         .option("checkpointLocation", here + "/shards").trigger(availableNow=True).start())
query.awaitTermination()

def count_refused(df, _):
    show(df)
    refuse(0)
    df.count()

try:
    stream(count_refused, "one")
except Exception as error:
    print("executor refused:", error)
refuse(-1)

class Counting(SparkConsumer):
    queue, consumer = "test_queue", "consumer"
    def process_batch(self, spark, batch, df):
        show(df)
        refuse(0)
        df.count()

try:
    # The password of the DSN: here there are no options.
    Counting(dsn).run_once()
except Exception as error:
    print("executor of the consumer refused:", error)
for log in glob.glob(here + "/pgqpy-spark-*.log"):
    os.link(log, log + ".kept")
spark.stop()
"""


def test_the_password_is_in_nothing_that_spark_says(
    conn: Connection, dsn: str, queue: str, tmp_path: Path
) -> None:
    for consumer in ("stream", "consumer", "shards"):
        ops.register(conn, queue, consumer)
    ops.insert(conn, queue, "data")
    ops.tick(conn, queue)
    conn.execute(f"create role {ROLE} login in role pgq_reader, pgq_writer".encode())
    try:
        spark_dsn = make_conninfo(dsn, user=ROLE, password=IN_DSN)
        url = dsn.replace("postgres@", f"{ROLE}:{IN_DSN}@")
        assert IN_DSN in url
        shards = tmp_path / "shards.toml"
        in_map = make_conninfo(dsn, user=ROLE, password="${OF_THE_SHARD}")
        shards.write_text(f"[shards.a]\ndsn = {json.dumps(in_map)}\nhashes = [0, 65536]")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, spark_dsn, url, dsn, IN_DSN, IN_OPTION, str(shards)],
            env=os.environ | {"TMPDIR": str(tmp_path), "OF_THE_SHARD": IN_MAP},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        conn.execute(f"drop role {ROLE}".encode())
    assert done.returncode == 0, done.stderr
    host = conn.info.host
    assert "read 1" in done.stdout
    assert "read by SQL 1" in done.stdout
    assert "read shards 1" in done.stdout
    assert "streamed 1" in done.stdout
    assert "driver of shards refused:" in done.stdout
    # The log has the name of the option.
    assert b"dsn" in b"".join(
        path.read_bytes() for path in tmp_path.iterdir() if path.name.startswith("local-")
    )
    for refused in ("executor refused:", "executor of the consumer refused:"):
        said = done.stdout.partition(refused)[2]
        assert f"cannot connect to host={host}" in said, refused
        assert "pg_hba.conf, firewalls and max_connections" in said, refused
    assert "too many connections for role" in done.stdout

    files = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(b"SparkListenerEnvironmentUpdate" in content for content in files.values())
    assert any(name.endswith(".kept") and content for name, content in files.items())
    said_by = files | {"output": done.stdout.encode(), "errors": done.stderr.encode()}
    for secret in (IN_DSN, IN_OPTION, IN_MAP):
        assert [name for name, said in said_by.items() if secret.encode() in said] == []
