"""Contracts give payloads their types: in reading, and in an archive of Avro files."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from psycopg.types.json import Jsonb
from pyspark.errors import AnalysisException

from pgqpy import Producer
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PAID: dict[str, Any] = {
    "type": "object",
    "required": ["no"],
    "properties": {"no": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}},
}
SECOND = PAID | {"properties": PAID["properties"] | {"tip": {"type": "number"}}}
AT = datetime(2026, 11, 23, 14, tzinfo=UTC)


@pytest.fixture
def filled(conn: Connection, queue: str) -> str:
    """A queue with a contract of two versions, a captured table, and events of both and others."""
    for schema in (PAID, SECOND):
        conn.execute("select pgq.set_contract(%s, 'paid', %s, 'none')", [queue, Jsonb(schema)])
    conn.execute("create table item (id int primary key, price numeric(6, 2), made timestamptz)")
    conn.execute("select pgq.capture_table('item', %s)", [queue])
    paid = {"no": 1, "at": AT.isoformat(), "tip": 0.5, "more": [1]}
    Producer(queue).insert_events(conn, [("paid", paid), ("other", '{"no": 5}'), ("paid", "oops")])
    conn.execute("insert into item values (7, 1.5, %s)", [AT])
    conn.execute("delete from item")
    conn.execute("alter table item add note text; insert into item values (8, null, null, 'ü')")
    ops.tick(conn, queue)
    return queue


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in df.orderBy("ev_id").collect()]


def test_the_contract_gives_the_columns_and_the_events(
    spark: SparkSession, dsn: str, filled: str, conn: Connection
) -> None:
    from pgqpy_consumers.spark import contract_schema, latest_rows

    def read(**options: str) -> DataFrame:
        given = {"dsn": dsn, "queue": filled, "malformed": "drop", **options}
        return spark.read.format("pgq").options(**given).load()

    newest = read(contract="paid")
    assert newest.columns[5:] == ["no", "at", "tip"]
    columns = ("ev_operation", "no", "unix_seconds(at) at", "tip")
    assert rows(newest.selectExpr("ev_id", *columns))[0][1:] == (None, 1, AT.timestamp(), 0.5)
    assert newest.count() == 1
    assert read(contract="paid", contractVersion="1").columns[5:] == ["no", "at"]
    # A captured table, as it is now and as it was.
    items = read(contract="public.item", optional="note")
    assert [
        row[1:] for row in rows(items.select("ev_id", "ev_operation", "id", "price", "note"))
    ] == [
        ("INSERT", 7, Decimal("1.50"), None),
        ("DELETE", 7, Decimal("1.50"), None),
        ("INSERT", 8, None, "ü"),
    ]
    assert [row.id for row in latest_rows(items).collect()] == [8]
    assert read(contract="public.item", contractVersion="1").columns[5:] == ["id", "price", "made"]
    assert contract_schema(conn, filled, "paid") == newest.schema
    given = {"consumer": "c", "startingPosition": "earliest", "malformed": "drop"}
    stream = spark.readStream.format("pgq").options(dsn=dsn, queue=filled, contract="paid", **given)
    writer = stream.load().writeStream.format("memory").queryName("paid")
    writer.trigger(availableNow=True).start().awaitTermination()
    assert [row.no for row in spark.sql("select no from paid").collect()] == [1]
    # Malformed payloads and absent columns are what they are with other schemas.
    assert read(contract="paid", where="ev_data = 'oops'").count() == 0
    for wrong, said in (
        ({"contract": "other"}, "of type 'other' does not exist"),
        ({"contract": "paid", "contractVersion": "3"}, "version 3"),
        ({"contract": "paid", "queue": "nowhere"}, "nowhere"),
    ):
        with pytest.raises(AnalysisException, match=said):
            read(**wrong)


def test_an_archive_of_avro_has_payloads_by_their_contracts(
    spark: SparkSession, cli: Cli, conn: Connection, filled: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    cli.ok("spark", "archive", filled, str(lake), "--once", "--format", "avro")
    (file,) = (each for each in lake.rglob("*.avro") if "_pgqpy" not in str(each))
    assert file.parts[-3] == f"queue={filled}"
    with file.open("rb") as opened:
        reader = fastavro.reader(opened)
        records: list[Any] = list(reader)
        assert reader.metadata["pgqpy.queue"] == filled
        assert json.loads(reader.metadata["pgqpy.contracts"]) == {"paid": 2, "public.item": 2}
    item = {"id": 7, "price": Decimal("1.50"), "made": AT}
    assert [each["payload"] for each in records] == [
        *({"no": 1, "at": AT, "tip": 0.5}, None, None),
        *(
            item | {"note": None},
            item | {"note": None},
            {"id": 8, "price": None, "made": None, "note": "ü"},
        ),
    ]
    stored = conn.execute("select ev_id, ev_data from pgq.event_template order by 1").fetchall()
    assert [(each["ev_id"], each["ev_data"]) for each in records] == stored
    assert all(each["ev_time"].tzinfo for each in records)
    # The archive keeps its format, and goes on.
    Producer(filled).insert_event(conn, "paid", '{"no": 2}')
    ops.tick(conn, filled)
    assert "files of format avro" in cli.fails(
        "spark", "archive", filled, str(lake), "--once", "--format", "parquet"
    )
    cli.ok("spark", "archive", filled, str(lake), "--once")
    info = cli.json("spark", "archive-info", str(lake))
    assert info["files"] == "avro"
    assert [(each["events"], each["files"]) for each in info["queues"]] == [(7, 2)]
    assert "7 events" in cli.ok("spark", "replay", str(lake), filled, "--dry-run")
