"""pgqpy.Consumer reading many batches against psycopg's binary COPY out of a plain table."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

import click

import pgqpy
from benchmarks.contest import Contestant, show, show_rows, take_turns
from benchmarks.place import PLAIN_TABLE, connect, database, options, ours, start

TICK_EVERY = 10_000

FILL = """
select pgq.insert_events('q', array_agg('flight'::text), array_agg('{"id": ' || n || '}'))
  from generate_series(1, %d) n
"""
COLUMNS = (
    "ev_id, ev_time, ev_txid, coalesce(ev_retry, 0), ev_type, ev_data,"
    " ev_extra1, ev_extra2, ev_extra3, ev_extra4"
)
TYPES = ["int8", "timestamptz", "int8", "int4", *["text"] * 6]


@dataclass(frozen=True, slots=True)
class Reading:
    """What reading everything once took."""

    seconds: float
    memory: int
    """kB that the process has grown by, at most."""
    events: int


Reader: TypeAlias = Callable[[str], int]


class Counter(pgqpy.Consumer):
    """Looks at each event."""

    queue_name = "q"
    events = 0

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        self.events += 1


def by_consumer(dsn: str) -> int:
    """As many batches as `pgqpy.Consumer` takes it for; it is registered at the first tick."""
    with connect(dsn) as conn:
        conn.execute("select pgq.unregister_consumer('q', 'counter')")
        conn.execute("select pgq.register_consumer_at('q', 'counter', 1)")
    counter = Counter(dsn, consumer_name="counter")
    counter.run(until_empty=True)
    return counter.events


def by_hand(dsn: str) -> int:
    """One COPY, each row a tuple."""
    statement = f"copy (select {COLUMNS} from plain) to stdout binary".encode()
    with connect(dsn) as conn, conn.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(TYPES)
        return sum(1 for _ in copy.rows())


def read(reader: Reader, dsn: str) -> Reading:
    """Runs in a process of its own, so that memory is the reader's alone."""
    with connect(dsn):
        before = most_memory()
    began = perf_counter()
    events = reader(dsn)
    return Reading(perf_counter() - began, most_memory() - before, events)


def most_memory() -> int:
    """kB this process has had at most. getrusage() would tell of the parent, too."""
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1])


@click.command(help=__doc__)
@options
def main(quick: bool, version: int | None) -> None:
    count, rounds = (20_000, 1) if quick else (1_000_000, 5)
    with start(version) as server:
        dsn = database(server, "consume", ours(), "select pgq.create_queue('q')", PLAIN_TABLE)
        with connect(dsn) as conn:
            # Whoever is registered keeps the events; so the first tick stays, too.
            conn.execute("select pgq.register_consumer('q', 'keeper')")
            for _ in range(0, count, TICK_EVERY):
                conn.execute((FILL % TICK_EVERY).encode())
                conn.execute("select pgq.force_tick('q'), pgq.ticker('q')")
            conn.execute("insert into plain select * from pgq.event_template")
            conn.execute("vacuum analyze")

        memory: dict[str, int] = {}

        def contestant(name: str, reader: Reader) -> Contestant:
            def run() -> float:
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                    reading = process.submit(partial(read, reader, dsn)).result()
                assert reading.events == count, f"{name} has read {reading.events:,} events"
                memory[name] = max(memory.get(name, 0), reading.memory)
                return reading.seconds

            return Contestant(name, run)

        contestants = [contestant("plain COPY", by_hand), contestant("Consumer", by_consumer)]
        take_turns(contestants, rounds)
    show(f"{count:,} events, a tick every {TICK_EVERY:,}", contestants, items=count, unit="events")
    show_rows(
        "Memory",
        ("", "grew by at most, MB"),
        [(name, f"{kilobytes / 1024:.1f}") for name, kilobytes in memory.items()],
    )


if __name__ == "__main__":
    main()
