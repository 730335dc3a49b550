"""Batch after batch while a transaction stays open.

10,000 batches of one event each, tick and all, as fast as one session can. The open transaction has
an id, which keeps VACUUM from removing anything. Maintenance runs after each tenth.
"""

from __future__ import annotations

from contextlib import ExitStack
from time import perf_counter

from benchmarks._beside import WRITES, held_open
from benchmarks._servers import (
    CREATE_QUEUE,
    OURS,
    PGQ_C,
    Connection,
    connect,
    database,
    implementations,
)
from benchmarks.bench import Bench
from pgqpy.embedded import Server

TENTHS = 10

REGISTER = "select pgq.register_consumer('q', 'c')"
DEAD_ROWS = """
select coalesce(sum(n_dead_tup), 0), coalesce(sum(pg_total_relation_size(relid)), 0)
  from pg_stat_user_tables where schemaname = 'pgq' and relname not like 'event%'
"""


class Queue:
    """A queue of one implementation."""

    def __init__(self, server: Server, script: str) -> None:
        self.dsn = database(server, script, CREATE_QUEUE, REGISTER)
        self.rates: list[float] = []

    def cycles(self, count: int) -> None:
        """Process ``count`` batches of one event, then run maintenance."""
        with connect(self.dsn) as conn:
            began = perf_counter()
            for _ in range(count):
                conn.execute("select pgq.insert_event('q', 'type', 'data')")
                conn.execute("select pgq.force_tick('q')")
                conn.execute("select pgq.ticker('q')")
                batch = conn.execute("select pgq.next_batch('q', 'c')").fetchone()
                conn.execute("select from pgq.get_batch_events(%s)", batch)
                conn.execute("select pgq.finish_batch(%s)", batch)
            self.rates.append(count / (perf_counter() - began))
            maintain(conn)

    def dead_rows(self) -> tuple[int, int]:
        """The dead rows of the small tables, and the tables' size in kB."""
        with connect(self.dsn) as conn:
            maintain(conn)
        # A session sends its counts when it ends, so ask in another one.
        with connect(self.dsn) as conn:
            [(rows, size)] = conn.execute(DEAD_ROWS).fetchall()
        return int(rows), int(size) // 1024


def maintain(conn: Connection) -> None:
    operations = conn.execute("select func_name, func_arg from pgq.maint_operations()").fetchall()
    for name, argument in operations:
        if name == "vacuum":
            conn.execute(f"vacuum {argument}".encode())
        elif argument is None:
            conn.execute(f"select {name}()".encode())
        else:
            conn.execute(f"select {name}(%s)".encode(), [argument])


def run(bench: Bench) -> None:
    cycles = bench.choose(10_000, quick=200)
    with bench.server(autovacuum=False) as server:
        scripts = implementations(server)
        queues = {name: Queue(server, scripts[name]) for name in (OURS, PGQ_C) if name in scripts}
        # Nothing younger than these transactions' ids can be cleaned up.
        with ExitStack() as stack:
            for queue in queues.values():
                stack.enter_context(held_open(queue.dsn, WRITES))
            for _ in range(TENTHS):
                for queue in queues.values():
                    queue.cycles(cycles // TENTHS)
            rows = [(name, *queue.dead_rows(), *ends(queue)) for name, queue in queues.items()]
    bench.table(
        f"{cycles:,} batches under an open transaction",
        ("", "dead rows", "small tables, kB", "batches/s at first", "at last", "at last, of first"),
        rows,
    )
    bench.series(
        "Batches a second",
        y="batches a second",
        lines={name: enumerate(queue.rates, 1) for name, queue in queues.items()},
    )
    first, last, _ = ends(queues[OURS])
    bench.at_least("11e", f"{cycles:,} batches at once: last tenth of first", last / first, 0.95)


def ends(queue: Queue) -> tuple[float, float, float]:
    """Batches a second in the first tenth and in the last, and the ratio."""
    first, *_, last = queue.rates
    return first, last, last / first
