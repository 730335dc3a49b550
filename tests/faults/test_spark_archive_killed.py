"""An archiver killed at each step of a batch: readers of its files see every event once."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import dataset

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_example import Run
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
    print("at", name, flush=True)
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
spark = local_session("local[1]")
Halting(dsn, path=path, queue="test_queue", spark=spark).run(until_empty=True)
"""


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


WAITS = "select count(*) > 0 from pg_locks where mode = 'AccessShareLock' and not granted"


def test_an_archiver_killed_anywhere_archives_every_event_once(
    conn: Connection, connect: Connect, dsn: str, queue: str, run: Run, tmp_path: Path
) -> None:
    archiver = (sys.executable, "-c", ARCHIVER, dsn, str(tmp_path))
    ids = prepare(conn, batches=2)
    killed = run(*archiver)
    killed.go_to("read")
    conn.execute("begin")
    conn.execute("lock table pgq.event in access exclusive mode")
    killed.let_go()
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
        killed = run(*archiver)
        killed.go_to(step, times)
        killed.kill()
        found = archived(tmp_path)
        assert len(found) == len(set(found)) == seen, step
    run(*archiver).finish(PATIENCE)
    assert archived(tmp_path) == ids
    assert not list(tmp_path.glob("_pgqpy/*/staging/*"))
