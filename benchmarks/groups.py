"""A consumer group of 8 partitions, 200 keys drawn by Zipf's law, and a handler that sleeps 1 ms.

Each worker is a process; with asyncio it processes up to eight keys at once. The events of a key
come one after the other, so the most frequent key limits any number of workers, and the busiest
partition those that process an event at a time. The time is from the start signal until all are
processed. asyncio uses select() here: its usual loop rounds waits up to whole milliseconds.

Then eight workers process numbered events, note each key's last number in the batch's transaction,
and two more join and leave. Last, one worker only reads, through 1 to 64 partitions.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from multiprocessing.connection import Connection as Pipe

import pgqpy
from benchmarks._beside import processes
from benchmarks._servers import CREATE_QUEUE, KEEPER, TICK, Connection, connect, pgqpy_database
from benchmarks.bench import Bench, timed
from benchmarks.readers import Starting

HANDLER = 0.001
TICK_EVERY = 1_000
KEYS, PARTITIONS, WORKERS, AT_ONCE = 200, 8, 8, 8
ONE, MANY = "1 worker", f"{WORKERS} workers"
ONE_ASYNC = "1 worker, asyncio"
MANY_KEYS = f"{WORKERS} workers, asyncio, {AT_ONCE} keys at a time"
PLAIN = "a plain consumer"

DONE = """
select min(sub_last_tick) * %s >= (select max(tick_id) from pgq.tick)
  from pgq.subscription
  join pgq.consumer on co_id = sub_consumer
 where co_name like 'g#%%'
"""
ORDER_TABLES = """
create table last_number (key text primary key, number bigint not null);
create table disorder (batch bigint, key text)
"""


class Sleeper(Starting, pgqpy.GroupConsumer):
    queue = "q"
    consumer = "g"
    poll_interval = 0.05

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        time.sleep(HANDLER)


class AsyncSleeper(pgqpy.AsyncGroupConsumer):
    queue = "q"
    consumer = "g"
    poll_interval = 0.05
    pipe: Pipe
    begun = False

    async def wants_batch(self, conn: pgqpy.AsyncConnection) -> bool:
        if not self.begun:
            self.begun = True
            self.pipe.send(None)
            await asyncio.to_thread(self.pipe.recv)
        return True

    async def process_event(self, conn: pgqpy.AsyncConnection, event: pgqpy.Event) -> None:
        await asyncio.sleep(HANDLER)


class OrderChecker(Sleeper):
    """Notes each key's progress, and each batch that does not begin after the one before."""

    def process_batch(self, conn: pgqpy.Connection, batch: pgqpy.Batch) -> None:
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        wrong = set()
        for event in batch:
            key, number = event.extra1 or "", int(event.data or 0)
            if key in last and number != last[key] + 1:
                wrong.add(key)
            first.setdefault(key, number)
            last[key] = number
        keys = list(first)
        before = dict(
            conn.execute(
                "select key, number from last_number where key = any(%s)", [keys]
            ).fetchall()
        )
        wrong |= {key for key in keys if first[key] != before.get(key, 0) + 1}
        conn.execute(
            "insert into last_number select * from unnest(%s::text[], %s::bigint[])"
            " on conflict (key) do update set number = excluded.number",
            [keys, [last[key] for key in keys]],
        )
        conn.execute(
            "insert into disorder select %s, * from unnest(%s::text[])", [batch.id, list(wrong)]
        )


class Nothing(pgqpy.GroupConsumer):
    queue = "q"
    consumer = "g"

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        pass


class PlainNothing(pgqpy.Consumer):
    queue = "q"
    consumer = "plain"

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        pass


def work(kind: type[Sleeper], pipe: Pipe, dsn: str) -> None:
    """Work until terminated."""
    worker = kind(dsn)
    worker.pipe = pipe
    worker.run()


def work_with_asyncio(at_once: int, pipe: Pipe, dsn: str) -> None:
    """Work with select(), which waits in microseconds: epoll waits in whole milliseconds."""

    def new_loop() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(selectors.SelectSelector())

    worker = AsyncSleeper(dsn)
    worker.pipe = pipe
    worker.concurrency = at_once
    with asyncio.Runner(loop_factory=new_loop) as loop:
        loop.run(worker.run())


Work = Callable[[Pipe, str], None]


def process(dsn: str, work: Work, workers: int, guests: int = 0) -> float:
    """Process everything with ``workers`` processes; guests join and leave meanwhile, in turn."""
    with connect(dsn) as conn:
        make_group(conn, PARTITIONS)
        with processes(work, [(dsn,)] * workers) as (_, pipes):
            began = time.perf_counter()
            for pipe in pipes:
                pipe.send(None)
            while not is_done(conn):
                # They come at equal distances.
                if guests and is_done(conn, guests + 1):
                    guests -= 1
                    with processes(work, [(dsn,)]) as (_, [pipe]):
                        pipe.send(None)
                        time.sleep(1)
                time.sleep(0.02)
            return time.perf_counter() - began


