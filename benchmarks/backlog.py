"""Batches of a queue with ten million events in it.

Batches of 500 events; opening and reading count. The *short queue* has only the events that are
read here. In a queue with ten million, one consumer is *at the start* and one *at the end*. Then a
transaction with an id stays open, and queues are filled *behind it*. Rounds of 20 batches take
turns.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter

from benchmarks._beside import WRITES, held_open
from benchmarks._servers import OURS, PGQ_C, Connection, connect, database, implementations
from benchmarks.bench import Bench

BATCH = 500
IN_A_ROUND = 20
SHORT, START, END = "short queue", "at the start", "at the end"
SHORT_BEHIND, BEHIND = "short queue, behind an open transaction", "at the start, behind it"

FILL = """
do $$
begin
    for i in 1 .. {batches} loop
        execute 'insert into ' || pgq.current_event_table('{queue}')
            || ' (ev_time, ev_type, ev_data)'
            ' select now(), ''type'', ''{{"id": '' || n || '', "origin": "EWR", "dest": "IAH"}}'''
            '   from generate_series(1, {size}) n';
        commit;
        perform pgq.force_tick('{queue}');
        perform pgq.ticker('{queue}');
        commit;
    end loop;
end $$
"""
LAST_BUT = """
select tick_id from pgq.tick t join pgq.queue q on q.queue_id = t.tick_queue
 where q.queue_name = %s order by tick_id desc offset %s limit 1
"""


def run(bench: Bench) -> None:
    events, rounds = bench.choose((10_000_000, 40), quick=(20_000, 1))
    with bench.server(autovacuum=False) as server:
        scripts = implementations(server)
        for name in (OURS, PGQ_C):
            if name not in scripts:
                continue
            dsn = database(server, scripts[name])
            with ExitStack() as stack:
                few = IN_A_ROUND * (rounds + 1)
                contestants = prepare(bench, dsn, stack, events // BATCH, few)
                contest = bench.contest(
                    f"Batches of {BATCH} events, {name}",
                    contestants,
                    rounds=rounds,
                    items=IN_A_ROUND,
                    unit="batches",
                )
            if name == OURS:
                for part, place in (("12a", START), ("12b", END), ("12c", BEHIND)):
                    what = f"time of a batch {place}, of a short queue's"
                    bench.at_most(part, what, contest.ratio(SHORT, place), 1.2)


def prepare(
    bench: Bench, dsn: str, stack: ExitStack, many: int, few: int
) -> dict[str, Callable[[], float]]:
    """Fills queues with ``many`` batches and with ``few``; leaves a transaction open."""
    with connect(dsn) as conn:
        fill(conn, "short", few)
        bench.say(f"{many * BATCH:,} events")
        fill(conn, "long", many)
        [(tick,)] = conn.execute(LAST_BUT, ["long", few]).fetchall()
        conn.execute("select pgq.register_consumer_at('long', 'last', %s)", [tick])
        stack.enter_context(held_open(dsn, WRITES))
        fill(conn, "short_behind", few)
        bench.say("as many behind an open transaction")
        fill(conn, "long_behind", many)
    return {
        SHORT: reader(dsn, "short", "first"),
        START: reader(dsn, "long", "first"),
        END: reader(dsn, "long", "last"),
        SHORT_BEHIND: reader(dsn, "short_behind", "first"),
        BEHIND: reader(dsn, "long_behind", "first"),
    }


def fill(conn: Connection, queue: str, batches: int) -> None:
    conn.execute("select pgq.create_queue(%s)", [queue])
    conn.execute("select pgq.register_consumer(%s, 'first')", [queue])
    conn.execute(FILL.format(queue=queue, batches=batches, size=BATCH).encode())


def reader(dsn: str, queue: str, consumer: str) -> Callable[[], float]:
    conn = connect(dsn)

    def read() -> float:
        seconds = 0.0
        for _ in range(IN_A_ROUND):
            began = perf_counter()
            [(batch,)] = conn.execute("select pgq.next_batch(%s, %s)", [queue, consumer]).fetchall()
            events = conn.execute("select * from pgq.get_batch_events(%s)", [batch]).fetchall()
            seconds += perf_counter() - began
            if len(events) != BATCH:
                raise RuntimeError(f"a batch of {len(events)} events")
            conn.execute("select pgq.finish_batch(%s)", [batch])
        return seconds

    return read
