"""500,000 captured changes of a table applied to a table of another database by `table_loader`.

Half are updates, three tenths new rows, two tenths deletions, all over a table of 100,000 rows with
six columns, captured in the default format. The loader takes about 50,000 changes a transaction.
The tables must be equal at the end. One server has both databases.
"""

from __future__ import annotations

from functools import partial

from benchmarks._servers import CREATE_QUEUE, KEEPER, TICK, connect, pgqpy_database
from benchmarks.bench import Bench, timed
from pgqpy_consumers.settings import build
from pgqpy_consumers.table_loader import TableLoader

ROWS = 100_000
LOADER = "pgqpy, table_loader"

TABLE = """
create table flight (
    id      int primary key,
    origin  text not null,
    dest    text not null,
    at      timestamptz not null,
    delay   int,
    carrier text
)
"""
INSERT = """
insert into flight
select n, 'EWR', 'IAH', '2013-01-01Z'::timestamptz + n * interval '1 minute', n % 100, 'UA'
  from generate_series({first}, {last}) n
"""
SOME = "id in (select id from flight order by hashint4(id + {seed}) limit {count})"
UPDATE = f"update flight set delay = delay + 1, carrier = 'B6' where {SOME}"
DELETE = f"delete from flight where {SOME}"

CAPTURE = "select pgq.capture_table('flight', 'q')"
REWIND = "select pgq.register_consumer_at('q', 'table_loader', 1)"
FORGET = "select pgq_ext.forget_consumer('table_loader', 'q')"
BEFORE = "truncate flight; insert into flight table before"
CHECKSUM = "select count(*), sum(hashtextextended(f::text, 0)) from flight f"


def change(source: str, changes: int) -> None:
    """Fill the queue."""
    with connect(source) as conn:
        last = ROWS
        for seed in range(10):
            part = changes // 10
            insert = INSERT.format(first=last + 1, last=last + part * 3 // 10)
            last += part * 3 // 10
            for statement in (
                insert,
                UPDATE.format(seed=seed, count=part // 2),
                DELETE.format(seed=-seed, count=part * 2 // 10),
            ):
                conn.execute(statement.encode())
            conn.execute(TICK)
        conn.execute("vacuum analyze")


def load(source: str, target: str) -> float:
    with connect(source) as conn, connect(target) as remote:
        conn.execute("select pgq.unregister_consumer('q', 'table_loader')")
        conn.execute(REWIND)
        remote.execute(FORGET)
        remote.execute(BEFORE)
        remote.execute("vacuum analyze flight")
    loader = TableLoader.from_config(
        build(TableLoader.Config, {"dsn": source, "queue": "q", "target_dsn": target})
    )
    seconds = timed(partial(loader.run, until_empty=True))
    with connect(source) as conn, connect(target) as remote:
        assert conn.execute(CHECKSUM).fetchone() == remote.execute(CHECKSUM).fetchone()
    return seconds


def run(bench: Bench) -> None:
    changes, rounds = bench.choose((500_000, 5), quick=(20_000, 1))
    with bench.server(autovacuum=False) as server:
        rows = INSERT.format(first=1, last=ROWS)
        source = pgqpy_database(server, CREATE_QUEUE, KEEPER, TABLE, rows, CAPTURE)
        keep = "create table before as table flight"
        target = pgqpy_database(server, TABLE, rows, keep)
        bench.say("Making the changes")
        change(source, changes)
        contest = bench.contest(
            "Captured changes into a table of another database",
            {LOADER: partial(load, source, target)},
            rounds=rounds,
            items=changes,
            unit="changes",
        )
    bench.at_least("C5", f"{LOADER}, in bulk", contest.rate(LOADER), 50_000, "changes/s")
