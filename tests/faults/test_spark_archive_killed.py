"""An archiver killed at each step of a batch: readers of its files see every event once."""

from __future__ import annotations

import signal
from pathlib import Path

import pyarrow as pa
import pytest

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

# A line "publish 2" starts a process, which asks at its second step "publish" what to do. All
# processes use one Java: at these steps it does nothing that it could be killed at.
ARCHIVER = """
import os, signal, sys
from pgqpy_consumers.spark import archive, local_session
from pgqpy_consumers.spark._archive_log import ArchiveLog, Directory

dsn, path = sys.argv[1:]

def step(name):
    global times
    times -= name == wanted
    if name == wanted and not times:
        print("at", name, flush=True)
        if sys.stdin.readline() == "kill\\n":
            os.kill(os.getpid(), signal.SIGKILL)

class Halting(archive.Archive):
    batch_size = 1

    def process_batch(self, spark, batch, df):
        step("read")
        super().process_batch(spark, batch, df)
        step("published")

def before(cls, name):
    method = getattr(cls, name)
    def halting(self, *arguments):
        step(name)
        return method(self, *arguments)
    setattr(cls, name, halting)

before(Directory, "_rename")
before(ArchiveLog, "publish")
spark = local_session("local[1]")
for line in sys.stdin:
    wanted, times = line.split()
    times = int(times)
    if not (child := os.fork()):
        Halting(dsn, path=path, queue="test_queue", spark=spark).run(until_empty=True)
        os._exit(0)
    print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
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
    from pyarrow import dataset  # which imports pandas

    files = dataset.dataset(lake, schema=pa.schema([("ev_id", pa.int64())]))
    return sorted(files.to_table()["ev_id"].to_pylist())


WAITS = "select count(*) > 0 from pg_locks where mode = 'AccessShareLock' and not granted"


def test_an_archiver_killed_anywhere_archives_every_event_once(
    conn: Connection, connect: Connect, dsn: str, queue: str, run_python: Run, tmp_path: Path
) -> None:
    ids = prepare(conn, batches=2)
    killed = run_python(ARCHIVER, dsn, tmp_path)
    killed.enter("read 1")
    killed.go_to("read")
    conn.execute("begin")
    conn.execute("lock table pgq.event in access exclusive mode")
    killed.enter()
    eventually(connect(), WAITS, patience=PATIENCE)
    killed.kill()
    conn.execute("commit")

    archiver = run_python(ARCHIVER, dsn, tmp_path)
    # Renamed are an entry of the log, which commits a batch, and its three files.
    steps = [
        ("_rename", 1, 0),  # before the commit
        ("publish", 1, 0),  # after it
        ("_rename", 2, 10),  # one file was moved
        ("published", 1, 30),  # the batch is not finished
        ("_rename", 4, 50),  # it is, and two files of the next were moved
    ]
    for run, (step, times, seen) in enumerate(steps, 1):
        archiver.enter(f"{step} {times}")
        archiver.go_to(step)
        archiver.enter("kill")
        archiver.hear(f"ended {-signal.SIGKILL}", PATIENCE, times=run)
        found = archived(tmp_path)
        assert len(found) == len(set(found)) == seen, step
    archiver.enter("never 1")
    archiver.hear("ended 0", PATIENCE)
    archiver.finish(PATIENCE)
    assert archived(tmp_path) == ids
    assert not list(tmp_path.glob("_pgqpy/*/staging/*"))
