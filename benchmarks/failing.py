"""Inserts of normal events beside 100,000 others: dead letters, retries, and delayed events.

First while they wait: `pgq.insert_event` by 8 clients of pgbench, in databases with and without
them. Then while producers insert 2,000 events a second, and 100,000 of one batch are given up or
retried in one transaction, as many are inserted for later, or all become due at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

import pgqpy
from benchmarks._pgbench import contestant, producers
from benchmarks._servers import CREATE_QUEUE, TICK, connect, pgqpy_database
from benchmarks.bench import Bench
from benchmarks.insert import BY_FUNCTION

CLIENTS = 8
RATE = 2_000
REGISTER = "select pgq.register_consumer('q', 'failing')"
FILL = "select count(pgq.insert_event('q', 'type', repeat('x', 130))) from generate_series(1, %s)"
SKIP = "select pgq.register_consumer_at('q', 'failing', max(tick_id)) from pgq.tick"
INSERTED = "select pg_sequence_last_value(queue_event_seq_id) from pgq.queue"

LATER = (
    "select count(*) from pgq.insert_events_at('q', array_fill(now() + %s::interval, array[%s]),"
    " array_fill('type'::text, array[%s]), array_fill(repeat('x', 130), array[%s]))"
)

NOTHING, DEAD_LETTERS, RETRIES = "nothing waits", "dead letters", "retries"
DELAYED = "delayed events"
LATER_BURST = "events are inserted for later"
POLICIES = {DEAD_LETTERS: pgqpy.FixedDelay(0, attempts=1), RETRIES: pgqpy.FixedDelay(24 * 3600)}


class Failing(pgqpy.Consumer):
    """Fails for every event."""

    queue = "q"
    consumer = "failing"
    batch_size = None
    failed = 0

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        raise ValueError

    def on_batch(self, stats: pgqpy.BatchStats) -> None:
        self.failed += stats.retried + stats.dead_letters


def give_up(dsn: str, policy: pgqpy.RetryPolicy, events: int) -> None:
    """Fail all ``events`` events of the next batch."""
    consumer = Failing(dsn)
    consumer.retry_policy = policy
    assert consumer.run_once()
    assert consumer.failed == events, f"{consumer.failed:,} events have failed"


def fill(dsn: str, events: int) -> None:
    """Fill the consumer's next batch with ``events`` events."""
    with connect(dsn) as conn:
        conn.execute(TICK)
        conn.execute(SKIP)
        conn.execute(FILL, [events])
        conn.execute(TICK)


def delay(dsn: str, events: int, until: str) -> None:
    """Insert ``events`` events for later, in one transaction."""
    with connect(dsn) as conn:
        conn.execute(LATER, [until, events, events, events])


def bring_back(dsn: str) -> None:
    """Put all due events into the queue."""
    with connect(dsn) as conn:
        while conn.execute("select pgq.maint_retry_events()").fetchone() != (0,):
            pass


def rate_during(dsn: str, burst: Callable[[], None], own: int = 0) -> tuple[float, float]:
    """Events a second that producers insert during the burst, and its duration in seconds.

    The burst itself uses ``own`` ids.
    """
    with connect(dsn) as conn:
        (before,) = conn.execute(INSERTED).fetchone() or (0,)
        began = time.perf_counter()
        burst()
        took = time.perf_counter() - began
        (after,) = conn.execute(INSERTED).fetchone() or (0,)
    return (after - before - own) / took, took


def run(bench: Bench) -> None:
    count = bench.choose(100_000, quick=2_000)
    transactions, rounds = bench.choose((32_000, 9), quick=(400, 1))
    seconds = bench.choose(10.0, quick=1.0)
    # Logging a line for each event would take most of the time.
    logging.getLogger("pgqpy").setLevel(logging.CRITICAL)
    with bench.server(autovacuum=False) as server:
        databases = {}
        for name in (NOTHING, *POLICIES, DELAYED):
            dsn = pgqpy_database(server, CREATE_QUEUE, REGISTER)
            databases[name] = dsn
            if name in POLICIES:
                bench.say(f"{count:,} {name}")
                fill(dsn, count)
                give_up(dsn, POLICIES[name], count)
        bench.say(f"{count:,} {DELAYED}")
        delay(databases[DELAYED], count, "1 day")
        waiting = bench.contest(
            f"inserts, {count:,} of them waiting",
            {
                name: contestant(
                    server, dsn, BY_FUNCTION, clients=CLIENTS, transactions=transactions
                )
                for name, dsn in databases.items()
            },
            rounds=rounds,
            items=transactions,
            unit="events",
        )

        dsn = pgqpy_database(server, CREATE_QUEUE, REGISTER)
        at_once = pgqpy.FixedDelay(0)
        bursts: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
            "a batch becomes dead letters": (
                partial(fill, dsn, count),
                partial(give_up, dsn, POLICIES[DEAD_LETTERS], count),
            ),
            "a batch becomes retries": (
                partial(fill, dsn, count),
                partial(give_up, dsn, at_once, count),
            ),
            "retries come back": (lambda: None, partial(bring_back, dsn)),
            LATER_BURST: (lambda: None, partial(delay, dsn, count, "-1 second")),
            "delayed events are delivered": (lambda: None, partial(bring_back, dsn)),
        }
        rates: dict[str, tuple[float, float, float, float]] = {}
        for name, (prepare, burst) in bursts.items():
            bench.say(name)
            prepare()
            with producers(server, dsn, BY_FUNCTION, clients=CLIENTS, rate=RATE) as production:
                before, _ = rate_during(dsn, partial(time.sleep, seconds))
                during, took = rate_during(dsn, burst, count if name == LATER_BURST else 0)
            rates[name] = before, during, took, production.slowest * 1000

    bench.table(
        f"Events inserted a second, of {RATE:,} that are to be",
        ("", "before", "meanwhile", "seconds that it takes", "slowest insert, ms"),
        [[name, *numbers] for name, numbers in rates.items()],
    )
    for part, name in zip("abc", (*POLICIES, DELAYED), strict=True):
        bench.at_least(
            f"C4{part}", f"{name} waiting: times as with none", waiting.ratio(name, NOTHING), 0.9
        )
    for part, (name, (before, during, *_)) in zip("defgh", rates.items(), strict=True):
        bench.at_least(f"C4{part}", f"{name}: times the rate before", during / before, 0.9)
