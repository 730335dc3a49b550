"""Copies kept as docs/spark.md shows it, and its example of an archive."""

from __future__ import annotations

import random
import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import pyarrow.parquet as parquet
import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import EXAMPLES, Run
from tests.fixtures.pages import blocks, section, text_of
from tests.fixtures.spark_ops import load, run_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COPIED = "select id, name, amount from orders_copy order by id"


@pytest.fixture
def page(dsn: str) -> dict[str, Any]:
    """The names defined by the Python code of the section."""
    names: dict[str, Any] = {"__name__": __name__, "target": dsn}
    for block in blocks(section(text_of("spark.md"), "### Keeping a copy")):
        exec(block, names)
    return names


@pytest.fixture
def chance() -> random.Random:
    return random.Random(1)


@pytest.fixture
def orders(conn: Connection) -> Connection:
    """The page's table, captured into its queue together with another, and a copy that is empty."""
    conn.execute("""
        create table orders (id int primary key deferrable initially deferred, name text,
                             amount numeric(10, 2));
        create table orders_copy (id int primary key, name text, amount numeric(10, 2));
        create table other (id int primary key, name text, amount numeric(10, 2));
        select pgq.create_queue('orders');
        select pgq.capture_table('orders', 'orders');
        select pgq.capture_table('other', 'orders');
    """)
    ops.tick(conn, "orders")
    ops.register(conn, "orders", "orders_copy")
    return conn


# Operations on rows a and b; n is any number.
CHANGES: dict[LiteralString, int] = {
    "insert into orders select %(a)s, 'new', %(n)s"
    " where not exists (select from orders where id = %(a)s)": 8,
    "update orders set name = 'number ' || %(n)s, amount = null where id = %(a)s": 4,
    "update orders set name = null, amount = %(n)s where id > %(b)s": 1,
    "delete from orders where id = %(a)s": 4,
    "update orders set id = %(b)s where id = %(a)s"
    " and not exists (select from orders where id = %(b)s)": 4,
    # keys change places
    "update orders set id = %(a)s + %(b)s - id where id in (%(a)s, %(b)s)": 3,
    "insert into orders select id, 'one of many' from generate_series(%(a)s, 11) id"
    " where id not in (select id from orders)": 2,
    "truncate orders": 1,
    "insert into other values (%(a)s, 'other') on conflict do nothing": 1,
    "delete from other where id = %(a)s": 1,
    "truncate other": 1,
}


def change(conn: Connection, chance: random.Random, ticks: int) -> None:
    """Make random changes, with this many ticks among them."""
    for _ in range(ticks):
        for statement in chance.choices(list(CHANGES), list(CHANGES.values()), k=12):
            a, b = chance.sample(range(1, 12), 2)
            conn.execute(statement, {"a": a, "b": b, "n": chance.randrange(1000)})
        ops.tick(conn, "orders")


def held(conn: Connection) -> list[tuple[Any, ...]]:
    return conn.execute("select id, name, amount from orders order by id").fetchall()


def changes(reader: Any, conn: Connection, dsn: str) -> DataFrame:
    """The queue by the schema of the table."""
    from pgqpy_consumers.spark import table_schema

    return load(reader, table_schema(conn, "orders"), dsn=dsn, queue="orders", payload="row")


def test_a_copy_that_a_stream_keeps_is_the_table(
    spark: SparkSession, orders: Connection, dsn: str, page: dict[str, Any],
    chance: random.Random, tmp_path: Path,
) -> None:  # fmt: skip
    reader = spark.readStream.options(consumer="stream", maxTicksPerTrigger="2")
    stream = changes(reader.option("startingPosition", "earliest"), orders, dsn)
    for _ in range(2):
        change(orders, chance, ticks=3)
        run_once(stream.writeStream.foreachBatch(page["write"]), tmp_path)
        assert orders.execute(COPIED).fetchall() == held(orders)


def test_a_copy_that_a_consumer_keeps_is_the_table(
    spark: SparkSession, orders: Connection, dsn: str, page: dict[str, Any], chance: random.Random
) -> None:
    consumer = page["OrdersCopy"](dsn, spark=spark)
    for _ in range(3):
        change(orders, chance, ticks=1)
        consumer.run(until_empty=True, handle_signals=False)
        assert orders.execute(COPIED).fetchall() == held(orders)


def test_a_copy_in_files_is_the_table(
    spark: SparkSession, orders: Connection, dsn: str, page: dict[str, Any],
    chance: random.Random, tmp_path: Path,
) -> None:  # fmt: skip
    from pgqpy_consumers.spark import latest_rows

    tick = ops.tick(orders, "orders")
    latest_rows(changes(spark.read, orders, dsn)).write.parquet(str(tmp_path / "0"))
    for version in range(2):
        change(orders, chance, ticks=2)
        more = changes(spark.read.option("startTick", tick), orders, dsn)
        page["rewrite"](str(tmp_path / f"{version}"), more, str(tmp_path / f"{version + 1}"))
        tick = ops.tick(orders, "orders")
        files = spark.read.parquet(str(tmp_path / f"{version + 1}"))
        rows = files.where("ev_table = 'public.orders'").select("id", "name", "amount")
        assert sorted(map(tuple, rows.collect())) == held(orders)


def test_the_archive_has_what_the_queue_has_and_gives_it_back(
    spark: SparkSession, conn: Connection, dsn: str, start: Run, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert start("spark_shop.py").finish() == ["1,000 orders placed"]
    ops.tick(conn, "shop")
    monkeypatch.setenv("PGQPY_DSN", dsn)
    program, archive = str(EXAMPLES / "spark_archive_replay.py"), str(tmp_path / "archive")
    for arguments in (["--once"], ["--replay", "french"]):
        monkeypatch.setattr(sys, "argv", [program, *arguments, "--archive", archive])
        runpy.run_path(program, run_name="__main__")
    columns = ["ev_id", "ev_type", "ev_data", "ev_extra1"]
    archived = parquet.read_table(tmp_path / "archive", columns=columns).to_pylist()
    queued = conn.execute(
        "select ev_id, ev_type, ev_data, ev_extra1 from pgq.event_template where ev_extra4 is null"
    )
    assert Counter(map(tuple, map(dict.values, archived))) == Counter(queued.fetchall())

    sent_again = conn.execute(
        "select (ev_extra4::json ->> 'ev_id')::int8, ev_type, ev_data, ev_extra1"
        " from pgq.event_template where ev_extra4 is not null"
    )
    french = [tuple(row.values()) for row in archived if '"FR"' in row["ev_data"]]
    assert french
    assert Counter(sent_again.fetchall()) == Counter(french)
