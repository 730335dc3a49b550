"""Streaming queries whose processes die in the middle of a micro-batch: no event is lost, and
none has its effect twice.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from pgqpy.embedded import Server
from tests.fixtures import queue_ops as ops
from tests.fixtures import spark_python
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_example import Program, Run
from tests.fixtures.fix_ticker import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE = 120.0
QUEUE = "test_queue"

TABLES = """
create table done (batch_id bigint primary key);
create table effect (ev_id bigint not null);
"""

# The documented use of foreachBatch: write, and note the micro-batch, in one transaction.
DRIVER = """
import sys
import psycopg
from pgqpy_consumers.spark import PgqDataSource, local_session

dsn, checkpoint = sys.argv[1:]

def step(name):
    print("at", name, flush=True)
    sys.stdin.readline()

def effects(df, batch_id):
    step("planned")
    ids = [[row.ev_id] for row in df.select("ev_id").collect()]
    with psycopg.connect(dsn) as conn, conn.cursor() as cursor:
        cursor.execute("insert into done values (%s) on conflict do nothing", [batch_id])
        if cursor.rowcount:
            cursor.executemany("insert into effect values (%s)", ids)
    step("written")

spark = local_session("local[2, 4]", {"spark.sql.shuffle.partitions": "2"})
spark.dataSource.register(PgqDataSource)
events = (
    spark.readStream.format("pgq")
    .options(dsn=dsn, queue="test_queue", consumer="effects", maxTicksPerTrigger="1")
    .load()
)
query = (
    events.writeStream.foreachBatch(effects)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
"""


def kill_readers(driver: Program) -> int:
    """SIGKILL for the Python workers of its executor; returns how many there were."""
    workers = [
        child
        for child in psutil.Process(driver.process.pid).children(recursive=True)
        if is_daemon(child) and is_daemon(child.parent())
    ]
    for worker in workers:
        worker.kill()
    return len(workers)


def is_daemon(process: psutil.Process | None) -> bool:
    try:
        return process is not None and process.name() == spark_python.NAME
    except psutil.NoSuchProcess:  # it has ended, and may be a zombie still
        return False


def prepare(conn: Connection, ticks: int) -> list[int]:
    """Some ticks with events, and a consumer that is before them; returns the ids."""
    conn.execute(TABLES)
    ops.rotate_whenever_asked(conn, QUEUE)
    ops.register(conn, QUEUE, "effects")
    ids = []
    for _ in range(ticks):
        ids += [ops.insert(conn, QUEUE, "event") for _ in range(50)]
        ops.tick(conn, QUEUE)
    return ids


def effects(conn: Connection) -> list[int]:
    return [row[0] for row in conn.execute("select ev_id from effect order by 1")]


def block_readers(conn: Connection) -> None:
    """Make reading wait until the transaction ends."""
    conn.execute("begin")
    conn.execute("lock table pgq.event in access exclusive mode")


BLOCKED = "select count(*) > %s from pg_locks where mode = 'AccessShareLock' and not granted"


def test_whatever_is_killed_in_a_micro_batch_it_is_taken_up_again(
    mortal: Server, connect: Connect, run_python: Run, tmp_path: Path
) -> None:
    conn, watch = connect(mortal.dsn), connect(mortal.dsn)
    conn.execute("select pgq.create_queue(%s)", [QUEUE])
    ids = prepare(conn, ticks=4)

    def stream() -> Program:
        return run_python(DRIVER, mortal.dsn, tmp_path)

    def read_and_wait(driver: Program) -> None:
        """Let it read the next micro-batch, which waits until the transaction of ours ends."""
        driver.go_to("planned")
        block_readers(conn)
        driver.enter()
        eventually(watch, BLOCKED, 0, patience=PATIENCE)

    # The driver: while its tasks read, and before it notes what is written.
    killed = stream()
    killed.go_to("written")
    killed.enter()
    read_and_wait(killed)
    killed.kill()
    conn.execute("commit")
    assert effects(conn) == ids[:50]
    ops.rotate(conn, QUEUE)
    killed = stream()
    killed.go_to("written")
    killed.kill()
    assert effects(conn) == ids[:100]
    ops.rotate(conn, QUEUE)

    # A reader is replaced. The dead one's session waits on: the server cannot know yet.
    streaming = stream()
    streaming.go_to("written")
    streaming.enter()
    read_and_wait(streaming)
    assert kill_readers(streaming)
    eventually(watch, BLOCKED, 1, patience=PATIENCE)
    conn.execute("commit")
    streaming.go_to("written")
    assert effects(conn) == ids[:150]

    # The server: it costs a restart at most, for tasks are tried four times.
    streaming.enter()
    read_and_wait(streaming)
    mortal.kill()
    mortal.restart()
    streaming.let_go()
    if streaming.process.wait(PATIENCE) != 0:
        stream().finish(PATIENCE)
    conn = connect(mortal.dsn)
    assert effects(conn) == ids
    newest = "select max(tick_id) = min(last_tick) from pgq.tick, pgq.get_consumer_info()"
    assert ops.value(conn, newest)
