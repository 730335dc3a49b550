"""A consumer killed while it sorts out bad events: each event takes effect once, or is a dead
letter once."""

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
import asyncio
import logging
import sys
import pgqpy

logging.getLogger("pgqpy").setLevel(logging.CRITICAL)

class Effects(pgqpy.{a}Consumer):
    queue = "test_queue"
    consumer = "effects"
    retry_policy = pgqpy.FixedDelay(0, attempts=2)
    concurrency = {concurrency}

    {d}def process_event(self, conn, event):
        {w}conn.execute("insert into effect values (%s)", [event.id])
        print(event.id, flush=True)
        if event.id % 7 == 0:
            raise ValueError(event.id)

consumer = Effects(sys.argv[1])
{run}
"""
SYNC = CONSUMER.format(a="", d="", w="", concurrency=1, run="consumer.run(until_empty=True)")
ASYNC = CONSUMER.format(
    a="Async",
    d="async ",
    w="await ",
    concurrency=4,
    run="asyncio.run(consumer.run(until_empty=True))",
)


@contextmanager
def consumer(program: str, dsn: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, dsn], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("program", [SYNC, ASYNC], ids=["one after the other", "four at once"])
def test_a_consumer_killed_among_bad_events_loses_and_doubles_none(
    conn: Connection, dsn: str, queue: str, program: str
) -> None:
    conn.execute("create table effect (ev_id bigint primary key)")
    ops.register(conn, queue, "effects")
    for _ in range(2):
        conn.execute("select pgq.insert_event(%s, 't', '') from generate_series(1, 75)", [queue])
        ops.tick(conn, queue)
    ids = [row[0] for row in conn.execute("select ev_id from pgq.event_template order by 1")]

    # In the first run of a batch, in the second one in pieces, and further on.
    for lines in (3, 20, 60, 90, 130):
        with consumer(program, dsn) as process:
            assert process.stdout is not None
            for _ in range(lines):
                if not process.stdout.readline():
                    break  # there was less to do than that
        assert ops.value(conn, "select count(*) from effect where ev_id %% 7 = 0") == 0

    while True:
        with consumer(program, dsn) as process:
            process.communicate(timeout=PATIENCE)
            assert process.returncode == 0
        if not ops.value(conn, "select pgq.maint_retry_events()"):
            break
        ops.tick(conn, queue)

    effects = [row[0] for row in conn.execute("select ev_id from effect order by 1")]
    letters = conn.execute("select ev_id, dl_attempts from pgq.dead_letter order by 1").fetchall()
    assert effects == [each for each in ids if each % 7]
    assert letters == [(each, 2) for each in ids if each % 7 == 0]
