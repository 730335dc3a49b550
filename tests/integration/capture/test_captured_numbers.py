"""Numbers of captured rows come to Python as PostgreSQL wrote them, and go back unchanged."""

from __future__ import annotations

from decimal import Decimal

import pytest

import pgqpy
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import Connection

CAPTURES = {
    "capture_table": "select pgq.capture_table('price', '{0}')",
    "jsontriga": "create trigger t after insert or update on price for each row"
    " execute function pgq.jsontriga('{0}', 'backup')",
    "capture_table, format jsontriga": (
        "select pgq.capture_table('price', '{0}', format => 'jsontriga')"
    ),
}


@pytest.mark.any_pg
@pytest.mark.parametrize("capture", CAPTURES)
def test_a_captured_numeric_keeps_its_digits_through_a_consumer(
    dsn: str, conn: Connection, queue: str, tick: Tick, capture: str
) -> None:
    class Copy(pgqpy.Consumer):
        consumer = "copy"

        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            for row in (event.row(), event.json()):
                # As text, where jsontriga writes numerics so.
                assert isinstance(row["amount"], Decimal if capture == "capture_table" else str)
                conn.execute("insert into copy values (%s)", [row["amount"]])

    conn.execute("create table price (id int primary key, amount numeric)")
    conn.execute("create table copy (amount numeric)")
    conn.execute(CAPTURES[capture].format(queue).encode())
    consumer = Copy(dsn, queue=queue)
    consumer.register()
    numbers = ["12.50", "0.10", "99999999999999999999.123456789012345678901234567890"]
    for number, text in enumerate(numbers):
        conn.execute("insert into price values (%s, %s)", [number, text])
    tick()
    consumer.run(until_empty=True)
    copied = conn.execute("select amount::text from copy").fetchall()
    assert copied == [(text,) for text in numbers for _ in range(2)]
