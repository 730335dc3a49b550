"""Tasks pushed: one a transaction by `pgq_task.push`, and 10,000 in one call of `push_many`.

Next to a plain INSERT, and an INSERT..SELECT, into a table with the same columns, defaults and
indexes: pgbench with prepared statements from 8 clients, and one connection. No worker waits.
Autovacuum is off.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from benchmarks._pgbench import contestant
from benchmarks._servers import OURS, connect, database, implementations
from benchmarks.bench import Bench
from benchmarks.task_workers import CREATE_TASKS, PAYLOAD, PUSH, PUSH_MANY

PLAIN, SELECT, FUNCTION = "plain INSERT", "INSERT..SELECT", "pgqpy, push_many"

PLAIN_TASKS = "create table plain (like pgq_task.task including all); create sequence plain_id;"
BY_HAND = f"""
insert into plain (id, queue_id, pos, payload)
values (nextval('plain_id'), 1, extract(epoch from clock_timestamp()) * 256000000, '{PAYLOAD}');
"""
MANY_BY_HAND = """
insert into plain (id, queue_id, pos, payload)
select nextval('plain_id'), 1, (extract(epoch from clock_timestamp()) * 256000000)::int8 + n, p
  from unnest(array(select %s::jsonb from generate_series(1, %s))) with ordinality u (p, n)
"""


def run(bench: Bench) -> None:
    transactions, rounds = bench.choose((32_000, 9), quick=(400, 1))
    count, times = bench.choose((10_000, 20), quick=(1_000, 1))
    with bench.server(autovacuum=False) as server:
        script = implementations(server)[OURS]
        dsns = {
            name: database(server, f"push_{number}", script, CREATE_TASKS, PLAIN_TASKS)
            for number, name in enumerate((PLAIN, OURS))
        }
        single = bench.contest(
            "8 clients",
            {
                name: contestant(
                    server,
                    dsn,
                    BY_HAND if name == PLAIN else PUSH,
                    clients=8,
                    transactions=transactions,
                )
                for name, dsn in dsns.items()
            },
            rounds=rounds,
            items=transactions,
            unit="tasks",
        )

        def in_one_call(dsn: str, statement: str) -> Callable[[], float]:
            def run() -> float:
                with connect(dsn) as conn:
                    began = perf_counter()
                    for _ in range(times):
                        conn.execute(statement.encode(), [PAYLOAD, count])
                    return perf_counter() - began

            return run

        many = bench.contest(
            f"{count:,} at once",
            {
                SELECT: in_one_call(dsns[PLAIN], MANY_BY_HAND),
                FUNCTION: in_one_call(dsns[OURS], PUSH_MANY),
            },
            rounds=rounds,
            items=count * times,
            unit="tasks",
        )
    bench.at_least("Q1", f"times a {PLAIN}", single.ratio(OURS, PLAIN), 0.65)
    bench.at_least("Q2", f"times {SELECT}", many.ratio(FUNCTION, SELECT), 0.7)
