"""Changing a table whose changes are events: many rows in one statement, and row by row."""

from __future__ import annotations

from functools import partial
from time import perf_counter

import click

from benchmarks.contest import Contestant, show, take_turns
from benchmarks.place import Connection, connect, database, options, ours, pgq_c, pgq_without_c
from benchmarks.place import start as start_server

SETUP = """
create table flight (
    id int primary key, origin text not null, carrier text, delay int, left_at timestamptz
);
"""
QUEUE = "select pgq.create_queue('q');"
CAPTURE = "select pgq.capture_table('flight', 'q', operations => 'insert,update,delete');"
TRIGGER = """
create trigger to_queue after insert or update or delete on flight
    for each row execute function pgq.jsontriga('q');
"""
INSERT = """
insert into flight
select n, 'EWR', 'UA', mod(n, 60), timestamptz '2013-01-01 00:00Z' + n * interval '1 minute'
  from generate_series(1, %d) n
"""
INSERT_ONE_BY_ONE = """
do $$
begin
    for i in 1 .. %d loop
        insert into flight values (i, 'EWR', 'UA', mod(i, 60), now());
        commit;
    end loop;
end $$
"""
UPDATE = "update flight set delay = delay + 1"


def timed(conn: Connection, statement: str) -> float:
    began = perf_counter()
    conn.execute(statement.encode())
    return perf_counter() - began


@click.command(help=__doc__)
@options
def main(quick: bool, version: int | None) -> None:
    rows, transactions, rounds = (1_000, 100, 1) if quick else (100_000, 10_000, 3)
    inserts: list[Contestant] = []
    updates: list[Contestant] = []
    singles: list[Contestant] = []

    with start_server(version) as server:

        def add(name: str, *scripts: str, share: int = 1) -> None:
            """``share``: of the slow ones, one in so many rows has to be enough."""
            conn = connect(database(server, f"capture_{len(inserts)}", *scripts))

            def insert(statement: str, rows: int) -> float:
                conn.execute("truncate flight")
                return share * timed(conn, statement % (rows // share))

            inserts.append(Contestant(name, partial(insert, INSERT, rows)))
            singles.append(Contestant(name, partial(insert, INSERT_ONE_BY_ONE, transactions)))
            updates.append(Contestant(name, lambda: share * timed(conn, UPDATE)))

        add("no trigger", SETUP)
        add("pgq.capture_table", ours(), QUEUE, SETUP, CAPTURE)
        add("jsontriga of pgqpy", ours(), QUEUE, SETUP, TRIGGER)
        if pgq := pgq_c(server):
            add("jsontriga of PgQ, C", pgq, QUEUE, SETUP, TRIGGER)
        if pgq := pgq_without_c(server):
            add("the same, PL/pgSQL (scaled)", pgq, QUEUE, SETUP, TRIGGER, share=100)

        take_turns(inserts, rounds)
        take_turns(updates, rounds)
        take_turns(singles, rounds)
    show(f"INSERT of {rows:,} rows", inserts, items=rows, unit="rows")
    show(f"UPDATE of {rows:,} rows", updates, items=rows, unit="rows")
    show("INSERT of one row a transaction", singles, items=transactions, unit="rows")


if __name__ == "__main__":
    main()
