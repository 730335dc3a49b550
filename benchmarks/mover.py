"""1,000,000 events of a queue into another database's queue: `queue_mover`, and COPY by hand.

By hand is psql's binary COPY out of the event tables, piped into COPY of another psql, in one
transaction, into a plain table with the same columns and index. The mover's transactions are of
about 50,000 events. There is a tick every 10,000 events; payloads have 110 bytes. One server has
both databases; autovacuum is off.
"""

from __future__ import annotations

import subprocess
from functools import partial

from benchmarks._servers import (
    CREATE_QUEUE,
    FLIGHTS,
    KEEPER,
    PLAIN_TABLE,
    connect,
    fill,
    pgqpy_database,
)
from benchmarks.bench import Bench, timed
from pgqpy.embedded import Server
from pgqpy_consumers import _event_copy
from pgqpy_consumers.queue_mover import QueueMover

TICK_EVERY = 10_000
BY_HAND, MOVER = "COPY out | COPY in", "pgqpy, queue_mover"

REWIND = "select pgq.register_consumer_at('q', 'queue_mover', 1)"
FORGET = "select pgq_ext.forget_consumer('queue_mover', 'q')"

COLUMNS = ", ".join(_event_copy.COLUMNS)
EVENTS = f"select {COLUMNS} from pgq.event order by ev_id"
COUNT = "select count(*) from pgq.event"


def by_hand(server: Server, source: str, target: str, columns: str, events: str) -> None:
    """Copy into the plain table of another database, by psql."""
    psql = (str(server.bin_dir / "psql"), "-qXc")
    copy_out = f"copy ({events}) to stdout (format binary)"
    copy_in = f"copy plain ({columns}) from stdin (format binary)"
    with subprocess.Popen([*psql, copy_out, source], stdout=subprocess.PIPE) as out:
        subprocess.run([*psql, copy_in, target], stdin=out.stdout, check=True)
    assert out.returncode == 0


def move(source: str, target: str, count: int) -> float:
    with connect(source) as conn, connect(target) as remote:
        conn.execute("select pgq.unregister_consumer('q', 'queue_mover')")
        conn.execute(REWIND)
        remote.execute(FORGET)
        [(before,)] = remote.execute(COUNT)
    mover = QueueMover(source, target_dsn=target, queue="q", consumer="queue_mover")
    mover.target_queue = "q"
    seconds = timed(partial(mover.run, until_empty=True))
    with connect(target) as remote:
        [(after,)] = remote.execute(COUNT)
    assert after - before == count
    return seconds


def run(bench: Bench) -> None:
    count, rounds = bench.choose((1_000_000, 5), quick=(20_000, 1))
    with bench.server(autovacuum=False) as server:
        source = pgqpy_database(server, CREATE_QUEUE, KEEPER)
        target = pgqpy_database(server, CREATE_QUEUE, PLAIN_TABLE)
        with connect(source) as conn:
            fill(conn, [FLIGHTS % TICK_EVERY] * (count // TICK_EVERY))
        contest = bench.contest(
            "From one database to another",
            {
                BY_HAND: partial(timed, by_hand, server, source, target, COLUMNS, EVENTS),
                MOVER: partial(move, source, target, count),
            },
            rounds=rounds,
            items=count,
            unit="events",
        )
    bench.at_least("C3", f"{MOVER}, times {BY_HAND}", contest.ratio(MOVER, BY_HAND), 0.7)
