"""A thousand queues, a hundred of them busy, while others come and go.

Each has three registered consumers. A busy one gets ten events a second by pgbench, and has one
`AsyncConsumer`; four processes share these. Delivery is from the start of the inserting
transaction. *New connections* insert one event each into other queues; connecting does not count.
*Queues that come and go* are created and dropped by one session as fast as it can; the slowest
insert meanwhile counts, and for comparison that beside a session that only computes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks._beside import thread, ticker
from benchmarks._meter import Meter, Party
from benchmarks._pgbench import producers
from benchmarks._servers import connect, pgqpy_database
from benchmarks.bench import Bench, timed
from benchmarks.readers import readers, watch_together

PROCESSES = 4
"""The processes of the busy queues' consumers."""
RATE = 10
"""Events a second in each busy queue."""

QUEUES = """
do $$
begin
    for n in 1 .. %d loop
        perform pgq.create_queue('q' || n);
        perform pgq.register_consumer('q' || n, consumer)
           from unnest(array['reader', 'second', 'third']) consumer;
        commit;
    end loop;
end $$
"""
PRODUCE = r"""
\set n random(1, %d)
select pgq.insert_event('q' || :n, 'type', '{"id": 1, "origin": "EWR", "dest": "IAH"}');
"""
FIRST = "select pgq.insert_event('{}', 'type', 'data')"
FIRST_IN_RELATION = "insert into pgq_queue.{} (ev_type, ev_data) values ('type', 'data')"
COME_AND_GO = ("select pgq.create_queue('passing')", "select pgq.drop_queue('passing')")
COMPUTE = "select count(*) from generate_series(1, 60000) n where mod(hashint4(n), 3) = 5"


def run(bench: Bench) -> None:
    queues = bench.choose(1_000, quick=50)
    seconds = 60 * bench.minutes(1)
    busy = queues // 10
    produce = PRODUCE % busy
    others = range(busy + 1, 2 * busy + 1)
    positions = [(f"q{number}", "reader") for number in range(1, busy + 1)]

    with bench.server(max_connections=1000) as server:
        dsn = pgqpy_database(server)
        with connect(dsn) as conn:
            conn.execute((QUEUES % queues).encode())
        with (
            ticker(dsn) as daemon,
            readers(dsn, positions, processes=PROCESSES, work=watch_together) as group,
            connect(dsn) as conn,
        ):
            with producers(server, dsn, produce, clients=4, rate=RATE * busy) as alone:
                time.sleep(min(10, seconds))
                parties = {
                    "ticker": Party([daemon], ("pgqpy ticker",)),
                    "consumers": Party(group.processes, ("pgqpy reader", "pgqpy listen")),
                }
                meter = Meter(conn, parties)
                began = time.time()
                time.sleep(seconds)
                until = time.time()
                shares, ended = meter.shares()
                first_busy = first_inserts(dsn, others)
            with (
                over_and_over(dsn, *COME_AND_GO) as pairs,
                producers(server, dsn, produce, clients=4, rate=RATE * busy) as beside,
            ):
                time.sleep(seconds)
            with (
                over_and_over(dsn, COMPUTE),
                producers(server, dsn, produce, clients=4, rate=RATE * busy) as computing,
            ):
                time.sleep(seconds)
            first = first_inserts(dsn, others)
            first_in_relation = first_inserts(dsn, others, FIRST_IN_RELATION)

    ages = group.ages_between(began, until)
    batches = sum(record.batches_between(began, until) for record in group.records)
    delivery = bench.delays(f"Delivery, {busy} busy queues", {"to the consumer's method": ages})
    bench.delays(
        "First insert of a new connection",
        {
            "insert_event": first,
            "INSERT into the relation": first_in_relation,
            f"insert_event, beside {RATE * busy:,} events a second": first_busy,
        },
    )
    bench.table(
        "Processor time, of one core",
        ("", "program", "its sessions"),
        [(name, share.program, share.sessions) for name, share in shares.items()],
    )
    bench.table(
        "Meanwhile",
        ("", "number"),
        [
            ("batches a second", batches / seconds),
            ("events in a batch", len(ages) / max(batches, 1)),
            ("queues created and dropped, a second", len(pairs) / seconds),
            ("slowest insert when none are, ms", 1000 * alone.slowest),
            ("slowest beside a session that computes instead, ms", 1000 * computing.slowest),
        ],
    )
    bench.at_most("13a", "delivery, p99", delivery.ms("to the consumer's method", 99), 250, "ms")
    bench.at_most(
        "13b",
        "ticker and its sessions, of a core",
        100 * (shares["ticker"].both + ended),
        30,
        "%",
        note="all sessions that ended meanwhile are counted as the ticker's.",
    )
    bench.at_most("13c", "first insert of a new connection, median", 1000 * median(first), 10, "ms")
    bench.at_most("R6", "the same into the relation", 1000 * median(first_in_relation), 10, "ms")
    bench.at_most(
        "13d",
        "slowest insert while queues come and go",
        1000 * beside.slowest,
        50,
        "ms",
        note=f"the slowest without them took {1000 * alone.slowest:.1f} ms, beside a session that"
        f" only computes {1000 * computing.slowest:.1f} ms.",
    )


def first_inserts(dsn: str, queues: range, statement: str = FIRST) -> list[float]:
    """The seconds of the first insert of new connections, one to each queue."""
    took = []
    for number in queues:
        with connect(dsn) as conn:
            took.append(timed(conn.execute, statement.format(f"q{number}").encode()))
    return took


@contextmanager
def over_and_over(dsn: str, *statements: str) -> Iterator[list[float]]:
    """Execute the statements over and over; gives the seconds of each round."""
    took: list[float] = []

    def work(done: threading.Event) -> None:
        with connect(dsn) as conn:
            while not done.is_set():
                took.append(sum(timed(conn.execute, each.encode()) for each in statements))

    with thread(work):
        yield took
