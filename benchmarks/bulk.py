"""200,000 events in one transaction: by INSERT..SELECT, by `pgq.insert_events`, and by COPY.

The first two next to an INSERT..SELECT of the same rows into a plain table with the same columns
and the same index, from a table, and from arrays, which is what the function takes; the third next
to psycopg's binary COPY into that table. Payloads have 120 bytes. Tables grow from round to round,
a queue's as the plain one; commits count. Autovacuum is off.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks._servers import (
    CREATE_QUEUE,
    PLAIN_TABLE,
    Connection,
    connect,
    pgqpy_database,
)
from benchmarks.bench import Bench, timed
from pgqpy import Producer

INSERT, ARRAYS, FUNCTION = "INSERT..SELECT", "INSERT..SELECT of arrays", "pgqpy, insert_events"
COPY, PRODUCER = "psycopg's COPY", "pgqpy, Producer"

DATA = '{"id": %07d, "origin": "EWR", "rest": "' + 78 * "x" + '"}'

COPY_IN = (
    "copy plain (ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) from stdin binary"
)
BY_HAND = "insert into plain (ev_type, ev_data) select ev_type, ev_data from source"
AGGREGATED = "(select array_agg(ev_type) as types, array_agg(ev_data) as data from source) s"
FROM_ARRAYS = f"""
insert into plain (ev_type, ev_data)
select e.* from {AGGREGATED}, unnest(s.types, s.data) e
"""
RELATION = "INSERT..SELECT into the relation"
INTO_RELATION = BY_HAND.replace("plain", "pgq_queue.q")
BY_FUNCTION = f"select count(*) from {AGGREGATED}, pgq.insert_events('q', s.types, s.data)"


def events(count: int) -> Iterator[tuple[str, str, None, None, None, None]]:
    for n in range(count):
        yield "flight", DATA % n, None, None, None, None


def copy_by_hand(conn: Connection, count: int) -> None:
    with conn.transaction(), conn.cursor() as cursor, cursor.copy(COPY_IN) as copy:
        copy.set_types(["text"] * 6)
        for event in events(count):
            copy.write_row(event)


def copy_by_producer(conn: Connection, count: int) -> None:
    with conn.transaction():
        Producer("q").insert_events(conn, events(count))


def run(bench: Bench) -> None:
    count, rounds = bench.choose((200_000, 7), quick=(2_000, 1))
    with bench.server(autovacuum=False) as server:
        dsn = pgqpy_database(server, CREATE_QUEUE, PLAIN_TABLE)
        with connect(dsn) as conn:
            # The source's rows exist before: creating them is not compared.
            conn.execute("create table source (ev_type text, ev_data text)")
            with conn.cursor().copy("copy source from stdin") as copy:
                for event in events(count):
                    copy.write_row(event[:2])
            conn.execute("vacuum analyze source")

            statements = bench.contest(
                "One statement",
                {
                    INSERT: partial(timed, conn.execute, BY_HAND),
                    RELATION: partial(timed, conn.execute, INTO_RELATION),
                    ARRAYS: partial(timed, conn.execute, FROM_ARRAYS),
                    FUNCTION: partial(timed, conn.execute, BY_FUNCTION),
                },
                rounds=rounds,
                items=count,
                unit="events",
            )
            copies = bench.contest(
                "From Python",
                {
                    COPY: partial(timed, copy_by_hand, conn, count),
                    PRODUCER: partial(timed, copy_by_producer, conn, count),
                },
                rounds=rounds,
                items=count,
                unit="events",
            )
    bench.at_least("R3", f"{RELATION}, times {INSERT}", statements.ratio(RELATION, INSERT), 0.9)
    of_arrays = statements.ratio(FUNCTION, ARRAYS).value
    bench.at_least(
        "3a",
        f"{FUNCTION}, times {INSERT}",
        statements.ratio(FUNCTION, INSERT),
        0.8,
        note=f"The function gets arrays. Of an {ARRAYS} it is {of_arrays:.2f} x.",
    )
    bench.at_least("3b", f"{PRODUCER}, times {COPY}", copies.ratio(PRODUCER, COPY), 0.8)
