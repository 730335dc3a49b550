"""Tasks pushed: one a transaction by `pgq_task.push`, and 10,000 in one call of `push_many`.

Next to a plain INSERT, and an INSERT..SELECT, into a table with the same columns, defaults and
indexes: pgbench with prepared statements from 8 clients, and one connection. No worker waits.
Autovacuum is off.
"""

from __future__ import annotations

from functools import partial

from benchmarks._pgbench import contestant
from benchmarks._servers import OURS, connect, pgqpy_database
from benchmarks.bench import Bench, timed

PLAIN, SELECT, FUNCTION = "plain INSERT", "INSERT..SELECT", "pgqpy, push_many"

CREATE_TASKS = "select pgq_task.create_queue('q')"
PAYLOAD = '{"id": 12345, "name": "some customer", "address": "a street of a town, number five"}'
PUSH = f"select pgq_task.push('q', '{PAYLOAD}');"
PUSH_MANY = """
select count(*) from pgq_task.push_many('q', array(select %s::jsonb from generate_series(1, %s)))
"""
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
        dsns = {name: pgqpy_database(server, CREATE_TASKS, PLAIN_TASKS) for name in (PLAIN, OURS)}
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

        def in_one_call(dsn: str, statement: str) -> float:
            with connect(dsn) as conn:
                return sum(
                    timed(conn.execute, statement.encode(), [PAYLOAD, count]) for _ in range(times)
                )

        many = bench.contest(
            f"{count:,} at once",
            {
                SELECT: partial(in_one_call, dsns[PLAIN], MANY_BY_HAND),
                FUNCTION: partial(in_one_call, dsns[OURS], PUSH_MANY),
            },
            rounds=rounds,
            items=count * times,
            unit="tasks",
        )
    bench.at_least("Q1", f"times a {PLAIN}", single.ratio(OURS, PLAIN), 0.65)
    bench.at_least("Q2", f"times {SELECT}", many.ratio(FUNCTION, SELECT), 0.7)
