"""Rows of an application's table, processed by `TableWorker`.

Each row leaves a row in another table. By hand is the loop that seed 001 describes, a poll of 200
rows and a transaction for each, in the only process allowed. `TableWorker` runs in two processes
with two connections each. Last, a transaction is open that has seen 200,000 rows which were done
since. Settings of PostgreSQL are the defaults.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import pgqpy
from benchmarks._servers import connect, pgqpy_database
from benchmarks.bench import Bench
from pgqpy.tasks import TableWorker

BY_HAND, EACH_ROW, BATCHES = "by hand", "a transaction a row", "a transaction per 100 rows"
HELD = "{}, a transaction held open"
PROCESSES = 2
BATCH = 100

# Each turn gets its own table, so that turns do not affect each other.
CREATE = """
drop table if exists message, effect;
create table message (id bigint primary key, payload text);
create table effect (id bigint);
select pgq_task.add_columns('message');
"""
FILL = "insert into message select n, repeat('x', 100) from generate_series(%s + 1, %s) n"
DONE = "update message set status = 'succeeded', next_attempt = null, attempts = 1"
EFFECT = "insert into effect values (%s)"

POLL = """
select id from message where next_attempt < now() order by next_attempt limit 200
"""
SUCCESS = """
update message
   set status = 'succeeded', next_attempt = null, attempts = attempts + 1, last_attempt = now()
 where id = %s
"""


def by_hand(dsn: str) -> tuple[float, float]:
    """The times of its begin and end."""
    with connect(dsn) as conn:
        began = time.time()
        while rows := conn.execute(POLL).fetchall():
            for row in rows:
                with conn.transaction():
                    conn.execute(EFFECT, row)
                    conn.execute(SUCCESS, row)
        return began, time.time()


def effect(conn: pgqpy.Connection, row: dict[str, Any]) -> None:
    conn.execute(EFFECT, (row["id"],))


def by_worker(batch_size: int, dsn: str) -> tuple[float, float]:
    """The times of its begin and end."""
    worker = TableWorker(dsn, "message", effect, batch_size=batch_size, concurrency=2)
    began = time.time()
    worker.run(until_empty=True)
    return began, time.time()


def run(bench: Bench) -> None:
    count, dead, rounds = bench.choose((40_000, 200_000, 3), quick=(500, 1_000, 1))
    with bench.server() as server:
        dsn = pgqpy_database(server)

        def turn(work: Callable[[str], tuple[float, float]], processes: int, held: int) -> float:
            with (
                filled(dsn, count, held),
                ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool,
            ):
                # All processes have started and imported their modules before the clock starts.
                list(pool.map(time.sleep, [0.2] * processes))
                times = list(pool.map(work, [dsn] * processes))
            with connect(dsn) as conn:
                [(done, once)] = conn.execute("select count(*), count(distinct id) from effect")
            assert done == once == count, f"{done:,} effects of {once:,} rows"
            return max(end for _, end in times) - min(begin for begin, _ in times)

        ways: dict[str, Callable[[], float]] = {
            BY_HAND: partial(turn, by_hand, 1, 0),
            EACH_ROW: partial(turn, partial(by_worker, 1), PROCESSES, 0),
            BATCHES: partial(turn, partial(by_worker, BATCH), PROCESSES, 0),
            HELD.format(EACH_ROW): partial(turn, partial(by_worker, 1), PROCESSES, dead),
            HELD.format(BATCHES): partial(turn, partial(by_worker, BATCH), PROCESSES, dead),
        }
        contest = bench.contest(f"{count:,} rows", ways, rounds=rounds, items=count, unit="rows")
    bench.at_least("Q9a", EACH_ROW, contest.rate(EACH_ROW), 700, "rows/s")
    bench.at_least("Q9b", BATCHES, contest.rate(BATCHES), 1_400, "rows/s")
    for part, way in (("a", EACH_ROW), ("b", BATCHES)):
        held = HELD.format(way)
        bench.at_least(f"Q10{part}", f"{held}, x without", contest.ratio(held, way), 0.8)


@contextmanager
def filled(dsn: str, count: int, dead: int) -> Iterator[None]:
    """The table with ``count`` rows to process, behind ``dead`` rows that are done."""
    with connect(dsn) as conn, connect(dsn) as holder:
        conn.execute(CREATE.encode())
        conn.execute(FILL, (0, dead))
        if dead:
            holder.execute("begin transaction isolation level repeatable read")
            holder.execute("select count(*) from message")
        conn.execute(DONE)
        conn.execute(FILL, (dead, dead + count))
        conn.execute("analyze message")
        yield
