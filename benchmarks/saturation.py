"""The maximum rate of inserts, and how the consumer keeps up with it.

For a minute eight pgbench clients insert as fast as they can, an event a transaction, with ticker
and consumer on the same machine; before and after, a client inserts 100 events a second.
"""

from __future__ import annotations

import time
from functools import partial

from benchmarks._beside import sampling, ticker
from benchmarks._pgbench import producers
from benchmarks._servers import CREATE_QUEUE, Connection, pgqpy_database
from benchmarks.bench import Bench
from benchmarks.failing import INSERTED
from benchmarks.held_xmin import PRODUCE
from benchmarks.readers import READER, Readers, readers

CLIENTS = 8


def behind(group: Readers, conn: Connection) -> float:
    """The number of waiting events."""
    processed = group.events
    [(inserted,)] = conn.execute(INSERTED).fetchall()
    return float(max((inserted or 0) - processed, 0))


def run(bench: Bench) -> None:
    seconds = 60 * bench.minutes(1)
    calm = bench.choose(10.0, quick=3.0)
    with bench.server() as server:
        dsn = pgqpy_database(server, CREATE_QUEUE, READER)
        with (
            ticker(dsn),
            readers(dsn, [("q", "reader")]) as group,
            sampling(dsn, partial(behind, group)) as backlog,
        ):
            with producers(server, dsn, PRODUCE, clients=1, rate=100):
                time.sleep(calm)
            began = time.time()
            with producers(server, dsn, PRODUCE, clients=CLIENTS):
                time.sleep(seconds)
            until = time.time()
            with producers(server, dsn, PRODUCE, clients=1, rate=100):
                time.sleep(calm)
    [record] = group.records
    events = [
        (arrived, age)
        for arrived, age in zip(record.arrived, record.ages, strict=True)
        if began <= arrived - age < until
    ]
    recovered = max(arrived for arrived, _ in events) - until
    calm_again = record.ages_between(until + max(recovered, 0), time.time())
    batches = record.batches_between(began, until)
    flood, before, after = "at the highest rate", "100 events a second before", "and after"
    delays = bench.delays(
        "Delivery, from the start of the transaction to the consumer's method",
        {
            before: record.ages_between(0, began),
            flood: [age for _, age in events],
            after: calm_again,
        },
    )
    bench.series(
        "Events inserted and not yet processed",
        y="events",
        lines={"backlog": [(moment - began, events) for moment, events in backlog]},
    )
    middle = (began + until) / 2
    halves = [
        max((waiting for moment, waiting in backlog if begin <= moment < end), default=0)
        for begin, end in ((began, middle), (middle, until))
    ]
    bench.table(
        "At the highest rate",
        ("", "number"),
        [
            ("events a second", len(events) / (until - began)),
            ("batches a second", batches / (until - began)),
            ("events in a batch", len(events) / max(batches, 1)),
            ("largest backlog in the first half, events", halves[0]),
            ("largest backlog in the second half, events", halves[1]),
        ],
    )
    bench.at_most("9a", "last event processed after the producers paused", recovered, 2, "s")
    bench.at_most(
        "9b",
        "delivery after that, p99, of before",
        delays.ms(after, 99) / delays.ms(before, 99),
        1.5,
        note=f"in between it was {delays.ms(flood, 99):.0f} ms.",
    )
