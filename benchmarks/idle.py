"""The cost of an idle installation.

A hundred queues without events, with two consumers each: heartbeats and polls. Four processes share
the `AsyncConsumer`s. All programs, their sessions, autovacuum's workers, and the server's
write-ahead log count.
"""

from __future__ import annotations

import time

from benchmarks._beside import ticker
from benchmarks._meter import Meter, Party
from benchmarks._servers import LSN, connect, pgqpy_database
from benchmarks.bench import Bench
from benchmarks.readers import readers, watch_together

PROCESSES = 4
CONSUMERS = ("one", "two")
QUEUES = "select pgq.create_queue('q' || n) from generate_series(1, %d) n"
REGISTER = """
select pgq.register_consumer(queue_name, consumer)
  from pgq.queue, unnest(array['one', 'two']) consumer
"""
# Until autovacuum has processed the rows that creating queues left behind.
SETTLE = 180


def run(bench: Bench) -> None:
    queues = bench.choose(100, quick=5)
    seconds = 60 * bench.minutes(5)
    positions = [(f"q{n}", name) for n in range(1, queues + 1) for name in CONSUMERS]
    with bench.server(max_connections=1000) as server:
        dsn = pgqpy_database(server, QUEUES % queues, REGISTER)
        with (
            ticker(dsn) as daemon,
            readers(dsn, positions, processes=PROCESSES, work=watch_together) as group,
            connect(dsn) as conn,
        ):
            conn.execute("vacuum analyze")
            time.sleep(bench.choose(SETTLE, quick=3))
            parties = {
                "ticker": Party([daemon], ("pgqpy ticker",)),
                "consumers": Party(
                    group.processes, tuple(f"pgqpy {name}" for name in (*CONSUMERS, "listen"))
                ),
            }
            # One is due every five minutes; the first change of a page after it writes it whole.
            conn.execute("checkpoint")
            meter = Meter(conn, parties)
            [(before,)] = conn.execute(LSN)
            time.sleep(seconds)
            shares, ended = meter.shares()
            [(after,)] = conn.execute(LSN)
    written = float(after - before) / 1000 / (seconds / 60)
    total = sum(share.both for share in shares.values()) + ended
    bench.table(
        "Processor time, % of one core",
        ("", "program", "its sessions"),
        [
            *((name, 100 * share.program, 100 * share.sessions) for name, share in shares.items()),
            ("sessions that ended, whosever", None, 100 * ended),
        ],
    )
    bench.at_most(
        "10a", f"{queues} queues, {len(positions)} consumers: all, of a core", 100 * total, 2, "%"
    )
    bench.at_most("10b", "written ahead, a minute", written, 100, "kB")
