"""Producer.insert_events against psycopg's binary COPY into a plain table."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import click

from benchmarks.contest import Contestant, show, take_turns
from benchmarks.place import PLAIN_TABLE, connect, database, options, ours, start
from pgqpy import Producer

COPY = "copy plain (ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) from stdin binary"

EventFields = tuple[str, str, str, None, None, None]


def events(count: int) -> Iterator[EventFields]:
    for n in range(count):
        yield "flight", f'{{"id": {n}, "origin": "EWR"}}', "EWR", None, None, None


@click.command(help=__doc__)
@options
def main(quick: bool, version: int | None) -> None:
    count, rounds = (2_000, 1) if quick else (200_000, 7)
    with start(version) as server:
        dsn = database(server, "produce", ours(), "select pgq.create_queue('q')", PLAIN_TABLE)
        conn = connect(dsn)
        producer = Producer("q")

        def by_hand() -> float:
            began = perf_counter()
            with conn.transaction(), conn.cursor() as cursor, cursor.copy(COPY) as copy:
                copy.set_types(["text"] * 6)
                for row in events(count):
                    copy.write_row(row)
            return perf_counter() - began

        def by_producer() -> float:
            began = perf_counter()
            with conn.transaction():
                producer.insert_events(conn, events(count))
            return perf_counter() - began

        contestants = [Contestant("plain COPY", by_hand), Contestant("insert_events", by_producer)]
        take_turns(contestants, rounds)
    show(f"{count:,} events in one transaction", contestants, items=count, unit="events")


if __name__ == "__main__":
    main()
