"""A consumer reads 1,000,000 events: `pgqpy.Consumer`, python3-pgq, and COPY by hand.

Each is a process, and looks at every event. By hand is psycopg's binary COPY out of a plain table
with the same rows. python3-pgq reads from PgQ's C version, with its default fetches
(`pgq_lazy_fetch`, 300 events) and with whole batches (0). There is a tick every 10,000 events;
payloads have 110 bytes.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import get_context

import pgqpy
from benchmarks._program import DEBIAN_PYTHON, python_program
from benchmarks._servers import (
    CREATE_QUEUE,
    FLIGHTS,
    KEEPER,
    OURS,
    PGQ_C,
    PLAIN_TABLE,
    connect,
    database,
    fill,
    implementations,
)
from benchmarks.bench import Bench
from benchmarks.programs.protocol import Notes, Reader, Reading

TICK_EVERY = 10_000
BY_HAND, CONSUMER, CLIENT = "psycopg's COPY", "pgqpy.Consumer", "python3-pgq"
CLIENT_WHOLE = "python3-pgq, whole batches"

REWIND = (
    "select pgq.unregister_consumer('q', 'counter')",
    "select pgq.register_consumer_at('q', 'counter', 1)",
)
COLUMNS = (
    "ev_id, ev_time, ev_txid, coalesce(ev_retry, 0), ev_type, ev_data,"
    " ev_extra1, ev_extra2, ev_extra3, ev_extra4"
)
TYPES = ["int8", "timestamptz", "int8", "int4", *["text"] * 6]


class Counter(pgqpy.Consumer):
    """Looks at each event."""

    queue = "q"
    consumer = "counter"
    events = 0

    def __init__(self, dsn: str, notes: Notes) -> None:
        super().__init__(dsn)
        self.notes = notes

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        self.events += 1

    def on_batch(self, stats: pgqpy.BatchStats) -> None:
        if not self.notes.memory and self.events >= self.notes.a_tenth:
            self.notes.take()


def by_consumer(dsn: str, notes: Notes) -> int:
    counter = Counter(dsn, notes)
    counter.run(until_empty=True)
    return counter.events


def by_hand(dsn: str, notes: Notes) -> int:
    statement = f"copy (select {COLUMNS} from plain) to stdout binary".encode()
    with connect(dsn) as conn, conn.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(TYPES)
        rows = copy.rows()
        a_tenth = sum(1 for _ in islice(rows, notes.a_tenth))
        notes.take()
        return a_tenth + sum(1 for _ in rows)


def read(reader: Reader, a_tenth: int, dsn: str) -> Reading:
    with connect(dsn):  # so that what the first connection needs does not count
        return Notes(a_tenth).read(reader, dsn)


def read_apart(reader: Reader, a_tenth: int, dsn: str) -> Reading:
    """Read in a process of its own, so that memory is the reader's alone."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(read, reader, a_tenth, dsn).result()


def read_by_client(lazy_fetch: int, a_tenth: int, dsn: str) -> Reading:
    counter = python_program("pgq_counter", DEBIAN_PYTHON)
    return Reading(*json.loads(counter.run(dsn, str(a_tenth), str(lazy_fetch))))


def has_client() -> bool:
    found = subprocess.run([DEBIAN_PYTHON, "-c", "import pgq"], check=False, capture_output=True)
    return found.returncode == 0


def run(bench: Bench) -> None:
    count, rounds = bench.choose((1_000_000, 5), quick=(20_000, 1))
    a_tenth = count // 10
    memory: dict[str, list[int]] = {}
    with bench.server() as server:
        scripts = implementations(server)

        def contestant(name: str, read: Callable[[str], Reading], dsn: str) -> Callable[[], float]:
            def run() -> float:
                with connect(dsn) as conn:
                    for statement in REWIND:
                        conn.execute(statement.encode())
                reading = read(dsn)
                assert reading.events == count, f"{name} has read {reading.events:,} events"
                memory[name] = max(memory.get(name, reading.memory), reading.memory)
                return reading.seconds

            return run

        def filled(implementation: str) -> str:
            dsn = database(server, scripts[implementation], CREATE_QUEUE, KEEPER, PLAIN_TABLE)
            with connect(dsn) as conn:
                fill(conn, [FLIGHTS % TICK_EVERY] * (count // TICK_EVERY))
                conn.execute("insert into plain select * from pgq.event_template")
                conn.execute("vacuum analyze plain")
            return dsn

        bench.say("Filling the queues")
        dsn = filled(OURS)
        ways = {
            BY_HAND: (partial(read_apart, by_hand, a_tenth), dsn),
            CONSUMER: (partial(read_apart, by_consumer, a_tenth), dsn),
        }
        if PGQ_C in scripts and has_client():
            dsn = filled(PGQ_C)
            ways[CLIENT] = (partial(read_by_client, 300, a_tenth), dsn)
            ways[CLIENT_WHOLE] = (partial(read_by_client, 0, a_tenth), dsn)
        contest = bench.contest(
            f"{count:,} events",
            {name: contestant(name, *way) for name, way in ways.items()},
            rounds=rounds,
            items=count,
            unit="events",
        )
    bench.table(
        "Memory that the process has grown by, MB",
        ("", "after a tenth of the events", "at the end"),
        [[name, *(kilobytes / 1024 for kilobytes in grown)] for name, grown in memory.items()],
    )
    bench.at_least("7a", f"times {BY_HAND}", contest.ratio(CONSUMER, BY_HAND), 0.8)
    if CLIENT in ways:
        fastest = max(CLIENT, CLIENT_WHOLE, key=contest.rate)
        bench.at_least("7b", f"times {fastest}", contest.ratio(CONSUMER, fastest), 2.0)
    after_a_tenth, at_the_end = memory[CONSUMER]
    bench.at_most(
        "7c",
        "memory that it grows by after the first tenth of the events",
        (at_the_end - after_a_tenth) / 1024,
        1.0,
        "MB",
        note="The issue says flat; the payloads alone of nine tenths are 100 MB.",
    )