def is_done(conn: Connection, parts: int = 1) -> bool:
    """Whether all partitions have got to the end, or to that of the first of several parts."""
    [(done,)] = conn.execute(DONE, [parts])
    return bool(done)


def make_group(conn: Connection, partitions: int) -> None:
    if conn.execute("select from pgq.consumer_group").fetchall():
        conn.execute("select pgq.drop_group('q', 'g', true)")
    conn.execute("select pgq.create_group('q', 'g', %s, 'ev_extra1', i_tick_id => 1)", [partitions])


def fill(dsn: str, count: int) -> Counter[str]:
    """Insert events with keys drawn by Zipf's law; returns the number of events of each key."""
    rng = random.Random(200)
    names = [f"key {n}" for n in range(1, KEYS + 1)]
    weights = list(accumulate(1 / n for n in range(1, KEYS + 1)))
    counts: Counter[str] = Counter()
    with connect(dsn) as conn:
        for _ in range(0, count, TICK_EVERY):
            events = []
            for key in rng.choices(names, cum_weights=weights, k=TICK_EVERY):
                counts[key] += 1
                events.append(("e", str(counts[key]), key))
            with conn.transaction():
                pgqpy.Producer("q").insert_events(conn, events)
            conn.execute(TICK)
    return counts


def busiest_partition(conn: Connection, counts: Counter[str]) -> float:
    """The busiest partition's share of the events."""
    sizes = Counter[int]()
    for key, count in counts.items():
        ((partition,),) = conn.execute("select pgq.key_partition(%s, %s)", [key, PARTITIONS])
        sizes[partition] += count
    return max(sizes.values()) / counts.total()


def read(dsn: str, partitions: int) -> float:
    with connect(dsn) as conn:
        if partitions:
            make_group(conn, partitions)
        else:
            conn.execute("select pgq.register_consumer_at('q', 'plain', 1)")
    worker = Nothing(dsn) if partitions else PlainNothing(dsn)
    return timed(partial(worker.run, until_empty=True))


def run(bench: Bench) -> None:
    count, rounds = bench.choose((20_000, 3), quick=(2_000, 1))
    in_order = bench.choose(1_000_000, quick=10_000)
    with bench.server() as server:
        dsn = pgqpy_database(server, CREATE_QUEUE, KEEPER)
        counts = fill(dsn, count)
        contest = bench.contest(
            "Events whose processing takes 1 ms",
            {
                ONE: partial(process, dsn, partial(work, Sleeper), 1),
                MANY: partial(process, dsn, partial(work, Sleeper), WORKERS),
                ONE_ASYNC: partial(process, dsn, partial(work_with_asyncio, 1), 1),
                MANY_KEYS: partial(process, dsn, partial(work_with_asyncio, AT_ONCE), WORKERS),
            },
            rounds=rounds,
            items=count,
            unit="events",
        )
        with connect(dsn) as conn:
            partition = busiest_partition(conn, counts)
        key = max(counts.values()) / counts.total()

        dsn = pgqpy_database(server, CREATE_QUEUE, KEEPER, ORDER_TABLES)
        bench.say(f"Filling in {in_order:,} events")
        counts = fill(dsn, in_order)
        seconds = process(dsn, partial(work, OrderChecker), WORKERS, guests=2)
        with connect(dsn) as conn:
            noted: dict[str, int] = dict(
                conn.execute("select key, number from last_number").fetchall()
            )
            ((disorder,),) = conn.execute("select count(*) from disorder").fetchall()
        assert noted == counts
        bench.table(
            f"{in_order:,} numbered events, {MANY}, and 2 that come and go",
            ("", "value"),
            [
                ["events that came before or after their turn", disorder],
                ["events that each key still misses", sum(counts.values()) - sum(noted.values())],
                ["seconds", seconds],
            ],
        )
        sizes = bench.choose((1, 8, 64), quick=(1, 8))
        ways = {PLAIN: partial(read, dsn, 0)} | {
            f"{size} partitions": partial(read, dsn, size) for size in sizes
        }
        bench.contest(
            "Reading by one worker that does nothing",
            ways,
            rounds=bench.choose(3, quick=1),
            items=in_order,
            unit="events",
        )
    bench.at_least(
        "C2a",
        f"{MANY_KEYS}, times {ONE_ASYNC}",
        contest.ratio(MANY_KEYS, ONE_ASYNC),
        5,
        note=f"The most frequent key has {key:.0%} of the events, so at most "
        f"{1 / key:.1f} x can be reached. {MANY} that take an event at a time are "
        f"{contest.ratio(MANY, ONE).value:.1f} x {ONE}; the busiest partition has "
        f"{partition:.0%}, so no more than {1 / partition:.1f} x.",
    )
    bench.at_most("C2b", f"events out of order, of {in_order:,}", float(disorder), 0, "events")
