"""An archiver killed at each step of a batch: readers of its files see every event once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import dataset

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_ticker import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE = 120.0
QUEUE = "test_queue"

# Three days, so that a batch has three files to move.
INSERT = """
select pgq.insert_event_raw(%s, null, timestamptz '2026-11-21 00:00+00' + n %% 3 * interval '1 day',
                            null, null, 'type', n::text, null, null, null, null)
  from generate_series(1, 30) n
"""

ARCHIVER = """
import sys
from pgqpy_consumers.spark import archive, local_session
from pgqpy_consumers.spark._archive_log import ArchiveLog
from pgqpy_consumers.spark._archive_log import Directory

dsn, path = sys.argv[1:]

def step(name):
    print(name, flush=True)
    sys.stdin.readline()

class Halting(archive.Archive):
    batch_size = 1

    def process_batch(self, spark, batch, df):
        step("read")
        super().process_batch(spark, batch, df)
        step("published")

def before(cls, name, said):
    method = getattr(cls, name)
    def halting(self, *arguments):
        step(said)
        return method(self, *arguments)
    setattr(cls, name, halting)

before(Directory, "_rename", "rename")
before(ArchiveLog, "publish", "publish")
# Java lives for one batch here: what makes it fast in the long run only makes it start slowly.
settings = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
}
spark = local_session("local[1]", settings)
Halting(dsn, path=path, queue="test_queue", spark=spark).run(until_empty=True)
"""


class Archiver:
    """A program that archives `QUEUE` and stops at each step."""

    def __init__(self, dsn: str, lake: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ARCHIVER, dsn, str(lake)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def go_to(self, step: str, times: int = 1) -> None:
        """Continue until it has come to this point this many times."""
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        for line in self.process.stdout:
            times -= line == f"{step}\n"
            if not times:
                return
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        raise AssertionError(f"it ended before {step}")

    def finish(self) -> int:
        """Let it run to its end; returns the exit code."""
        self.process.communicate("\n" * 1000, timeout=PATIENCE)
        return self.process.returncode

    def kill(self) -> None:
        """SIGKILL for Python and Java."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)


@contextmanager
def archiver(dsn: str, lake: Path) -> Iterator[Archiver]:
    started = Archiver(dsn, lake)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.kill()
        for pipe in (started.process.stdin, started.process.stdout):
            assert pipe is not None
            pipe.close()


def prepare(conn: Connection, batches: int) -> list[int]:
    """Make batches that are not archived; returns the ids."""
    ids = []
    for _ in range(batches):
        ids += [row[0] for row in conn.execute(INSERT, [QUEUE])]
        ops.tick(conn, QUEUE)
    return ids


def archived(lake: Path) -> list[int]:
    """The events that plain readers of Parquet find."""
    files = dataset.dataset(lake, schema=pa.schema([("ev_id", pa.int64())]))
    return sorted(files.to_table()["ev_id"].to_pylist())


def read_while_blocked(conn: Connection, killed: Archiver) -> None:
    """Let it go on until its executor waits to read."""
    conn.execute("begin")
    conn.execute("lock table pgq.event in access exclusive mode")
    assert killed.process.stdin is not None
    killed.process.stdin.write("\n" * 10)
    killed.process.stdin.flush()


WAITS = "select count(*) > 0 from pg_locks where mode = 'AccessShareLock' and not granted"


def test_an_archiver_killed_anywhere_archives_every_event_once(
    conn: Connection, connect: Connect, dsn: str, queue: str, tmp_path: Path
) -> None:
    ids = prepare(conn, batches=2)
    with archiver(dsn, tmp_path) as killed:
        killed.go_to("read")
        read_while_blocked(conn, killed)
        eventually(connect(), WAITS, patience=PATIENCE)
        killed.kill()
    conn.execute("commit")

    # Renamed are an entry of the log, which commits a batch, and its three files.
    for step, times, seen in [
        ("rename", 1, 0),  # before the commit
        ("publish", 1, 0),  # after it
        ("rename", 2, 10),  # one file was moved
        ("published", 1, 30),  # the batch is not finished
        ("rename", 4, 50),  # it is, and two files of the next were moved
    ]:
        with archiver(dsn, tmp_path) as killed:
            killed.go_to(step, times)
            killed.kill()
        found = archived(tmp_path)
        assert len(found) == len(set(found)) == seen, step
    with archiver(dsn, tmp_path) as last:
        assert last.finish() == 0
    assert archived(tmp_path) == ids
    assert not list(tmp_path.glob("_pgqpy/*/staging/*"))
