"""A consumer process killed in the middle of a batch: its effects happen exactly once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import PATIENCE

CONSUMER = """
import signal
import sys
import pgqpy

class Effects(pgqpy.Consumer):
    queue = "test_queue"
    consumer = "effects"
    batch_size = None
    left = int(sys.argv[2])

    def process_event(self, conn, event):
        conn.execute("insert into effect values (%s)", [event.id])
        print(event.id, flush=True)
        self.left -= 1
        if not self.left:
            signal.pause()  # the kill may come late

Effects(sys.argv[1]).run(until_empty=not Effects.left)
"""
KILLS = 5


@contextmanager
def consumer(dsn: str, most: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A consumer of at most this many events; without a number, of all there are."""
    process = subprocess.Popen(
        [sys.executable, "-c", CONSUMER, dsn, str(most)], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.slow
def test_a_consumer_that_is_killed_takes_up_where_it_had_committed(
    conn: Connection, dsn: str, queue: str
) -> None:
    conn.execute("create table effect (ev_id bigint primary key)")
    ops.register(conn, queue, "effects")
    ids = []
    for _ in range(KILLS * 3):
        ids += [ops.insert(conn, queue, "event") for _ in range(20)]
        ops.tick(conn, queue)

    for life in range(KILLS):
        lines = 5 + 10 * life
        with consumer(dsn, most=lines + 30) as process:
            # Within a batch: the first has been begun, some others may be through.
            assert process.stdout is not None
            for _ in range(lines):
                assert process.stdout.readline()
        done = ops.value(conn, "select count(*) from effect")
        assert done % 20 == 0
    assert 0 < done < len(ids)

    with consumer(dsn) as process:
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    assert [row[0] for row in conn.execute("select ev_id from effect order by 1")] == ids
