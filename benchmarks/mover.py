"""1,000,000 events of a queue into another database's queue: `queue_mover`, and COPY by hand.

By hand is psql's binary COPY out of the event tables, piped into COPY of another psql, in one
transaction, into a plain table with the same columns and index. The mover's transactions are of
about 50,000 events. There is a tick every 10,000 events; payloads have 110 bytes. One server has
both databases; autovacuum is off.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from time import perf_counter

from benchmarks._servers import CREATE_QUEUE, FLIGHTS, PLAIN_TABLE, connect, database, fill
from benchmarks.bench import Bench
from pgqpy.schema import schema_sql
from pgqpy_consumers._event_copy import COLUMNS
from pgqpy_consumers.queue_mover import QueueMover

TICK_EVERY = 10_000
BY_HAND, MOVER = "COPY out | COPY in", "pgqpy, queue_mover"

REWIND = "select pgq.register_consumer_at('q', 'queue_mover', 1)"
FORGET = "select pgq_ext.forget_consumer('queue_mover', 'q')"

COPY_OUT = (
    f"copy (select {', '.join(COLUMNS)} from pgq.event order by ev_id) to stdout (format binary)"
)
COPY_IN = f"copy plain ({', '.join(COLUMNS)}) from stdin (format binary)"


def by_hand(psql: Path, source: str, target: str) -> float:
    began = perf_counter()
    with subprocess.Popen([psql, source, "-qXc", COPY_OUT], stdout=subprocess.PIPE) as out:
        subprocess.run([psql, target, "-qXc", COPY_IN], stdin=out.stdout, check=True)
    assert out.returncode == 0
    return perf_counter() - began


def move(source: str, target: str, count: int) -> float:
    with connect(source) as conn, connect(target) as remote:
        conn.execute("select pgq.unregister_consumer('q', 'queue_mover')")
        conn.execute(REWIND)
        remote.execute(FORGET)
        before = remote.execute("select count(*) from pgq.event").fetchone()
    mover = QueueMover(source, target_dsn=target, queue="q", consumer="queue_mover")
    mover.target_queue = "q"
    began = perf_counter()
    mover.run(until_empty=True)
    seconds = perf_counter() - began
    with connect(target) as remote:
        after = remote.execute("select count(*) from pgq.event").fetchone()
    assert before is not None
    assert after is not None
    assert after[0] - before[0] == count
    return seconds


def run(bench: Bench) -> None:
    count, rounds = bench.choose((1_000_000, 5), quick=(20_000, 1))
    with bench.server(autovacuum=False) as server:
        schema = schema_sql()
        source = database(server, "source", schema, CREATE_QUEUE)
        target = database(server, "target", schema, CREATE_QUEUE, PLAIN_TABLE)
        with connect(source) as conn:
            fill(conn, [FLIGHTS % TICK_EVERY] * (count // TICK_EVERY))
        psql = server.bin_dir / "psql"
        contest = bench.contest(
            "From one database to another",
            {
                BY_HAND: lambda: by_hand(psql, source, target),
                MOVER: lambda: move(source, target, count),
            },
            rounds=rounds,
            items=count,
            unit="events",
        )
    bench.at_least("C3", f"{MOVER}, times {BY_HAND}", contest.ratio(MOVER, BY_HAND), 0.7)
