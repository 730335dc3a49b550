"""Streaming queries whose processes die in the middle of a micro-batch: no event is lost, and
none has its effect twice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pgqpy.embedded import Server
from pgqpy.schema import schema_sql
from tests.fixtures import queue_ops as ops
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
    step("read")
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


@pytest.fixture
def stream(run: Run, dsn: str, tmp_path: Path) -> Callable[[], Program]:
    """``stream()`` starts a program that streams `QUEUE` into ``effect`` and stops at each step."""
    return lambda: run(sys.executable, "-c", DRIVER, dsn, str(tmp_path))


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
        return process is not None and "pyspark.daemon" in process.cmdline()
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


def test_a_driver_killed_anywhere_in_a_micro_batch_takes_it_up_again(
    conn: Connection, queue: str, stream: Callable[[], Program]
) -> None:
    ids = prepare(conn, ticks=3)
    for step, times, done in [("planned", 1, 0), ("read", 2, 50), ("written", 1, 100)]:
        killed = stream()
        killed.go_to(step, times)
        killed.kill()
        assert effects(conn) == ids[:done]
        ops.rotate(conn, queue)
    stream().finish(PATIENCE)
    assert effects(conn) == ids
    newest = "select max(tick_id) = min(last_tick) from pgq.tick, pgq.get_consumer_info()"
    assert ops.value(conn, newest)


def test_a_driver_killed_while_its_tasks_read_reads_again(
    conn: Connection, connect: Connect, queue: str, stream: Callable[[], Program]
) -> None:
    ids = prepare(conn, ticks=1)
    block_readers(conn)
    killed = stream()
    killed.go_to("planned")
    killed.enter()
    eventually(connect(), BLOCKED, 0, patience=PATIENCE)
    killed.kill()
    conn.execute("commit")
    assert effects(conn) == []
    stream().finish(PATIENCE)
    assert effects(conn) == ids


def test_a_reader_that_is_killed_is_replaced(
    conn: Connection, connect: Connect, queue: str, stream: Callable[[], Program]
) -> None:
    ids = prepare(conn, ticks=1)
    block_readers(conn)
    watch = connect()
    streaming = stream()
    streaming.go_to("planned")
    streaming.enter()
    eventually(watch, BLOCKED, 0, patience=PATIENCE)
    assert kill_readers(streaming)
    # The dead one's session waits on: the server cannot know yet.
    eventually(watch, BLOCKED, 1, patience=PATIENCE)
    conn.execute("commit")
    streaming.finish(PATIENCE)
    assert effects(conn) == ids


def test_a_server_killed_during_a_read_costs_a_restart_at_most(
    server: Server, connect: Connect, run: Run, tmp_path: Path
) -> None:
    with Server(version=server.version) as mortal:
        conn = connect(mortal.dsn)
        conn.execute(schema_sql().encode())
        conn.execute("select pgq.create_queue(%s)", [QUEUE])
        ids = prepare(conn, ticks=2)
        block_readers(conn)
        command = (sys.executable, "-c", DRIVER, mortal.dsn, str(tmp_path))
        streaming = run(*command)
        streaming.go_to("planned")
        streaming.enter()
        eventually(connect(mortal.dsn), BLOCKED, 0, patience=PATIENCE)
        mortal.kill()
        mortal.restart()
        streaming.let_go()
        if streaming.process.wait(PATIENCE) != 0:
            # Tasks are tried four times; that may be over before the server is back.
            run(*command).finish(PATIENCE)
        assert effects(connect(mortal.dsn)) == ids
