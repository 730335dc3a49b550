"""One event a transaction, by INSERT into the queue's relation and by `pgq.insert_event`.

Next to PgQ, in C and in PL/pgSQL, and to a plain INSERT into a table with the same columns and
index: pgbench with prepared statements and payloads of 130 bytes. Autovacuum is off, because it
would slow down single rounds. PgQ in PL/pgSQL is in the first round only.
"""

from __future__ import annotations

from psycopg.conninfo import make_conninfo

from benchmarks._pgbench import contestant
from benchmarks._result import Contest
from benchmarks._servers import (
    CREATE_QUEUE,
    OURS,
    PGQ_C,
    PGQ_PL,
    PLAIN_TABLE,
    database,
    implementations,
)
from benchmarks.bench import Bench

PLAIN = "plain INSERT"

DATA = "x" * 130
BY_HAND = f"insert into plain (ev_type, ev_data) values ('type', '{DATA}');"
BY_FUNCTION = f"select pgq.insert_event('q', 'type', '{DATA}');"
RELATION = "pgqpy, relation"
INTO_RELATION = f"insert into pgq_queue.q (ev_type, ev_data) values ('type', '{DATA}');"


def run(bench: Bench) -> None:
    transactions, rounds = bench.choose((32_000, 9), quick=(400, 1))
    with bench.server(autovacuum=False) as server:
        databases = {PLAIN: database(server, PLAIN_TABLE)}
        for name, script in implementations(server).items():
            databases[name] = database(server, script, CREATE_QUEUE)
        databases[RELATION] = databases[OURS]
        statements = {PLAIN: BY_HAND, RELATION: INTO_RELATION}

        def contest(clients: int, synchronous_commit: str, share: int = 1) -> Contest:
            """``share``: do less work with one client, and when each waits for the disk."""
            contestants = {
                name: contestant(
                    server,
                    make_conninfo(dsn, options=f"-c synchronous_commit={synchronous_commit}"),
                    statements.get(name, BY_FUNCTION),
                    clients=clients,
                    transactions=transactions // share,
                )
                for name, dsn in databases.items()
            }
            return bench.contest(
                f"{clients} client{'s' * (clients > 1)}, synchronous_commit {synchronous_commit}",
                contestants,
                rounds=rounds,
                items=transactions // share,
                unit="events",
                once=[PGQ_PL],
            )

        many, many_sync = contest(8, "off"), contest(8, "on", 4)
        one, one_sync = contest(1, "off", 2), contest(1, "on", 8)

    bench.at_least("R1a", f"{RELATION}, times a {PLAIN}", many.ratio(RELATION, PLAIN), 0.9)
    if PGQ_C in databases:
        bench.at_least("R1b", f"{RELATION}, times {PGQ_C}", many.ratio(RELATION, PGQ_C), 1.3)
        bench.at_least("1", f"{OURS}, times {PGQ_C}", many.ratio(OURS, PGQ_C), 1.0)
        for part, what in (("2a", many_sync), ("2b", one), ("2c", one_sync)):
            bench.at_least(part, what.title, what.ratio(RELATION, PGQ_C), 1.0)
