"""Rotation, a day in fast forward.

Tables rotate every ten seconds instead of every two hours, maintenance runs every five seconds
instead of every minute: a day takes two minutes. A producer writes 1,000 events a transaction, a
consumer reads, both as fast as they can. The bound: three tables, each filled for ten seconds and
up to five more until maintenance noticed, at the highest rate of any ten seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection as Pipe

from benchmarks._beside import processes, ticker
from benchmarks._servers import CREATE_QUEUE, Connection, connect, pgqpy_database
from benchmarks.bench import Bench
from benchmarks.readers import READER, Readers, readers, tally
from pgqpy import Producer

PERIOD, MAINTENANCE, TABLES = 10, 5, 3
IN_A_TRANSACTION = 1_000
MOST = 100_000_000
EVENT = ("flight", '{"id": 1, "origin": "EWR", "dest": "IAH"}')

CONFIGURE = f"select pgq.set_queue_config('q', 'rotation_period', '{PERIOD} seconds')"
SAMPLE = """
select pg_sequence_last_value(queue_event_seq_id),
       sum(pg_total_relation_size((queue_data_pfx || '_' || n)::regclass))::int8,
       pg_database_size(current_database()), queue_rotations
  from pgq.queue, generate_series(0, queue_ntables - 1) n
 group by queue_event_seq_id, queue_rotations
"""


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float
    read: int
    written: int
    tables: int
    """The size of the queue's event tables in bytes, with their indexes."""
    database: int
    rotations: int


def run(bench: Bench) -> None:
    seconds = 60 * bench.minutes(15, quick=0.75)
    with bench.server() as server:
        dsn = pgqpy_database(server, CREATE_QUEUE, CONFIGURE, READER)
        with (
            connect(dsn) as conn,
            ticker(dsn, maintenance_period=MAINTENANCE),
            readers(dsn, [("q", "reader")], work=tally) as group,
        ):
            each = bytes_of_an_event(conn)
            with processes(produce, [(dsn,)]):
                samples = list(watch(conn, group, seconds))

    last = samples[-1]
    tenths = throughput(samples)
    fastest = max(
        (later.written - earlier.written) / (later.seconds - earlier.seconds)
        for earlier, later in zip(samples, samples[PERIOD:], strict=False)
    )
    bound = TABLES * (PERIOD + MAINTENANCE) * fastest * each
    largest = max(sample.tables for sample in samples)
    megabytes = 1 / 1024**2
    bench.series(
        "Size on disk",
        y="MB",
        lines={
            "event tables": ((s.seconds / 60, s.tables * megabytes) for s in samples),
            "the database": ((s.seconds / 60, s.database * megabytes) for s in samples),
        },
    )
    bench.series(
        "Events read a second, by tenths of the time",
        y="events a second",
        lines={"consumer": enumerate(tenths, 1)},
    )
    bench.table(
        "In all",
        ("", "number"),
        [
            ("events written", last.written),
            ("events read", last.read),
            ("rotations", last.rotations),
            ("bytes of an event, with its index", each),
            ("largest size of the event tables, MB", largest * megabytes),
            ("bound from the settings, MB", bound * megabytes),
        ],
    )
    note = (
        f"bound: {TABLES} tables x ({PERIOD} s + {MAINTENANCE} s) x {fastest:,.0f} events/s"
        f" x {each:.0f} bytes; {last.rotations} rotations, {last.read:,} events."
    )
    bench.at_most(
        "14a", "largest size of the event tables, of the bound", largest / bound, 1, note=note
    )
    bench.at_least("14b", "events read a second, last tenth of first", tenths[-1] / tenths[0], 0.95)


def bytes_of_an_event(conn: Connection) -> float:
    count = 20_000
    Producer("q").insert_events(conn, [EVENT] * count)
    [(_, size, *_)] = conn.execute(SAMPLE).fetchall()
    return int(size) / count


def watch(conn: Connection, group: Readers, seconds: float) -> Iterator[Sample]:
    """Give a sample each second."""
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds and group.events < MOST:
        [sample] = conn.execute(SAMPLE).fetchall()
        yield Sample(now, group.events, *sample)
        time.sleep(1)


def throughput(samples: Sequence[Sample]) -> list[float]:
    """Events read a second, in each tenth of the time."""
    marks = [samples[(len(samples) - 1) * tenth // 10] for tenth in range(11)]
    return [
        (end.read - begin.read) / (end.seconds - begin.seconds) for begin, end in pairwise(marks)
    ]


def produce(pipe: Pipe, dsn: str) -> None:
    """Produce until terminated."""
    pipe.send(None)
    producer = Producer("q")
    events = [EVENT] * IN_A_TRANSACTION
    with connect(dsn) as conn:
        while True:
            producer.insert_events(conn, events)
