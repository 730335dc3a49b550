"""A consumer process killed in the middle of a batch: each event takes effect once, or is a dead
letter once."""

from __future__ import annotations

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import Run

pytestmark = pytest.mark.slow

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


def test_a_consumer_that_is_killed_takes_up_where_it_had_committed(
    conn: Connection, dsn: str, queue: str, run_python: Run
) -> None:
    conn.execute("create table effect (ev_id bigint primary key)")
    ops.register(conn, queue, "effects")
    ids = []
    for _ in range(KILLS * 3):
        ids += [ops.insert(conn, queue, "event") for _ in range(20)]
        ops.tick(conn, queue)

    for life in range(KILLS):
        lines = 5 + 10 * life
        consumer = run_python(CONSUMER, dsn, lines + 30)
        # Within a batch: the first has been begun, some others may be through.
        consumer.hear_lines(lines)
        consumer.kill()
        done = ops.value(conn, "select count(*) from effect")
        assert done % 20 == 0
    assert 0 < done < len(ids)

    run_python(CONSUMER, dsn, 0).finish()
    assert [row[0] for row in conn.execute("select ev_id from effect order by 1")] == ids


SORTING = """
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
SYNC = SORTING.format(a="", d="", w="", concurrency=1, run="consumer.run(until_empty=True)")
ASYNC = SORTING.format(
    a="Async",
    d="async ",
    w="await ",
    concurrency=4,
    run="asyncio.run(consumer.run(until_empty=True))",
)


@pytest.mark.parametrize("program", [SYNC, ASYNC], ids=["one after the other", "four at once"])
def test_a_consumer_killed_among_bad_events_loses_and_doubles_none(
    conn: Connection, dsn: str, queue: str, program: str, run_python: Run
) -> None:
    conn.execute("create table effect (ev_id bigint primary key)")
    ops.register(conn, queue, "effects")
    for _ in range(2):
        conn.execute("select pgq.insert_event(%s, 't', '') from generate_series(1, 75)", [queue])
        ops.tick(conn, queue)
    ids = [row[0] for row in conn.execute("select ev_id from pgq.event_template order by 1")]

    # In the first run of a batch, in the second one in pieces, and further on.
    for lines in (3, 20, 60, 90, 130):
        consumer = run_python(program, dsn)
        consumer.hear_lines(lines)
        consumer.kill()
        assert ops.value(conn, "select count(*) from effect where ev_id %% 7 = 0") == 0

    while True:
        run_python(program, dsn).finish()
        if not ops.value(conn, "select pgq.maint_retry_events()"):
            break
        ops.tick(conn, queue)

    effects = [row[0] for row in conn.execute("select ev_id from effect order by 1")]
    letters = conn.execute("select ev_id, dl_attempts from pgq.dead_letter order by 1").fetchall()
    assert effects == [each for each in ids if each % 7]
    assert letters == [(each, 2) for each in ids if each % 7 == 0]
