"""A consumer written on Debian's python3-pgq, run by Debian's Python, reads our queues."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_reference import missing_on_purpose
from tests.fixtures.fix_ticker import PATIENCE

pytestmark = [pytest.mark.reference, pytest.mark.slow, pytest.mark.any_pg]

PYTHON = "/usr/bin/python3"

CONSUMER = """
import json, sys
import pgq

class Reader(pgq.Consumer):
    def process_event(self, db, ev):
        print(json.dumps([ev.id, ev.type, ev.data, ev.extra1, ev.extra2, ev.extra3, ev.extra4,
                          ev.retry]), flush=True)
        if ev.data == "again" and not ev.retry:
            ev.tag_retry(0)

    def process_batch(self, db, batch_id, events):
        for ev in events:
            self.process_event(db, ev)

Reader("reader", "db", sys.argv[1:]).start()
"""

PRODUCER = """
import sys
import pgq, psycopg2
db = psycopg2.connect(sys.argv[1])
curs = db.cursor()
for n in range(3):
    rows = [["bulk", "%d %d\\tx\\n\\\\" % (n, k), None] for k in range(100)]
    pgq.bulk_insert_events(curs, rows, ["type", "data", "extra1"], "test_queue")
    print(pgq.insert_event(curs, "test_queue", "single", "s%d" % n, "e1", None, None, "e4"))
db.commit()
db.rollback()
"""

CONFIG = """
[reader]
job_name = reader
db = {dsn}
queue_name = test_queue
logfile = {directory}/reader.log
pidfile = {directory}/reader.pid
use_skylog = 0
# Leave when there is nothing to do.
loop_delay = 0
{more}
"""


@pytest.fixture(autouse=True)
def _installed() -> None:
    found = shutil.which(PYTHON) and subprocess.run(
        [PYTHON, "-c", "import pgq, psycopg2"], check=False, capture_output=True
    )
    if not found or found.returncode:
        missing_on_purpose("python3-pgq")


def consume(dsn: str, directory: Path, *arguments: str, more: str = "") -> list[list[object]]:
    """Run the consumer until the queue is empty; returns what it printed."""
    config = directory / "reader.ini"
    config.write_text(CONFIG.format(dsn=dsn.replace("%", "%%"), directory=directory, more=more))
    done = subprocess.run(
        [PYTHON, "-c", CONSUMER, str(config), "-q", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def register(dsn: str, directory: Path) -> None:
    assert consume(dsn, directory, "--register") == []


# Whole batches, fetched at once or by cursor; batches of a size that PgQ has to look for.
WAYS = [
    "pgq_lazy_fetch = 3",
    "pgq_batch_collect_events = 5",
    "pgq_keep_lag = 0 s\ntable_filter = x, other.table",
]


@pytest.mark.parametrize("more", WAYS)
def test_a_consumer_of_python3_pgq_reads_and_retries_our_events(
    conn: Connection, dsn: str, queue: str, tmp_path: Path, more: str
) -> None:
    register(dsn, tmp_path)
    seen = conn.execute("select queue_name, consumer_name from pgq.get_consumer_info()").fetchall()
    assert seen == [(queue, "reader")]

    expected: list[list[object]] = []
    for number in range(10):
        data = "again" if number == 4 else f"event {number}"
        ev_id = ops.value(
            conn, "select pgq.insert_event(%s, 't', %s, 'public.x', null, '', 'x4')", queue, data
        )
        expected.append([ev_id, "t", data, "public.x", None, "", "x4", None])
        if number % 4 == 3:
            ops.tick(conn, queue)
    ops.tick(conn, queue)

    assert consume(dsn, tmp_path, more=more) == expected
    assert ops.value(conn, "select pgq.maint_retry_events()") == 1
    ops.tick(conn, queue)
    again = [[*expected[4][:-1], 1]]
    assert consume(dsn, tmp_path, more=more) == again
    assert consume(dsn, tmp_path, "--unregister") == []
    assert ops.value(conn, "select count(*) from pgq.get_consumer_info()") == 0


def test_bulk_insert_events_of_python3_pgq_writes_our_events(
    conn: Connection, dsn: str, queue: str
) -> None:
    ops.register(conn, queue, "c")
    done = subprocess.run(
        [PYTHON, "-c", PRODUCER, dsn], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ops.tick(conn, queue)
    rows = ops.events(conn, ops.next_batch(conn, queue, "c"))
    data = [row[5] for row in rows]
    assert data == [
        text for n in range(3) for text in [*(f"{n} {k}\tx\n\\" for k in range(100)), f"s{n}"]
    ]
    singles = [list(row[6:]) for row in rows if row[4] == "single"]
    assert singles == [["e1", None, None, "e4"]] * 3
    assert done.stdout.split() == [str(row[0]) for row in rows if row[4] == "single"]


def test_psycopg2_catches_our_errors_as_internal_errors_with_a_code(dsn: str) -> None:
    """Checks docs/pgq.md."""
    program = """
import sys
import psycopg2
db = psycopg2.connect(sys.argv[1])
try:
    db.cursor().execute("select pgq.insert_event('nope', 't', 'd')")
except psycopg2.InternalError as error:
    print(error.pgcode, isinstance(error, psycopg2.errors.RaiseException))
"""
    done = subprocess.run(
        [PYTHON, "-c", program, dsn], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout.split() == ["PQ001", "False"]
