"""The shop of the other Spark examples: each run of this places a thousand orders.

The table is captured, so PostgreSQL writes an event for each order. Needs no Spark, but a
database with the schema (``pgqpy migrate``), named by PGQPY_DSN or libpq's variables::

    python examples/spark_shop.py
"""

from __future__ import annotations

import pgqpy

TABLE = """
create table if not exists shop_order (
    id         bigint primary key generated always as identity,
    country    text not null,
    amount     numeric(10, 2) not null,
    placed_at  timestamptz not null
)
"""

CAPTURE = "select pgq.capture_table('shop_order', 'shop', replace => true)"

# Of the last two days.
ORDERS = """
insert into shop_order (country, amount, placed_at)
select (array['DE', 'FR', 'XX'])[1 + n % 3], n % 500 + 0.99, now() - n * interval '170 seconds'
  from generate_series(1, 1000) n
"""


def main() -> None:
    with pgqpy.connect() as conn:
        pgqpy.Admin(conn).create_queue("shop")
        conn.execute(TABLE)
        conn.execute(CAPTURE)
        placed = conn.execute(ORDERS).rowcount
    print(f"{placed:,} orders placed")


if __name__ == "__main__":
    main()
