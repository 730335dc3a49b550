"""The delay of delayed events: from the time at which they are due to the consumer's method.

Ticker and consumer are processes with default settings. Events are inserted before they are due:
first 200 a second, then one every three seconds with nothing else in the database.
"""

from __future__ import annotations

import time

from benchmarks._beside import ticker
from benchmarks._servers import CREATE_QUEUE, connect, pgqpy_database
from benchmarks.bench import Bench
from benchmarks.readers import READER, readers
from pgqpy.embedded import Server

INSERT = """
select count(*)
  from (select array_agg(clock_timestamp() + make_interval(secs => 3 + n * %(apart)s)) as times,
               array_agg('type'::text) as types,
               array_agg(repeat('x', 130)) as data
          from generate_series(1, %(count)s) n) later,
       pgq.insert_events_at('q', times, types, data)
"""


def lateness(server: Server, count: int, apart: float) -> list[float]:
    """The delay in seconds of each of ``count`` events, due ``apart`` seconds after each other."""
    dsn = pgqpy_database(server, CREATE_QUEUE, READER)
    with ticker(dsn), readers(dsn, [("q", "reader")]) as group:
        with connect(dsn) as conn:
            conn.execute(INSERT, {"count": count, "apart": apart})
        while group.events < count:
            time.sleep(0.1)
        group.stop()
    return list(group.records[0].ages)


def run(bench: Bench) -> None:
    busy = bench.choose((4_000, 0.005), quick=(200, 0.005))
    quiet = bench.choose((60, 3.0), quick=(3, 1.0))
    with bench.server() as server:
        bench.say("many")
        many = lateness(server, *busy)
        bench.say("few")
        few = lateness(server, *quiet)
    delays = bench.delays("Later than due", {"200 a second": many, "one every 3 seconds": few})
    bench.at_most("C7a", "200 a second, p99", delays.ms("200 a second", 99), 100, "ms")
    bench.at_most(
        "C7b", "one every 3 seconds, p99", delays.ms("one every 3 seconds", 99), 100, "ms"
    )
