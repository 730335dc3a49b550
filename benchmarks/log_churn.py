"""Batch after batch while a transaction stays open: do dead rows pile up, and slow it down?"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

import click

from benchmarks.contest import show_rows
from benchmarks.place import Connection, connect, database, options, ours, pgq_c, start

TENTHS = 10

QUEUE = "select pgq.create_queue('q'); select pgq.register_consumer('q', 'c');"
DEAD_ROWS = """
select coalesce(sum(n_dead_tup), 0), coalesce(sum(pg_total_relation_size(relid)), 0)
  from pg_stat_user_tables where schemaname = 'pgq' and relname not like 'event%'
"""


@dataclass(slots=True)
class Queue:
    """One implementation at work."""

    name: str
    dsn: str
    holder: Connection
    """Has a transaction id as long as it is open, so nothing younger can be cleaned up."""
    seconds: list[float] = field(default_factory=list)

    def cycles(self, count: int) -> None:
        """So many batches of one event, then what the ticker daemon does once a minute."""
        with connect(self.dsn) as conn:
            began = perf_counter()
            for _ in range(count):
                conn.execute("select pgq.insert_event('q', 'type', 'data')")
                conn.execute("select pgq.force_tick('q')")
                conn.execute("select pgq.ticker('q')")
                batch = conn.execute("select pgq.next_batch('q', 'c')").fetchone()
                conn.execute("select from pgq.get_batch_events(%s)", batch)
                conn.execute("select pgq.finish_batch(%s)", batch)
            self.seconds.append(perf_counter() - began)
            maintain(conn)

    def dead_rows(self) -> tuple[int, int]:
        """How many dead rows the small tables have, and their size in kB."""
        with connect(self.dsn) as conn:
            maintain(conn)
        # Counts are sent when a session ends, so ask in another one.
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


@click.command(help=__doc__)
@options
def main(quick: bool, version: int | None) -> None:
    cycles = 200 if quick else 10_000
    with start(version) as server:

        def queue(name: str, script: str) -> Queue:
            dsn = database(server, f"churn_{len(queues)}", script, QUEUE)
            holder = connect(dsn)
            holder.execute("begin")
            holder.execute("select txid_current()")
            return Queue(name, dsn, holder)

        queues: list[Queue] = []
        queues.append(queue("pgqpy", ours()))
        if pgq := pgq_c(server):
            queues.append(queue("PgQ, C", pgq))
        for _ in range(TENTHS):
            for each in queues:
                each.cycles(cycles // TENTHS)
        rows = []
        for each in queues:
            dead, size = each.dead_rows()
            first, last = (cycles / TENTHS / each.seconds[tenth] for tenth in (0, -1))
            row = (f"{dead:,}", f"{size:,}", f"{first:,.0f}", f"{last:,.0f}", f"{first / last:.2f}")
            rows.append((each.name, *row))
            each.holder.close()
    show_rows(
        f"{cycles:,} batches under an open transaction",
        ("", "dead rows", "kB", "batches/s at first", "at last", "slower by"),
        rows,
    )


if __name__ == "__main__":
    main()
