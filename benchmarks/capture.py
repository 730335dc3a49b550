"""Changes of a table become events: by a statement trigger, by row triggers, and by PgQ's.

`pgq.capture_table` next to `jsontriga`, ours in PL/pgSQL and PgQ's in C and in PL/pgSQL (one round
only), and to no trigger: 100,000 rows in one statement, then single rows, one a transaction, by
pgbench. Autovacuum is off.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks._pgbench import contestant
from benchmarks._servers import (
    CREATE_QUEUE,
    OURS,
    PGQ_C,
    PGQ_PL,
    connect,
    database,
    implementations,
)
from benchmarks.bench import Bench, timed
from pgqpy.embedded import Server

NONE, CAPTURE, ROW = "no trigger", "pgqpy, capture_table", "pgqpy, jsontriga"
ROW_C, ROW_PL = "PgQ, jsontriga in C", "PgQ, jsontriga in PL/pgSQL"

TABLE = """
create table flight (
    id int primary key, origin text not null, carrier text, delay int, left_at timestamptz
);
create sequence flight_id;
"""
BY_STATEMENT = "select pgq.capture_table('flight', 'q', operations => 'insert,update,delete')"
BY_ROW = """
create trigger to_queue after insert or update or delete on flight
    for each row execute function pgq.jsontriga('q');
"""

INSERT = """
insert into flight
select n, 'EWR', 'UA', mod(n, 60), timestamptz '2013-01-01 00:00Z' + n * interval '1 minute'
  from generate_series(1, %d) n
"""
UPDATE = "update flight set delay = delay + 1"
INSERT_ONE = "insert into flight values (nextval('flight_id'), 'EWR', 'UA', 5, now());"
UPDATE_ONE = """\\set id random(1, %d)
update flight set delay = delay + 1 where id = :id;
"""


def ways(server: Server) -> dict[str, list[str]]:
    """The scripts of a database for each way."""
    scripts = implementations(server)
    found = {NONE: [TABLE], CAPTURE: [scripts[OURS], CREATE_QUEUE, TABLE, BY_STATEMENT]}
    for name, implementation in ((ROW, OURS), (ROW_C, PGQ_C), (ROW_PL, PGQ_PL)):
        if implementation in scripts:
            found[name] = [scripts[implementation], CREATE_QUEUE, TABLE, BY_ROW]
    return found


def run(bench: Bench) -> None:
    rows, rounds = bench.choose((100_000, 5), quick=(500, 1))
    transactions, single_rounds = bench.choose((24_000, 7), quick=(400, 1))
    with bench.server(autovacuum=False) as server:
        databases = {name: database(server, *scripts) for name, scripts in ways(server).items()}
        conns = {name: connect(dsn) for name, dsn in databases.items()}

        def statement(name: str, text: str, before: str) -> Callable[[], float]:
            def run() -> float:
                conns[name].execute(before.encode())
                return timed(conns[name].execute, text.encode())

            return run

        inserts = bench.contest(
            f"INSERT of {rows:,} rows",
            {name: statement(name, INSERT % rows, "truncate flight") for name in databases},
            rounds=rounds,
            items=rows,
            unit="rows",
            once=[ROW_PL],
        )
        updates = bench.contest(
            f"UPDATE of {rows:,} rows",
            # The dead rows of the last UPDATE are not compared.
            {name: statement(name, UPDATE, "vacuum flight") for name in databases},
            rounds=rounds,
            items=rows,
            unit="rows",
            once=[ROW_PL],
        )
        for conn in conns.values():
            conn.execute("vacuum full analyze flight")
            conn.execute("select setval('flight_id', max(id)) from flight")
        singles = [
            bench.contest(
                f"{what} of single rows, 8 clients",
                {
                    name: contestant(server, dsn, script, clients=8, transactions=transactions)
                    for name, dsn in databases.items()
                },
                rounds=single_rounds,
                items=transactions,
                unit="rows",
                once=[ROW_PL],
            )
            for what, script in (("INSERT", INSERT_ONE), ("UPDATE", UPDATE_ONE % rows))
        ]

    many = [("a", inserts), ("b", updates)]
    if ROW_C in databases:
        for part, contest in many:
            bench.at_least(f"4{part}", contest.title, contest.ratio(CAPTURE, ROW_C), 2.0)
        for part, contest in zip("cd", (inserts, updates), strict=True):
            above = contest.ratio(CAPTURE, ROW_C, above=NONE)
            bench.at_least(f"4{part}", f"{contest.title}, above {NONE}", above, 2.0)
        for part, contest in zip("ab", singles, strict=True):
            bench.at_least(f"5{part}", contest.title, contest.ratio(CAPTURE, ROW_C), 0.9)
    if ROW_PL in databases:
        for part, contest in many:
            bench.at_least(f"6{part}", contest.title, contest.ratio(ROW, ROW_PL), 8.0)
