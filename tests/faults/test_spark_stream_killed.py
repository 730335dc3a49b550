"""Streaming queries whose processes die in the middle of a micro-batch: no event is lost, and
none has its effect twice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pgqpy.embedded import Server
from pgqpy.schema import schema_sql
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection
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
    print(name, flush=True)
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


class Driver:
    """A program that streams `QUEUE` into the table ``effect`` and stops at each step."""

    def __init__(self, dsn: str, checkpoint: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, dsn, str(checkpoint)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def stops_at(self, step: str) -> None:
        """Wait until it is there."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{step}\n"

    def go(self) -> None:
        """Let it go on to its next step."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self) -> int:
        """Let it run to its end; returns the exit code."""
        self.process.communicate("\n" * 1000, timeout=PATIENCE)
        return self.process.returncode

    def kill(self) -> None:
        """SIGKILL for Python and Java."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def kill_readers(self) -> int:
        """SIGKILL for the Python workers of its executor; returns how many there were."""
        workers = [
            child
            for child in psutil.Process(self.process.pid).children(recursive=True)
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


@contextmanager
def driver(dsn: str, checkpoint: Path) -> Iterator[Driver]:
    started = Driver(dsn, checkpoint)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.kill()
        for pipe in (started.process.stdin, started.process.stdout):
            assert pipe is not None
            pipe.close()


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
    conn: Connection, dsn: str, queue: str, tmp_path: Path
) -> None:
    ids = prepare(conn, ticks=3)
    for path, done in [
        (["planned"], 0),
        (["planned", "read", "written", "planned", "read"], 50),
        (["planned", "read", "written"], 100),
    ]:
        with driver(dsn, tmp_path) as streaming:
            for number, step in enumerate(path):
                if number:
                    streaming.go()
                streaming.stops_at(step)
            streaming.kill()
        assert effects(conn) == ids[:done]
        ops.rotate(conn, queue)
    with driver(dsn, tmp_path) as streaming:
        assert streaming.finish() == 0
    assert effects(conn) == ids
    newest = "select max(tick_id) = min(last_tick) from pgq.tick, pgq.get_consumer_info()"
    assert ops.value(conn, newest)


def test_a_driver_killed_while_its_tasks_read_reads_again(
    conn: Connection, connect: Connect, dsn: str, queue: str, tmp_path: Path
) -> None:
    ids = prepare(conn, ticks=1)
    block_readers(conn)
    with driver(dsn, tmp_path) as streaming:
        streaming.stops_at("planned")
        streaming.go()
        eventually(connect(), BLOCKED, 0, patience=PATIENCE)
        streaming.kill()
    conn.execute("commit")
    assert effects(conn) == []
    with driver(dsn, tmp_path) as streaming:
        assert streaming.finish() == 0
    assert effects(conn) == ids


def test_a_reader_that_is_killed_is_replaced(
    conn: Connection, connect: Connect, dsn: str, queue: str, tmp_path: Path
) -> None:
    ids = prepare(conn, ticks=1)
    block_readers(conn)
    watch = connect()
    with driver(dsn, tmp_path) as streaming:
        streaming.stops_at("planned")
        streaming.go()
        eventually(watch, BLOCKED, 0, patience=PATIENCE)
        assert streaming.kill_readers()
        # The dead one's session waits on: the server cannot know yet.
        eventually(watch, BLOCKED, 1, patience=PATIENCE)
        conn.execute("commit")
        assert streaming.finish() == 0
    assert effects(conn) == ids


def test_a_server_killed_during_a_read_costs_a_restart_at_most(
    server: Server, connect: Connect, tmp_path: Path
) -> None:
    with Server(version=server.version) as mortal:
        conn = connect(mortal.dsn)
        conn.execute(schema_sql().encode())
        conn.execute("select pgq.create_queue(%s)", [QUEUE])
        ids = prepare(conn, ticks=2)
        block_readers(conn)
        with driver(mortal.dsn, tmp_path) as streaming:
            streaming.stops_at("planned")
            streaming.go()
            eventually(connect(mortal.dsn), BLOCKED, 0, patience=PATIENCE)
            mortal.kill()
            mortal.restart()
            survived = streaming.finish() == 0
        if not survived:
            # Tasks are tried four times; that may be over before the server is back.
            with driver(mortal.dsn, tmp_path) as streaming:
                assert streaming.finish() == 0
        assert effects(connect(mortal.dsn)) == ids
